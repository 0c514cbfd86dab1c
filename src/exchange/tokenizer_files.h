// The files of a tokenizer beside a model, which travel with it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace longreach::exchange {

constexpr uint64_t largest_tokenizer_file = uint64_t{256} << 20;  // bytes

struct TokenizerFiles {
    std::vector<std::string> names;  // of the files in the directory
    uint64_t fingerprint = 0;        // 0: unknown
    std::string description;         // one line; empty: there is no tokenizer
    int64_t vocab_size = 0;          // 0: unknown
    std::string problem;             // why the tokenizer cannot be read; empty: it can be
};

TokenizerFiles find_tokenizer(const std::string& directory);

// Copies them. Error(ExitCode::data) if one that is JSON by its name does not parse, or is a link that leads out of the
// directory: what it points to would be published with the model.
void copy_tokenizer_files(const TokenizerFiles& files, const std::string& from, const std::string& to);

}  // namespace longreach::exchange
