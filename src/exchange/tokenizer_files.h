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
    std::string problem;             // why the tokenizer cannot be read; empty: it can be
};

TokenizerFiles find_tokenizer(const std::string& directory);

}  // namespace longreach::exchange
