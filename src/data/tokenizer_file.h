// The tokenizer of `data tokenize`: that of a file, or bytes.
#pragma once

#include <memory>
#include <string>

#include "data/shard_writer.h"
#include "tokenizer/tokenizer.h"

namespace longreach::data {

struct TokenizerOptions {
    std::string path = {};      // empty: each byte is a token
    std::string pattern = {};   // of a rank file
    std::string boundary = {};  // name of the token before each document; empty: the first usual one it has
};

struct FileTokenizer {
    std::shared_ptr<const tokenizer::Tokenizer> tokenizer = {};  // empty: each byte is a token
    ShardHeader header = {};                                     // of the shards it makes
    std::string description = {};                                // one line; empty for bytes
};

// The tokenizer of a file: tokenizer.json, or vocab.json with merges.txt in the same directory, or tiktoken's ranks; or of a
// directory that holds a tokenizer.json, or else a vocab.json.
std::shared_ptr<const tokenizer::Tokenizer> load_tokenizer(const std::string& path,
                                                           const std::string& pattern = {});

// The files of a tokenizer under names by which load_tokenizer(directory) finds them. None for a rank file: its pattern
// is in no file.
struct KeptFile {
    std::string name, content;
};
std::vector<KeptFile> tokenizer_files(const std::string& path);

// Copies them into a directory. False if there are none.
bool keep_tokenizer(const std::string& path, const std::string& directory);

FileTokenizer open_tokenizer(const TokenizerOptions& options);

}  // namespace longreach::data
