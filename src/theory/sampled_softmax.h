// Softmax over n random scores: the quantities of the integrals, by Monte Carlo.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace longreach::theory {

struct Estimate {
    double mean = 0, error = 0;  // error: standard error of the mean
    // How much farther below or above the true value this mean may fall than a normal one, at least
    // 1. If rare samples dominate the sum, a set without them has both a low mean and a small error.
    double stretch_below = 1, stretch_above = 1;

    // The distance of the mean from `exact` in standard errors times stretch; NaN without an error.
    double deviations(double exact) const;
};

// For at least two identically distributed values in a fixed order. The stretches come from
// quantiles of the mean over its error in 500 resamplings (of batch means if there are many
// values) and from the possible contribution of a tail that no sample has reached.
Estimate estimate_mean(std::span<const double> values);

struct SoftmaxEstimates {
    Estimate inverse_largest;  // 1 / w_max
    Estimate participation;    // sum w^2
    Estimate entropy;          // -sum w log w, nats
};

// draw(sample, z) fills z with the n scores of that sample and must depend on `sample` only. One
// result per alpha, all from the same draws. The result does not depend on the number of threads.
std::vector<SoftmaxEstimates> sampled_softmax(int64_t n, const std::vector<double>& alphas, int64_t samples,
                                              const std::function<void(int64_t, std::span<double>)>& draw);

}  // namespace longreach::theory
