// Length scales: the scores of a query that counts n keys are multiplied by f(n) = r * shape(n) + b, and all
// scores by the constant s_base.
#pragma once

#include <cstdint>
#include <vector>

#include "model/attention_config.h"

namespace longreach::model {

// Whether the law is made for cosines: it multiplies the cosine of query and key, without sqrt(head_dim).
bool acts_on_cosines(ScaleKind kind);

// Whether the formula or the initial r needs L_train.
bool uses_train_context(const ScaleConfig& scale);

// f(n) without r and b. n >= 1 is a number of keys and need not be an integer.
double scale_shape(const ScaleConfig& scale, int64_t head_dim, int64_t train_context, double n);

// Entry n-1 is the shape at n = 1 .. count. For solve_c and solve_c_cos the table is interpolated, with an
// error within 1e-5 of max(1, shape).
std::vector<double> scale_shapes(const ScaleConfig& scale, int64_t head_dim, int64_t train_context,
                                 int64_t count);

// s_base: the factor of <q, k> after the treatment of queries and keys; for qk_l2 and cosa, of their cosine.
double score_base(const AttentionConfig& attention);

// The initial r (granularity static: the only one). Fails with a usage error if init is parity and the shape
// at n = L_train / 2 is not positive.
double initial_r(const AttentionConfig& attention, int64_t train_context);

}  // namespace longreach::model
