#include "theory/gaussian.h"

#include <cmath>
#include <limits>
#include <numbers>

#include "base/rng.h"
#include "theory/score_law.h"

namespace longreach::theory {

double freezing_scale(double n) {
    return std::sqrt(2 * std::log(n));
}

double gaussian_entropy(double n, double alpha) {
    return expected_entropy(gaussian_law(alpha), n, alpha);
}

double inverse_largest_limit(double n, double r) {
    // Above 1: points of intensity e^-x, in which 1 / w_max = sum (eta_1 / eta_k)^r. Below: the sum of
    // exp(alpha z) is its mean, and the largest score fluctuates around the solution of n Phi(-z) = 1.
    if (r > 1) return r / (r - 1);
    if (r == 1) return std::numeric_limits<double>::infinity();
    return std::pow(n, (1 - r) * (1 - r)) * std::pow(4 * std::numbers::pi * std::log(n), r / 2) *
           std::tgamma(1 + r);
}

double participation_limit(double n, double r) {
    if (r >= 1) return 1 - 1 / r;
    return std::pow(n, r < 0.5 ? 2 * r * r - 1 : -2 * (1 - r) * (1 - r));
}

double entropy_limit(double n, double r) {
    return r < 1 ? (1 - r * r) * std::log(n) : 0;
}

const std::vector<ScaleRule>& scale_rules() {
    static const std::vector<ScaleRule> rules = {
        {"1", [](double) { return 1.0; }},
        {"0.4 ln n", [](double n) { return 0.4 * std::log(n); }},
        {"0.43 ln n", [](double n) { return 0.43 * std::log(n); }},
        {"ln n", [](double n) { return std::log(n); }},
        {"sqrt(2 ln(n+1))", [](double n) { return freezing_scale(n + 1); }},
        {"sqrt(2 ln(.1n+1.9))", [](double n) { return freezing_scale(0.1 * n + 1.9); }},
        {"E max, two terms",
         [](double n) {
             const double u = freezing_scale(n + 1);
             return u -
                    (std::log(std::log(n + 1)) + std::log(4 * std::numbers::pi) - 2 * std::numbers::egamma) /
                        (2 * u);
         }},
    };
    return rules;
}

std::vector<SoftmaxEstimates> sampled_gaussian(int64_t n, const std::vector<double>& alphas, int64_t samples,
                                               uint64_t seed) {
    const Rng rng(seed, Purpose::theory, (1u << 30) + static_cast<uint32_t>(n));  // no n shares numbers
    return sampled_softmax(n, alphas, samples, [&](int64_t sample, std::span<double> z) {
        const uint64_t first = static_cast<uint64_t>(sample) * z.size();
        for (size_t i = 0; i < z.size(); ++i) z[i] = rng.normal(first + i);
    });
}

}  // namespace longreach::theory
