// Published numbers as printed: their number of digits determines the tolerance.
#pragma once

#include <cmath>
#include <cstdlib>
#include <string>

namespace longreach::test {

inline double printed(const std::string& digits) {
    return std::strtod(digits.c_str(), nullptr);
}

// Half a unit of the last printed digit: "1.50" 0.005, "2.5e3" 50, "530" 0.5.
inline double half_digit(const std::string& digits) {
    const size_t mantissa_end = std::min(digits.find('e'), digits.size());
    const size_t point = digits.find('.');
    const int decimals = point < mantissa_end ? static_cast<int>(mantissa_end - point) - 1 : 0;
    const int exponent = mantissa_end < digits.size() ? std::atoi(digits.c_str() + mantissa_end + 1) : 0;
    return 0.5 * std::pow(10.0, exponent - decimals);
}

// Whether x rounds to these digits. The small factor allows for ties and for decimal fractions
// that have no exact binary form.
inline bool prints_as(double x, const std::string& digits) {
    return std::abs(x - printed(digits)) <= half_digit(digits) * (1 + 1e-6);
}

}  // namespace longreach::test
