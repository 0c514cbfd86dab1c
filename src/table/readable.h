// Numbers and names as text for people.
#pragma once

#include <cstdint>
#include <string>

#include "base/units.h"  // grouped

namespace longreach::table {

// Context lengths with K = 1024: 512, 1K, 64K, 1M; lengths that are not multiples of 1024 in full.
std::string short_length(int64_t length);

// With a true minus sign; "not finite" for NaN and infinities.
std::string fixed(double value, int decimals);
std::string signed_fixed(double value, int decimals);   // "+" in front of values that are not negative
std::string significant(double value, int digits = 4);  // 0.01235, 12.35, 1.235e-07

// The shortest text that reads back to the same bits; empty for NaN.
std::string exact(double value);

// At most `characters` characters: an ellipsis replaces the middle, because names often differ at their end.
std::string shortened(const std::string& text, size_t characters);

}  // namespace longreach::table
