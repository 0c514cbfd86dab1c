// Length scales: the factor f(n) = r * shape(n) + b by which the scores of a query that counts n keys are
// multiplied, and the constant s_base of all scores.
#pragma once

#include <cstdint>
#include <vector>

#include "model/attention_config.h"

namespace longreach::model {

// Laws made for cosines: they multiply the cosine of query and key itself, with no sqrt(head_dim).
bool acts_on_cosines(ScaleKind kind);

// Whether the formula or the first r needs L_train.
bool uses_train_context(const ScaleConfig& scale);

// f(n) without r and b, n >= 1 (1-based count of keys; whole or not).
double scale_shape(const ScaleConfig& scale, int64_t head_dim, int64_t train_context, double n);

// Entry n-1 is the shape at n = 1 .. count. For solve_c and solve_c_cos the table is an interpolation, within
// 1e-5 of max(1, shape).
std::vector<double> scale_shapes(const ScaleConfig& scale, int64_t head_dim, int64_t train_context,
                                 int64_t count);

// s_base: the factor of <q, k> after the treatment of queries and keys. qk_l2 and cosa: of their cosine.
double score_base(const AttentionConfig& attention);

// The first r (granularity static: the only one). A usage error where init is parity and the shape at
// n = L_train / 2 is not positive.
double initial_r(const AttentionConfig& attention, int64_t train_context);

}  // namespace longreach::model
