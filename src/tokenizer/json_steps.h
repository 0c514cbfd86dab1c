// The parts of tokenizer.json around its model.
#pragma once

#include "tokenizer/file_node.h"
#include "tokenizer/formats.h"

namespace longreach::tokenizer {

// Each fills its part of the definition from the value of the file's member of that name.
void read_normalizer(const FileNode& node, Definition& definition);
void read_pre_tokenizer(const FileNode& node, Definition& definition);
void read_decoder(const FileNode& node, Definition& definition);

// A post-processor only adds special tokens around a text, which `data tokenize` does itself; one that
// is unknown is refused.
void check_post_processor(const FileNode& node);

}  // namespace longreach::tokenizer
