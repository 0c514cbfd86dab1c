// Everything that decides attention scores, as plain data both devices take.
//
// For query i and key j of one sequence, head h (spec stages 6-11):
//     z_ij = scale * <q_i, k_j>
//     y_ij = gain_h(t) * z_ij + bias_h(t),     t = i - j >= 0
//     P_ij = softmax over the visible keys j in [row_start_i, i]
// Causality, sliding windows, chunks and documents are one thing: the first visible key of a row.
#pragma once

#include "kernels/tensor.h"

namespace longreach {

struct AttentionSpec {
    int64_t batch = 0;     // B sequences
    int64_t length = 0;    // T positions each
    int64_t heads = 0;     // H query heads
    int64_t kv_heads = 0;  // heads / kv_heads query heads share a key/value head, in consecutive order
    int64_t head_dim = 0;  // d
    float scale = 1.0f;    // s_base, usually 1/sqrt(d)

    // i32 [B, T]: first visible key of each query, non-decreasing along a sequence, row_start[i] <= i.
    // Empty: 0 for every row.
    Tensor row_start{};

    // f32 [tables, R], R >= T: gain and bias by distance, stored backwards (entry R-1-t belongs to distance
    // t) so that ascending keys of one query read ascending memory. One table for all heads (tables = 1) or
    // one per head. Both present or both empty (gain 1, bias 0).
    Tensor distance_gain{};
    Tensor distance_bias{};
};

}  // namespace longreach
