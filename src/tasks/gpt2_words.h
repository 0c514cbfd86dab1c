// The words of needle_s3 and of the filler in GPT-2's vocabulary, without its files. A token holds the space before its word.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace longreach::tasks {

inline constexpr int32_t gpt2_digit = 15, gpt2_space = 220;  // the digits 0 to 9 follow each other
inline constexpr uint64_t gpt2_cities = 48;                  // each a token of its own

// Appends words of the list and digits, one token each.
void gpt2_encode(std::vector<int32_t>& out, std::string_view text);
int32_t gpt2_city(uint64_t n);  // " Boston"

}  // namespace longreach::tasks
