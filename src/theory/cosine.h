// Attention over n keys whose scores are sqrt(d) times cosines of independent directions in d dimensions.
//
// A cosine is at most 1, so for bounded E[1 / w_max] the scale must grow
// like n^(2 / (d - 1)). For large d and practical n this hardly differs from
// normal scores. For the exact E[1 / w_max] see CosineScores in law/.
#pragma once

#include <cstdint>
#include <vector>

#include "law/extreme_values.h"
#include "theory/sampled_softmax.h"

namespace longreach::theory {

double cosine_participation(int head_dim, double n, double alpha);
double cosine_entropy(int head_dim, double n, double alpha);

// Number of keys from which these scores need a scale more than 1 + excess times that of normal scores for E[1 / w_max] =
// target: from there on the dimension is too small to be taken for many. NaN: not up to 1e9 keys.
double cosine_context(const law::CosineScores& scores, double target, double excess);

std::vector<SoftmaxEstimates> sampled_cosine(int head_dim, int64_t n, const std::vector<double>& alphas,
                                             int64_t samples, uint64_t seed);

}  // namespace longreach::theory
