// How scores depend on the distance t between query and key: y = gain(t) * z + bias(t).
#pragma once

#include <cstdint>
#include <vector>

#include "model/attention_config.h"

namespace longreach::model {

struct GainBias {
    double gain = 1, bias = 0;
};

// Gain and bias of one head of `heads` at distance t >= 0, with learned coefficients at their initial values.
// For si_interp `gain` is the square u(t) instead, which si_interp_row() completes (row_square of
// AttentionSpec). The kerple kinds depend on parameters alone and are not allowed here.
GainBias distance_transform(const DistanceConfig& distance, int64_t t, int64_t head, int64_t heads);

// si_interp: w(n) of a query that counts n keys. The gain of a pair is sqrt(u(t) + w(n)); its bias is lower
// by w(n) / 2, which is the same for every key of the query.
double si_interp_row(const DistanceConfig& distance, double n);

// m_h of head h = 0 .. heads-1, for any number of heads.
std::vector<double> alibi_slopes(int64_t heads);

}  // namespace longreach::model
