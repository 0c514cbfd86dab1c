// Softmax over n scores drawn at random: the same quantities as the integrals, by Monte Carlo.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace longreach {

struct Estimate {
    double mean = 0, error = 0;  // error: standard error of the mean
};

struct SoftmaxEstimates {
    Estimate inverse_largest;  // 1 / w_max
    Estimate participation;    // sum w^2
    Estimate entropy;          // -sum w log w, nats
};

// `draw(sample, z)` fills z with the n scores of that sample and must depend on `sample` only. One result per
// alpha, all from the same draws. Equal for any number of threads.
std::vector<SoftmaxEstimates> sampled_softmax(int64_t n, const std::vector<double>& alphas, int64_t samples,
                                              const std::function<void(int64_t, std::span<double>)>& draw);

}  // namespace longreach
