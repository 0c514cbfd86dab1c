// Attention over n keys whose scores are sqrt(d) times cosines of independent directions in d dimensions.
//
// A cosine ends at 1: for bounded E[1 / w_max] the scale must grow like n^(2 / (d - 1)), which for large d
// and the n of practice is hardly told from normal scores. Exact E[1 / w_max]: CosineScores in law/.
#pragma once

#include <cstdint>
#include <vector>

#include "theory/sampled_softmax.h"

namespace longreach::theory {

double cosine_participation(int head_dim, double n, double alpha);
double cosine_entropy(int head_dim, double n, double alpha);

std::vector<SoftmaxEstimates> sampled_cosine(int head_dim, int64_t n, const std::vector<double>& alphas,
                                             int64_t samples, uint64_t seed);

}  // namespace longreach::theory
