// The formats of tokenizer files. What a file asks for and this program lacks is refused by its name and its JSON
// path: Error(ExitCode::data), as for every malformed file.
#pragma once

#include <string>
#include <string_view>

#include "tokenizer/definition.h"

namespace longreach::tokenizer {

// Hugging Face's tokenizer.json with a model of type BPE. `file` is its name in messages.
Definition parse_tokenizer_json(std::string_view text, const std::string& file);

// tiktoken's ranks: on each line base64 of a token's bytes, a space, its rank, which is its id. `pattern` is gpt2,
// cl100k, o200k or a regular expression; empty: what goes with the file's name (r50k_base.tiktoken and so on).
Definition parse_rank_file(std::string_view text, const std::string& file, const std::string& pattern);

// GPT-2's vocab.json (tokens to ids) and merges.txt (one "left right" per line).
Definition parse_vocab_and_merges(std::string_view vocab, const std::string& vocab_file,
                                  std::string_view merges, const std::string& merges_file);

inline constexpr const char* gpt2_pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

}  // namespace longreach::tokenizer
