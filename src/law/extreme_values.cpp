#include "law/extreme_values.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace longreach::law {

namespace {

const double log_root_two_pi = 0.5 * std::log(2 * std::numbers::pi);

// log(Phi(-u) exp(u^2 / 2)): the upper tail of N(0, 1) without its fast factor.
double log_scaled_tail(double u) {
    if (u <= 25) return std::log(std::erfc(u / std::numbers::sqrt2) / 2) + u * u / 2;
    // 1/u - 1/u^3 + 3/u^5 - ...; at u = 25 the first term left out is below 1e-15 of the first.
    double term = 1, sum = 1;
    for (int k = 1; k <= 8; ++k) {
        term *= -(2 * k - 1) / (u * u);
        sum += term;
    }
    return std::log(sum / u) - log_root_two_pi;
}

double log_normal_cdf(double x) {
    return x < 0 ? log_scaled_tail(-x) - x * x / 2 : std::log1p(-std::erfc(x / std::numbers::sqrt2) / 2);
}

// Nodes of the largest of n normals. On an equidistant grid the trapezoid rule converges exponentially for
// integrands that are smooth and vanish at both ends; 60 nodes per unit suffice up to n = 1e12.
struct MaximumGrid {
    static constexpr int nodes = 1261;
    static constexpr double low = -9, step = 21.0 / (nodes - 1);
    double at[nodes], log_density[nodes], log_below[nodes];
    MaximumGrid() {
        for (int i = 0; i < nodes; ++i) {
            at[i] = low + i * step;
            log_density[i] = -at[i] * at[i] / 2 - log_root_two_pi;
            log_below[i] = log_normal_cdf(at[i]);
        }
    }
};

// The x > 0 where a falling function with value(0) > target > 1 = value(infinity) reaches target: regula
// falsi on log(value - 1), the weight of a stuck end halved, which keeps the root between the two ends.
double solve_falling(const std::function<double(double)>& value, double target) {
    const auto excess = [&](double x) { return std::log((value(x) - 1) / (target - 1)); };
    double low = 0, high = 8;
    double at_low = excess(low), at_high = excess(high);
    while (at_high > 0 && high < 1e12) {
        low = high;
        at_low = at_high;
        high *= 2;
        at_high = excess(high);
    }
    int stuck = 0;  // +1: low moved last, -1: high moved last
    for (int i = 0; i < 200 && high - low > 1e-13 * high; ++i) {
        double x = (low * at_high - high * at_low) / (at_high - at_low);
        if (!(x > low && x < high)) x = (low + high) / 2;
        const double at_x = excess(x);
        if (std::abs(at_x) < 1e-13) return x;
        if (at_x > 0) {
            low = x;
            at_low = at_x;
            if (stuck == 1) at_high /= 2;
            stuck = 1;
        } else {
            high = x;
            at_high = at_x;
            if (stuck == -1) at_low /= 2;
            stuck = -1;
        }
    }
    return (low + high) / 2;
}

}  // namespace

double expected_largest_normal(double n) {
    if (n <= 1) return 0;
    static const MaximumGrid grid;
    double sum = 0;
    for (int i = 0; i < MaximumGrid::nodes; ++i)
        sum += grid.at[i] * std::exp(std::log(n) + grid.log_density[i] + (n - 1) * grid.log_below[i]);
    return sum * MaximumGrid::step;
}

double gaussian_inverse_largest_weight(double n, double alpha) {
    // Given the maximum m, the other n-1 are normals below m, each adding E[exp(alpha (z - m)) | z < m]:
    // 1 + n (n-1) int phi(m) Phi(m)^(n-2) exp(alpha^2/2 - alpha m) Phi(m - alpha) dm.
    // The last two factors are exp(-m^2/2) times the scaled tail at alpha - m: no large terms cancel.
    if (n <= 1) return 1;
    static const MaximumGrid grid;
    const double log_pairs = std::log(n) + std::log(n - 1);
    double sum = 0;
    for (int i = 0; i < MaximumGrid::nodes; ++i) {
        const double log_maximum = log_pairs + grid.log_density[i] + (n - 2) * grid.log_below[i];
        // What follows is at most 1, so nothing below exp(-80) can count.
        if (log_maximum < -80) continue;
        const double m = grid.at[i];
        sum += std::exp(log_maximum - m * m / 2 + log_scaled_tail(alpha - m));
    }
    return 1 + sum * MaximumGrid::step;
}

double gaussian_participation_ratio(double n, double alpha) {
    // E[sum w^2] = n int_0^inf s E[x^2 e^(-s x)] E[e^(-s x)]^(n-1) ds, x = exp(alpha z). With s = e^u:
    // n int E[g(u + alpha z)] (1 - E[h(u + alpha z)])^(n-1) du, g(v) = exp(2v - e^v), h(v) = 1 - exp(-e^v).
    // Both functions change over about one unit of v, so 0.05 of v is a fine step for z and for u.
    if (n <= 1) return 1;
    const double reach = 10;  // of z; phi(10) is 1e-22
    const double step_z = std::min(0.05, 0.05 / std::max(alpha, 1e-3)), step_u = 0.05;
    const int64_t half = static_cast<int64_t>(std::ceil(reach / step_z));
    std::vector<double> z, weight;
    for (int64_t i = -half; i <= half; ++i) {
        z.push_back(static_cast<double>(i) * step_z);
        weight.push_back(step_z * std::exp(-z.back() * z.back() / 2 - log_root_two_pi));
    }
    double sum = 0;
    // Below: E[g] <= e^(2u + 2 alpha^2) and, for the largest z that matters, e^(2u + 20 alpha). Above: the
    // power vanishes for n = 2 as late as u = 10 alpha.
    const double low = -reach * alpha - std::log(n) - 25, high = reach * alpha + 6;
    for (double u = low; u < high; u += step_u) {
        double g = 0, h = 0;
        for (size_t i = 0; i < z.size(); ++i) {
            const double s = std::exp(u + alpha * z[i]);
            if (s < 1e-20) continue;
            if (s > 700) {
                h += weight[i];
            } else {
                const double lost = -std::expm1(-s);
                h += weight[i] * lost;
                g += weight[i] * s * s * (1 - lost);
            }
        }
        if (h < 1) sum += g * std::exp((n - 1) * std::log1p(-h));
    }
    return n * sum * step_u;
}

