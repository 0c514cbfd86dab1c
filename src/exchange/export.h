// A checkpoint of this program in Hugging Face's layout: config.json, model.safetensors (or shards of it with an index),
// the tokenizer's files and a model card. A model that transformers has a class for becomes one of that class
// (stock.h), any other one of modeling_longreach.py, which is written with it (own_form.h); what neither can
// express is refused by name.
#pragma once

#include <string>
#include <vector>

#include "io/checkpoint_dir.h"

namespace longreach::exchange {

enum class ExportType { f32, bf16 };

struct ExportOptions {
    std::string target;          // run directory (its newest checkpoint) or checkpoint directory
    std::string directory;       // to write
    std::string tokenizer = {};  // tokenizer.json, or a directory with one; empty: that of the run directory
    ExportType type = ExportType::f32;
    uint64_t shard_bytes = 5'000'000'000;  // largest file of weights
    bool replace = false;                  // an earlier export; other files in its directory stay
};

struct ExportResult {
    std::string directory, architecture;
    int64_t parameters = 0;
    std::vector<std::string> files;
    std::vector<std::string> notes;  // what the user should know
    std::vector<std::string> kept;   // in the directory, not of an export
};

ExportResult export_model(const ExportOptions& options, const io::Notice& notice);

std::string to_text(const ExportResult& result);

}  // namespace longreach::exchange
