// Numbers as people read them.
#pragma once

#include <cstdint>
#include <string>

namespace longreach {

std::string human_bytes(int64_t bytes);      // "512 B", "1.50 MiB", "3.25 GiB"
std::string human_count(double count);       // "257", "1.25K", "162M", "2.40B"
std::string grouped(int64_t value);          // "1,024,000"
std::string human_duration(double seconds);  // "8.4s", "2m05s", "3h12m", "4d03h"

}  // namespace longreach
