// Numbers as people read them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace longreach {

std::string human_bytes(int64_t bytes);      // "512 B", "1.50 MiB", "3.25 GiB"
std::string human_count(double count);       // "257", "1.25K", "162M", "2.40B"
std::string grouped(int64_t value);          // "1,024,000"
std::string human_duration(double seconds);  // "8.4s", "2m05s", "3h12m", "4d03h"

// Lengths and token counts as people write them: "512", "2K" or "2k", "1M", "3G", with K = 1024. Empty if `text` is
// not one or does not fit 64 bits.
std::optional<int64_t> parse_token_count(std::string_view text);

}  // namespace longreach
