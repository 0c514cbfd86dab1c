#include "decide/paired.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

#include "base/error.h"

namespace longreach::decide {

namespace {

constexpr double unknown = std::numeric_limits<double>::quiet_NaN();

// P(|T| < sqrt(degrees) tan(angle)). For whole degrees of freedom the integral of the density is a finite sum
// in sine and cosine of the angle: each integration by parts lowers the power of the cosine by two.
double within_angle(double angle, int64_t degrees) {
    const double sine = std::sin(angle), cosine = std::cos(angle), square = cosine * cosine;
    const bool odd = degrees % 2 == 1;
    double sum = 0, term = odd ? cosine : 1;
    for (int64_t power = odd ? 1 : 0; power <= degrees - 2; power += 2) {
        sum += term;
        term *= square * static_cast<double>(power + 1) / static_cast<double>(power + 2);
    }
    return odd ? 2 / std::numbers::pi * (angle + sine * sum) : sine * sum;
}

}  // namespace

double student_within(double t, int64_t degrees) {
    check(degrees >= 1, "{} degrees of freedom", degrees);
    return within_angle(std::atan(std::abs(t) / std::sqrt(static_cast<double>(degrees))), degrees);
}

double student_quantile(double confidence, int64_t degrees) {
    check(degrees >= 1, "{} degrees of freedom", degrees);
    check(confidence >= 0 && confidence < 1, "a confidence of {}", confidence);
    // The probability rises with the angle; halve until the two ends are neighbours.
    double low = 0, high = std::numbers::pi / 2;
    for (double middle = high / 2; middle > low && middle < high; middle = low + (high - low) / 2)
        (within_angle(middle, degrees) < confidence ? low : high) = middle;
    return std::sqrt(static_cast<double>(degrees)) * std::tan(low);
}

bool MeanInterval::has_interval() const {
    return std::isfinite(low) && std::isfinite(high);
}

bool MeanInterval::excludes_zero() const {
    return has_interval() && (low > 0 || high < 0);
}

MeanInterval mean_interval(const std::vector<double>& values, double confidence) {
    MeanInterval out;
    out.count = static_cast<int64_t>(values.size());
    out.mean = out.standard_deviation = out.standard_error = out.low = out.high = unknown;
    const bool finite = std::all_of(values.begin(), values.end(), [](double v) { return std::isfinite(v); });
    if (values.empty() || !finite) return out;
    const double count = static_cast<double>(values.size());
    double sum = 0;
    for (const double v : values) sum += v;
    out.mean = sum / count;
    if (values.size() < 2) return out;
    double squares = 0;  // around the mean: the difference of two large sums would lose the digits that count
    for (const double v : values) squares += (v - out.mean) * (v - out.mean);
    out.standard_deviation = std::sqrt(squares / (count - 1));
    out.standard_error = out.standard_deviation / std::sqrt(count);
    const double half = student_quantile(confidence, out.count - 1) * out.standard_error;
    out.low = out.mean - half;
    out.high = out.mean + half;
    return out;
}

MeanInterval mean_interval(const std::vector<SeedValue>& values, double confidence) {
    std::vector<double> plain;
    for (const SeedValue& v : values) plain.push_back(v.value);
    return mean_interval(plain, confidence);
}

std::vector<SeedValue> paired_differences(const std::vector<SeedValue>& values,
                                          const std::vector<SeedValue>& baseline) {
    std::vector<SeedValue> out;
    for (const SeedValue& v : values) {
        const auto same = [&](const SeedValue& b) { return b.seed == v.seed; };
        const auto found = std::find_if(baseline.begin(), baseline.end(), same);
        if (found != baseline.end()) out.push_back({v.seed, v.value - found->value});
    }
    std::sort(out.begin(), out.end(), [](auto& a, auto& b) { return a.seed < b.seed; });
    return out;
}

MeanInterval paired_difference(const std::vector<SeedValue>& values, const std::vector<SeedValue>& baseline,
                               double confidence) {
    return mean_interval(paired_differences(values, baseline), confidence);
}

double chi_square_within(double x, int64_t degrees) {
    if (x <= 0) return 0;
    // Each two degrees more take a term of the series away: P_k(x) = P_(k-2)(x) - (x/2)^(k/2-1) e^(-x/2) / Gamma(k/2).
    double within = degrees % 2 == 1 ? std::erf(std::sqrt(x / 2)) : -std::expm1(-x / 2);
    for (int64_t k = degrees % 2 == 1 ? 3 : 4; k <= degrees; k += 2) {
        const double half = static_cast<double>(k) / 2;
        within -= std::exp((half - 1) * std::log(x / 2) - x / 2 - std::lgamma(half));
    }
    return within;
}

SpreadInterval spread_interval(const MeanInterval& of, double confidence) {
    if (of.count < 2 || !std::isfinite(of.standard_deviation)) return {unknown, unknown};
    const int64_t degrees = of.count - 1;
    const auto quantile = [&](double probability) {
        double low = 0, high = 1;
        while (chi_square_within(high, degrees) < probability) high *= 2;
        for (double middle = high / 2; middle > low && middle < high; middle = low + (high - low) / 2)
            (chi_square_within(middle, degrees) < probability ? low : high) = middle;
        return low;
    };
    const double squares = of.standard_deviation * of.standard_deviation * static_cast<double>(degrees);
    const double tail = (1 - confidence) / 2;
    return {std::sqrt(squares / quantile(1 - tail)), std::sqrt(squares / quantile(tail))};
}

int64_t seeds_for(double half, double standard_deviation) {
    constexpr int64_t most = 1'000'000;
    int64_t count = 2;
    while (count < most && student_quantile(0.95, count - 1) * standard_deviation >
                               half * std::sqrt(static_cast<double>(count)))
        count += count < 1000 ? 1 : count / 100;
    return std::min(count, most);
}

}  // namespace longreach::decide