double solve_gaussian_scale(double n, double target) {
    if (n <= target) return 0;
    return solve_falling([&](double alpha) { return gaussian_inverse_largest_weight(n, alpha); }, target);
}

CosineScores::CosineScores(int64_t head_dim, int64_t intervals)
    : step_(1.0 / static_cast<double>(intervals)), root_dim_(std::sqrt(static_cast<double>(head_dim))) {
    // The angle has density sin^(d-2). Nodes at angle = pi y^4 crowd towards cosine 1, where the largest of
    // many cosines lives; y runs from 1 to 0.
    const size_t nodes = static_cast<size_t>(intervals) + 1;
    const double power = static_cast<double>(head_dim - 2);
    cosine_.resize(nodes);
    density_.resize(nodes);
    log_below_.resize(nodes);
    for (size_t k = 0; k < nodes; ++k) {
        const double y = static_cast<double>(nodes - 1 - k) * step_;
        const double angle = std::numbers::pi * y * y * y * y;
        cosine_[k] = std::cos(angle);
        density_[k] = std::pow(std::max(0.0, std::sin(angle)), power) * y * y * y;
    }
    std::vector<double> below(nodes), above(nodes);
    for (size_t k = 1; k < nodes; ++k) below[k] = below[k - 1] + (density_[k - 1] + density_[k]) / 2;
    for (size_t k = nodes - 1; k-- > 0;) above[k] = above[k + 1] + (density_[k] + density_[k + 1]) / 2;
    const double total = below[nodes - 1];
    for (size_t k = 0; k < nodes; ++k) {
        density_[k] /= total * step_;
        log_below_[k] = below[k] < above[k] ? std::log(below[k] / total) : std::log1p(-above[k] / total);
    }
}

double CosineScores::inverse_largest_weight(double n, double alpha) const {
    // 1 + n (n-1) int f(m) F(m)^(n-2) S(m) dm with S(m) = int_{-1}^m f(s) exp(-A (m - s)) ds: one pass, in
    // which S decays from node to node and gains what lies between. f is taken as linear there and the
    // exponential exactly, so that A may be as large as it likes.
    if (n <= 1) return 1;
    const double multiplier = alpha * root_dim_;
    const double log_pairs = std::log(n) + std::log(n - 1);
    double sum = 0, s = 0;
    for (size_t k = 1; k < cosine_.size(); ++k) {
        const double x = multiplier * (cosine_[k] - cosine_[k - 1]);
        const double decay = std::exp(-x);
        double mean, slope;  // int_0^1 e^(-x (1-v)) dv and int_0^1 v e^(-x (1-v)) dv
        if (x < 1e-3) {
            mean = 1 - x / 2 + x * x / 6;
            slope = 0.5 - x / 6 + x * x / 24;
        } else {
            mean = (1 - decay) / x;
            slope = (1 - mean) / x;
        }
        s = s * decay + step_ * (density_[k - 1] * (mean - slope) + density_[k] * slope);
        const double log_maximum = log_pairs + (n - 2) * log_below_[k];
        if (log_maximum > -80) sum += density_[k] * s * std::exp(log_maximum);
    }
    return 1 + sum * step_;
}

double CosineScores::solve_scale(double n, double target) const {
    if (n <= target) return 0;
    return solve_falling([&](double alpha) { return inverse_largest_weight(n, alpha); }, target);
}

std::vector<double> solved_table(int64_t count, double target, const std::function<double(double)>& solve) {
    // Off by step^2 / 8 = 2.5e-5 times the second derivative by log n, which is below 0.1 for normal scores
    // and below max(1, alpha) / 4 for cosines from d = 16 on.
    const double step = 0.014;
    std::vector<double> table(static_cast<size_t>(count));
    const auto entry = [&](int64_t n) -> double& { return table[static_cast<size_t>(n - 1)]; };
    const int64_t beyond = target < static_cast<double>(count) ? static_cast<int64_t>(target) + 1 : count;
    const int64_t exact = std::min(count, std::max<int64_t>(64, beyond));
    for (int64_t n = 1; n <= exact; ++n) entry(n) = solve(static_cast<double>(n));
    for (int64_t from = exact; from < count;) {
        const int64_t grown = static_cast<int64_t>(static_cast<double>(from) * std::exp(step));
        const int64_t to = std::min(count, std::max(from + 1, grown));
        entry(to) = solve(static_cast<double>(to));
        const double first = std::log(static_cast<double>(from)), last = std::log(static_cast<double>(to));
        for (int64_t n = from + 1; n < to; ++n) {
            const double share = (std::log(static_cast<double>(n)) - first) / (last - first);
            entry(n) = entry(from) + share * (entry(to) - entry(from));
        }
        from = to;
    }
    return table;
}

}  // namespace longreach::law
