#include "plot/scale.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "table/readable.h"

namespace longreach::plot {

double Scale::at(double value) const {
    const auto f = [&](double v) { return logarithmic ? std::log2(v) : v; };
    const double span = f(high) - f(low);
    return span > 0 ? from + (to - from) * (f(value) - f(low)) / span : (from + to) / 2;
}

std::vector<Tick> round_ticks(double low, double high, int about) {
    std::vector<Tick> out;
    // There are no round numbers between neighbouring doubles.
    const double largest = std::max(std::abs(low), std::abs(high));
    if (!(high - low > 1e-9 * largest) || !std::isfinite(high - low)) return {{low, table::significant(low)}};
    const double rough = (high - low) / about, power = std::pow(10.0, std::floor(std::log10(rough)));
    // The factor nearest to the wanted step, on a logarithmic scale.
    const double ratio = rough / power;
    const double step = power * (ratio < 1.42 ? 1 : ratio < 3.17 ? 2 : ratio < 7.08 ? 5 : 10);
    const int decimals = std::max(0, -static_cast<int>(std::floor(std::log10(step) + 1e-9)));
    // Powers of ten, where the numbers would be too long.
    const bool scientific = largest >= 1e6 || decimals > 6 || (decimals > 4 && largest < 0.01);
    for (double k = std::ceil(low / step - 1e-9); k * step <= high + 1e-9 * step; ++k) {
        const double value = k * step + 0.0;  // -0 + 0 is 0
        out.push_back({value, scientific ? table::significant(value, 3) : table::fixed(value, decimals)});
    }
    return out;
}

std::vector<Tick> power_ticks(double low, double high, int most) {
    std::vector<Tick> out;
    if (!(low > 0) || !(high >= low)) return out;
    const int first = static_cast<int>(std::ceil(std::log2(low) - 1e-9)),
              last = static_cast<int>(std::floor(std::log2(high) + 1e-9));
    const int stride = std::max(1, (last - first + most) / most);
    for (int k = first; k <= last; k += stride) {
        const double value = std::exp2(k);
        out.push_back(
            {value, k >= 0 ? table::short_length(int64_t{1} << std::min(k, 62)) : table::significant(value)});
    }
    return out;
}

}  // namespace longreach::plot
