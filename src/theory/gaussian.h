// Attention over n keys whose scores are independent N(0, 1): integrals, limits and samples.
//
// alpha multiplies the scores, and alpha = r sqrt(2 log n). The scores freeze at r
// = 1: above it a few keys take all the weight, below it their number grows with n.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "theory/sampled_softmax.h"

namespace longreach::theory {

double freezing_scale(double n);  // sqrt(2 log n)

double gaussian_entropy(double n, double alpha);  // E[-sum w log w], nats

// Leading order for n -> infinity at fixed r. Convergence is slow: use these for shapes, not values.
double inverse_largest_limit(double n, double r);  // E[1 / w_max], r < 1 and r > 1; infinite at r = 1
double participation_limit(double n, double r);    // r > 1: the limit; below: the power of n alone
double entropy_limit(double n, double r);          // (1 - r^2) log n; 0 from r = 1 on

// Laws for alpha as a function of n, with the names used in tables.
struct ScaleRule {
    std::string name;
    double (*alpha)(double n);
};
const std::vector<ScaleRule>& scale_rules();

std::vector<SoftmaxEstimates> sampled_gaussian(int64_t n, const std::vector<double>& alphas, int64_t samples,
                                               uint64_t seed);

}  // namespace longreach::theory
