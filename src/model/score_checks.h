// Rules of written scores (`score`, `eval.score`) that need the lengths of training and evaluation.
#pragma once

#include <cstdint>
#include <vector>

#include "config/problems.h"
#include "model/post_hoc.h"

namespace longreach::model {

struct ModelConfig;

// At every n and t the score and its derivatives are finite in f32, and every parameter changes some score: else a
// problem. A bias that f32 holds coarsely where keys have weight, and a term that is not finite at some n up to 65,536: a
// warning. lengths: of training and evaluation, rising.
void check_scores(const ModelConfig& model, const std::vector<int64_t>& lengths, config::Problems& problems);

// The same of what `change` applies to a layer, at the lengths at which it acts.
void check_score_change(const ModelConfig& model, const PostHocConfig& change, int64_t layer,
                        const std::vector<int64_t>& lengths, config::Problems& problems);

}  // namespace longreach::model
