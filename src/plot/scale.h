// Axes: the position of a value, and round places for ticks.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace longreach::plot {

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

}  // namespace longreach::plot
