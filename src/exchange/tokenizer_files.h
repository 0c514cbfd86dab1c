// The files of a model's tokenizer, which are copied with the model.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/json.h"
#include "tokenizer/tokenizer.h"

namespace longreach::exchange {

constexpr uint64_t largest_tokenizer_file = uint64_t{256} << 20;  // bytes

struct TokenizerFiles {
    std::vector<std::string> names;  // of the files in the directory
    std::vector<std::pair<std::string, std::string>> made =
        {};                    // files that are in no directory: name and content
    uint64_t fingerprint = 0;  // 0: unknown
    std::string description;   // one line; empty: there is no tokenizer
    int64_t vocab_size = 0;    // 0: unknown
    std::string problem;       // why the tokenizer cannot be read; empty: it can be
    // The token that begins and ends documents; -1 and empty if there is none, or if files say how to use the tokenizer.
    int64_t boundary = -1;
    std::string boundary_name;
    bool bytes = false;  // the model has no tokenizer: its tokens are bytes
};

// The names that a directory has of those that belong to a tokenizer.
std::vector<std::string> tokenizer_file_names(const std::string& directory);
TokenizerFiles find_tokenizer(const std::string& directory);

// Sets what the files say about the tokenizer that `load` gives; what it throws about the tokenizer becomes their problem.
void describe_tokenizer(TokenizerFiles& files,
                        const std::function<std::shared_ptr<const tokenizer::Tokenizer>()>& load);

// With a boundary: what transformers reads with config.json and tokenizer.json, by name.
std::vector<std::pair<std::string, json::Value>> usage_files(const TokenizerFiles& files);

// tokenizer.json for a model of bytes, which has no file of its own.
TokenizerFiles write_byte_tokenizer(const std::string& to);

// Copies them, writes those made, and returns the names of both. Error(ExitCode::data) if one that is JSON by its name does
// not parse, or is a link that leads out of the directory: what it points to would be published with the model.
std::vector<std::string> copy_tokenizer_files(const TokenizerFiles& files, const std::string& from,
                                              const std::string& to);

}  // namespace longreach::exchange
