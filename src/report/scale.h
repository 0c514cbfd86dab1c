// Axes: where a value lies, round places for ticks, and numbers as text for people.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/units.h"  // grouped

namespace longreach::report {

// Maps [low, high] onto [from, to] in pixels, in proportion to the value or to its logarithm.
struct Scale {
    double low = 0, high = 1;
    double from = 0, to = 1;
    bool logarithmic = false;
    double at(double value) const;
};

struct Tick {
    double value = 0;
    std::string text;
};

// Multiples of 1, 2 or 5 times a power of ten inside [low, high], about `about` of them (at least two where
// high > low), all written with the same number of decimals.
std::vector<Tick> round_ticks(double low, double high, int about);

// Powers of two inside [low, high], thinned to at most `most` (always keeping equal distances).
std::vector<Tick> power_ticks(double low, double high, int most);

// 512, 1K, 64K, 1M: lengths of contexts, K being 1024; others in full with thin spaces.
std::string short_length(int64_t length);
std::string full_length(int64_t length);  // 4,096

// With a true minus sign; "not finite" for NaN and infinities.
std::string fixed(double value, int decimals);
std::string signed_fixed(double value, int decimals);   // + in front where it is not negative
std::string significant(double value, int digits = 4);  // 0.01235, 12.35, 1.235e-07

// The shortest text that reads back to the same bits; empty for NaN.
std::string exact(double value);

}  // namespace longreach::report
