#include "report/scale.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace longreach::report {

namespace {

std::string with_minus(std::string text) {
    return text.starts_with('-') ? fmt::format("\u2212{}", std::string_view(text).substr(1)) : text;
}

// "-0.00" says nothing that "0.00" does not.
std::string unsigned_zero(std::string text) {
    if (text.find_first_of("123456789") == std::string::npos && text[0] == '-') text.erase(0, 1);
    return text;
}

}  // namespace

double Scale::at(double value) const {
    const auto f = [&](double v) { return logarithmic ? std::log2(v) : v; };
    const double span = f(high) - f(low);
    return span > 0 ? from + (to - from) * (f(value) - f(low)) / span : (from + to) / 2;
}

std::vector<Tick> round_ticks(double low, double high, int about) {
    std::vector<Tick> out;
    // Where neighbouring doubles are almost a step apart there are no round places between them.
    const double largest = std::max(std::abs(low), std::abs(high));
    if (!(high - low > 1e-9 * largest) || !std::isfinite(high - low)) return {{low, significant(low)}};
    const double rough = (high - low) / about, power = std::pow(10.0, std::floor(std::log10(rough)));
    // The factor nearest to the wanted step, on a logarithmic ruler.
    const double ratio = rough / power;
    const double step = power * (ratio < 1.42 ? 1 : ratio < 3.17 ? 2 : ratio < 7.08 ? 5 : 10);
    const int decimals = std::max(0, -static_cast<int>(std::floor(std::log10(step) + 1e-9)));
    // Where the numbers would be too long, powers of ten are clearer.
    const bool scientific = largest >= 1e6 || decimals > 6 || (decimals > 4 && largest < 0.01);
    for (double k = std::ceil(low / step - 1e-9); k * step <= high + 1e-9 * step; ++k) {
        const double value = k * step + 0.0;  // -0 + 0 is 0
        out.push_back({value, scientific ? significant(value, 3) : fixed(value, decimals)});
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
        out.push_back({value, k >= 0 ? short_length(int64_t{1} << std::min(k, 62)) : significant(value)});
    }
    return out;
}

std::string short_length(int64_t length) {
    constexpr int64_t kilo = 1024, mega = kilo * kilo;
    if (length >= mega && length % mega == 0) return fmt::format("{}M", length / mega);
    if (length >= kilo && length % kilo == 0) return fmt::format("{}K", length / kilo);
    return fmt::format("{}", length);
}

std::string full_length(int64_t length) {
    return grouped(length);
}

std::string fixed(double value, int decimals) {
    if (!std::isfinite(value)) return "not finite";
    if (std::abs(value) >= 1e9) return significant(value);
    return with_minus(unsigned_zero(fmt::format("{:.{}f}", value, decimals)));
}

std::string signed_fixed(double value, int decimals) {
    const std::string text = fixed(value, decimals);
    return std::isfinite(value) && value >= 0 ? fmt::format("+{}", text) : text;
}

std::string significant(double value, int digits) {
    if (!std::isfinite(value)) return "not finite";
    return with_minus(fmt::format("{:.{}g}", value + 0.0, digits));
}

std::string exact(double value) {
    return std::isnan(value) ? "" : fmt::format("{}", value);
}

}  // namespace longreach::report
