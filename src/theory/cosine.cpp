#include "theory/cosine.h"

#include <cmath>
#include <limits>

#include "base/rng.h"
#include "theory/score_law.h"

namespace longreach::theory {

namespace {

// The squared length of a normal vector in `count` dimensions, from count/2 uniform numbers (and a normal one
// if count is odd): -2 log U is the squared length in two.
double squared_length(const Rng& rng, uint64_t first, int count) {
    double sum = 0, product = 1;
    for (int i = 0; i < count / 2; ++i) {
        product *= 1 - rng.uniform(first + static_cast<uint64_t>(i));
        if (product < 1e-200) {
            sum -= 2 * std::log(product);
            product = 1;
        }
    }
    sum -= 2 * std::log(product);
    if (count % 2) {
        const double z = rng.normal(first + static_cast<uint64_t>(count / 2));
        sum += z * z;
    }
    return sum;
}

}  // namespace

double cosine_participation(int head_dim, double n, double alpha) {
    return expected_participation(cosine_law(head_dim, alpha), n, alpha);
}

double cosine_entropy(int head_dim, double n, double alpha) {
    return expected_entropy(cosine_law(head_dim, alpha), n, alpha);
}

double cosine_context(const law::CosineScores& scores, double target, double excess) {
    const auto exceeds = [&](double log_n) {
        const double n = std::exp(log_n);
        const double alpha = (1 + excess) * law::solve_gaussian_scale(n, target);
        return scores.inverse_largest_weight(n, alpha) > target;
    };
    double below = std::log(target), above = std::log(1e9);
    if (!exceeds(above)) return std::numeric_limits<double>::quiet_NaN();
    while (above - below > 1e-10) {
        const double middle = (below + above) / 2;
        (exceeds(middle) ? above : below) = middle;
    }
    return std::exp(above);
}

std::vector<SoftmaxEstimates> sampled_cosine(int head_dim, int64_t n, const std::vector<double>& alphas,
                                             int64_t samples, uint64_t seed) {
    const Rng rng(seed, Purpose::theory, (2u << 30) + static_cast<uint32_t>(n));
    const double root = std::sqrt(static_cast<double>(head_dim));
    // Numbers per key: one along the query, the rest for the length across it.
    const uint64_t per_key = static_cast<uint64_t>(1 + head_dim / 2);
    return sampled_softmax(n, alphas, samples, [&](int64_t sample, std::span<double> z) {
        const uint64_t first = static_cast<uint64_t>(sample) * z.size() * per_key;
        for (size_t i = 0; i < z.size(); ++i) {
            const uint64_t at = first + i * per_key;
            const double along = rng.normal(at), across = squared_length(rng, at + 1, head_dim - 1);
            z[i] = root * along / std::sqrt(along * along + across);
        }
    });
}

}  // namespace longreach::theory
