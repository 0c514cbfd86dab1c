// Rotary frequencies as trained, and as changed by an evaluation beyond the trained length.
#pragma once

#include <cstdint>
#include <vector>

#include "model/attention_config.h"
#include "model/post_hoc.h"

namespace longreach::model {

// theta of every rotated channel pair (m, m + d/2), m = 0 .. size-1; pairs past the end are not rotated.
std::vector<double> rotary_frequencies(const PositionConfig& position, int64_t head_dim);

struct RotaryPlan {
    std::vector<double> theta;  // like rotary_frequencies; angle = position * theta
    // Pairs at distance far_from or more turn query i by (far_query_offset + far_query_rate * i) * theta and
    // key j by far_key_rate * j * theta instead.
    bool far = false;
    int64_t far_from = 0;
    double far_query_offset = 0, far_query_rate = 0, far_key_rate = 0;
    double logit_factor = 1;  // of all scores
    bool operator==(const RotaryPlan&) const = default;
};

// The rotary plan of a layer at an evaluation length. Up to L_train, and in layers that rotate nothing, it
// is the plan of training.
//
// In NTK and YaRN formulas d is the number of rotated channels D = 2R, and the base is the one that gives
// rope over D channels the same frequencies: base^(D/head_dim) if theta_m = base^(-2m/head_dim), and
// base^(D/(D-2)) for linear spacing, theta_m = base^(-m/(R-1)). Then for every spacing `ntk` multiplies
// theta_m by k^(-m/(R-1)) (linear spacing: base becomes k * base) and slows the slowest pair k times, as it
// does in full rope.
RotaryPlan plan_rotary(const PositionConfig& position, int64_t head_dim, const PostHocConfig& post_hoc,
                       int64_t train_context, int64_t length);

}  // namespace longreach::model
