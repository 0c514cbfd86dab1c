// Axes: the position of a value, and ticks at round numbers.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace longreach::plot {

// Maps [low, high] to [from, to] in pixels, linearly in the value or in its logarithm.
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

// Multiples of 1, 2 or 5 times a power of ten inside [low, high], about `about`
// of them (at least two if high > low), all with the same number of decimals.
std::vector<Tick> round_ticks(double low, double high, int about);

// Powers of two inside [low, high], equally spaced and at most `most` of them.
std::vector<Tick> power_ticks(double low, double high, int most);

}  // namespace longreach::plot
