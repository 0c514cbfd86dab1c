// The multiplier of random scores at which softmax attends to C of n keys: E[1 / largest weight] = C.
//
// With the largest score m of n independent ones given, the other n - 1 follow the same law cut off at m, so
//     E = 1 + n (n - 1) INT f(m) F(m)^(n-2) exp(-A m) M(m) dm,   M(m) = INT_(s<m) f(s) exp(A s) ds
// with density f and distribution F of one score, A the multiplier. E falls from n at A = 0 to 1: bisection.
#pragma once

#include <cmath>
#include <cstdint>
#include <map>
#include <numbers>
#include <tuple>
#include <vector>

namespace longreach::reference {

// Scores N(0, 1): M(m) = exp(A^2 / 2) Phi(m - A). Simpson's rule on an integrand that has
// vanished at both ends.
inline double keys_attended_normal(int64_t n, double multiplier) {
    const auto log_phi = [](double x) { return std::log(0.5 * std::erfc(-x / std::numbers::sqrt2)); };
    const int intervals = 2000;
    const double low = -9, high = 12, step = (high - low) / intervals;
    double sum = 0;
    for (int i = 0; i <= intervals; ++i) {
        const double m = low + step * i;
        const double log_density = -m * m / 2 - 0.5 * std::log(2 * std::numbers::pi);
        const double exponent = log_density + double(n - 2) * log_phi(m) + multiplier * multiplier / 2 -
                                multiplier * m + log_phi(m - multiplier);
        sum += (i == 0 || i == intervals ? 1 : i % 2 == 1 ? 4 : 2) * std::exp(exponent);
    }
    return 1 + double(n) * double(n - 1) * sum * step / 3;
}

// The expected largest of n numbers N(0, 1): n INT x phi(x) Phi(x)^(n-1) dx by Simpson's rule.
inline double largest_normal(int64_t n) {
    const int intervals = 2000;
    const double low = -9, high = 12, step = (high - low) / intervals;
    double sum = 0;
    for (int i = 0; i <= intervals; ++i) {
        const double x = low + step * i, below = 0.5 * std::erfc(-x / std::numbers::sqrt2);
        const double density = std::exp(-x * x / 2) / std::sqrt(2 * std::numbers::pi);
        sum += (i == 0 || i == intervals ? 1
                : i % 2 == 1             ? 4
                                         : 2) *
               x * density * std::pow(below, double(n - 1));
    }
    return double(n) * sum * step / 3;
}

// Scores cos(angle) between random directions of R^d: with c = -cos(theta) the density of theta is
// sin(theta)^(d-2), normalised. All cumulative integrals by trapezoids on one grid of theta, which errs by
// (pi / 4000)^2 / 12 or so.
inline double keys_attended_cosine(int64_t n, double multiplier, int64_t head_dim) {
    const int intervals = 4000;
    const double step = std::numbers::pi / intervals;
    double below = 0, weighted = 0, total = 0;
    std::vector<double> density, cosine;
    for (int i = 0; i <= intervals; ++i) {
        density.push_back(std::pow(std::sin(step * i), double(head_dim - 2)));
        cosine.push_back(-std::cos(step * i));
    }
    for (double f : density) total += f * step;
    double sum = 0, before = 0, before_weighted = 0;
    for (size_t i = 0; i < density.size(); ++i) {
        const double f = density[i] / total;
        const double w = f * std::exp(multiplier * (cosine[i] - 1));  // exp(A (s - 1)) keeps large A in range
        below += step * (before + f) / 2;
        weighted += step * (before_weighted + w) / 2;
        before = f;
        before_weighted = w;
        sum += step * f * std::pow(below, double(n - 2)) * std::exp(multiplier * (1 - cosine[i])) * weighted;
    }
    return 1 + double(n) * double(n - 1) * sum;
}

// The multiplier of scores of unit variance: of z, or of sqrt(d) cos (head_dim > 0). 0 where n <= C.
inline double multiplier_for(double target, int64_t n, int64_t head_dim) {
    if (double(n) <= target) return 0;
    static std::map<std::tuple<double, int64_t, int64_t>, double> known;
    const auto key = std::make_tuple(target, n, head_dim);
    const auto it = known.find(key);
    if (it != known.end()) return it->second;
    const double unit = head_dim > 0 ? std::sqrt(double(head_dim)) : 1;
    double low = 0, high = 60;
    for (int i = 0; i < 50; ++i) {
        const double middle = (low + high) / 2;
        const double keys =
            head_dim > 0 ? keys_attended_cosine(n, middle * unit, head_dim) : keys_attended_normal(n, middle);
        (keys > target ? low : high) = middle;
    }
    return known[key] = (low + high) / 2;
}

}  // namespace longreach::reference
