// Softmax over n scores drawn at random: the same quantities as the integrals, by Monte Carlo.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace longreach::theory {

struct Estimate {
    double mean = 0, error = 0;  // error: standard error of the mean
    // How much farther below or above the true value this mean may fall than a normal one, at least 1: where
    // rare samples carry the sum, a set without them has both a low mean and a small error.
    double stretch_below = 1, stretch_above = 1;

    // How far the mean is from `exact`, in standard errors times stretch; NaN without an error.
    double deviations(double exact) const;
};

// Of equally distributed values in a fixed order, at least two. The stretches are quantiles of the mean over
// its error in 500 resamplings (of batch means if there are many values), and what a tail that no sample has
// reached may add to the mean.
Estimate estimate_mean(std::span<const double> values);

struct SoftmaxEstimates {
    Estimate inverse_largest;  // 1 / w_max
    Estimate participation;    // sum w^2
    Estimate entropy;          // -sum w log w, nats
};

// `draw(sample, z)` fills z with the n scores of that sample and must depend on `sample` only. One result per
// alpha, all from the same draws. Equal for any number of threads.
std::vector<SoftmaxEstimates> sampled_softmax(int64_t n, const std::vector<double>& alphas, int64_t samples,
                                              const std::function<void(int64_t, std::span<double>)>& draw);

}  // namespace longreach::theory
