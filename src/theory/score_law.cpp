#include "theory/score_law.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numbers>

#include "base/error.h"

namespace longreach::theory {

namespace {

// Integrands are smooth in log s and in alpha z on a scale of about one. exp(-e^v) stays bounded for |Im v|
// < pi/2, so the error of the trapezoid rule with this step, exp(-2 pi (pi/2) / step), is below rounding.
constexpr double step = 0.15;

// Moments at one s: the means of 1 - e^(-s x) and, times s x e^(-s x) each, of 1, s x, alpha z.
struct AtScale {
    double lost = 0, first = 0, second = 0, first_log = 0;
};

AtScale at_scale(const ScoreLaw& law, double alpha, double log_s) {
    AtScale sum;
    for (size_t i = 0; i < law.at.size(); ++i) {
        const double p = law.probability[i], s = std::exp(log_s + alpha * law.at[i]);
        if (s > 700) {
            sum.lost += p;
            continue;
        }
        const double lost = -std::expm1(-s), first = p * s * (1 - lost);
        sum.lost += p * lost;
        sum.first += first;
        sum.second += first * s;
        sum.first_log += first * alpha * law.at[i];
    }
    sum.lost = std::min(sum.lost, 1.0);
    return sum;
}

// int f(log s, at_scale) d log s. Below the range n x s < e^(-25) even for the largest score; above it
// e^(-s x) has vanished even for the smallest.
template <class F>
double over_scales(const ScoreLaw& law, double n, double alpha, const F& f) {
    check(alpha <= law.finest * (1 + 1e-12), "law with nodes for alpha {} asked for {}", law.finest, alpha);
    const double low = -alpha * law.at.back() - std::log(n) - 25, high = -alpha * law.at.front() + 6;
    const int64_t count = static_cast<int64_t>(std::ceil((high - low) / step));
    double sum = 0;
    for (int64_t i = 0; i <= count; ++i) {
        const double log_s = low + static_cast<double>(i) * step;
        sum += f(log_s, at_scale(law, alpha, log_s));
    }
    return sum * step;
}

}  // namespace

ScoreLaw gaussian_law(double finest_alpha) {
    const double reach = 10;  // probability beyond: 1e-23
    const double dz = step / std::max(1.0, finest_alpha);
    const int64_t half = static_cast<int64_t>(std::ceil(reach / dz));
    ScoreLaw law;
    law.finest = finest_alpha;
    for (int64_t i = -half; i <= half; ++i) {
        const double z = static_cast<double>(i) * dz;
        law.at.push_back(z);
        law.probability.push_back(dz * std::exp(-z * z / 2) / std::sqrt(2 * std::numbers::pi));
    }
    return law;
}

ScoreLaw cosine_law(int head_dim, double finest_alpha) {
    // The angle has density sin^(d-2), which for odd d has a corner at both ends. With angle = pi t - sin(2
    // pi t) / 2 the ends are flat to third order and the corner is of order 3 (d - 1) in t.
    const double pi = std::numbers::pi, root = std::sqrt(static_cast<double>(head_dim));
    const double steepest = 2 * pi * root * std::max(1.0, finest_alpha);  // of alpha z by t
    const int64_t intervals = std::max<int64_t>(200, static_cast<int64_t>(std::ceil(steepest / step)));
    ScoreLaw law;
    law.finest = finest_alpha;
    double total = 0;
    for (int64_t i = intervals - 1; i > 0; --i) {
        const double t = static_cast<double>(i) / static_cast<double>(intervals);
        const double angle = pi * t - std::sin(2 * pi * t) / 2;
        const double p = std::pow(std::sin(angle), head_dim - 2) * (1 - std::cos(2 * pi * t));
        if (p < 1e-40) continue;
        law.at.push_back(root * std::cos(angle));
        law.probability.push_back(p);
        total += p;
    }
    for (double& p : law.probability) p /= total;
    return law;
}

double expected_participation(const ScoreLaw& law, double n, double alpha) {
    // n int s E[x^2 e^(-s x)] E[e^(-s x)]^(n-1) ds
    if (n <= 1) return 1;
    return n * over_scales(law, n, alpha, [n](double, const AtScale& a) {
               return a.lost < 1 ? a.second * std::exp((n - 1) * std::log1p(-a.lost)) : 0.0;
           });
}

double expected_entropy(const ScoreLaw& law, double n, double alpha) {
    // H = log S - sum x log x / S. The first by log S = int (e^(-s) - e^(-s S)) / s ds, the second as above.
    if (n <= 1) return 0;
    return over_scales(law, n, alpha, [n](double log_s, const AtScale& a) {
        const double log_kept = std::log1p(-a.lost);  // -inf where nothing is kept
        const double log_of_sum = std::expm1(-std::exp(log_s)) - std::expm1(n * log_kept);
        return log_of_sum - (a.lost < 1 ? n * a.first_log * std::exp((n - 1) * log_kept) : 0.0);
    });
}

}  // namespace longreach::theory
