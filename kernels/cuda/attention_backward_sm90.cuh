// What the passes of attention's backward for Hopper share: arguments, the terms of a query, tiles. attention_backward_sm90.cu
// says what the passes compute.
#pragma once

#include "kernels/cuda/attention_sm90.cuh"

namespace longreach::cuda {

struct Sm90BackwardArguments {
    CUtensorMap q, k, v, dout;  // in boxes of the own tile or the ones met
    CUtensorMap dk, dv, dq;     // in boxes of 64 rows
    AttentionInput<bf16> a;
    const float* lse;
    int64_t lse_step;
    const float* delta;        // [H, N]
    float *dfactor, *dforget;  // [H, N] or null
    int64_t dfactor_step, dforget_step;
    WorkList list;
};

// Of a query: y2 = gain multiplier s + bias. origin: lse2, larger by c where gains_and_addends() gives y2 + c; with forget
// sums the first part of the query's sum, whose second part then carries -lse2. The product with dS lacks ln(2) of the
// slope, which dK and dQ get in the end. A query past the end has P = 2^-inf = 0.
struct alignas(16) Terms {
    float multiplier, origin, delta;
    int first_visible;
};
// second: the second part of the forget sum, less lse2.
template <ScoreMode mode>
DEVICE Terms terms_of(const Sm90BackwardArguments& x, int sequence, int head, int i, float* second) {
    const AttentionInput<bf16>& a = x.a;
    const bool exists = i < a.length;
    const int64_t n = static_cast<int64_t>(sequence) * a.length + i;
    Terms of{0.0f, HUGE_VALF, 0.0f, a.first_visible(sequence, exists ? i : a.length - 1)};
    if (exists) {
        const float lse = x.lse[head * x.lse_step + n];
        of.multiplier = a.scale * score_row(a, sequence, head, i).factor * log2_e;
        of.origin = mode == ScoreMode::gain ? fmaf(lse, log2_e, a.bias_of_gain) : lse * log2_e;
        of.delta = x.delta[head * a.tokens() + n];
    }
    if constexpr (mode == ScoreMode::forget) {
        const float2 sum = split_sum(forget_sum(a, sequence, head, i));
        *second = sum.y - of.origin;
        of.origin = sum.x;
    }
    return of;
}

// P of a pair whose distance has this gain and addend; with forget sums the addend is their difference less lse2.
template <ScoreMode mode>
DEVICE float share(float s, const Terms& of, float gain, float addend) {
    if constexpr (mode == ScoreMode::forget) return exp2_approx(fmaf(s, of.multiplier, addend));
    if constexpr (mode == ScoreMode::gain)
        return exp2_approx(fmaf(gain, fmaf(s, of.multiplier, addend), -of.origin));
    if constexpr (mode == ScoreMode::table)
        return exp2_approx(fmaf(gain, s * of.multiplier, addend) - of.origin);
    return exp2_approx(fmaf(s, of.multiplier, -of.origin));
}

template <int D>
struct Sm90Backward {
    static constexpr int groups = 2, own = 128, threads = 128 * (groups + 1);
    static constexpr int queries_met = D == 64 ? 96 : 64, query_stages = 2;  // by the key pass
    static constexpr int keys_met = D == 64 ? 128 : 64, key_stages = 3;      // by the query pass
};

// What the gradients of a tile of scores need besides products: its table or the forget sums of its columns, and of the
// thread's two rows their forget sums and the sums of dY along them.
template <class Table, class Columns>
struct ScoreParts {
    const Table* table;
    const Columns* columns;
    SumsOfRows own;
    float along[2] = {};
    // The gradient at the forget sums of rows `row` and `row` + 8: less the sums along keys (negative), which comes first,
    // then plus those along queries.
    DEVICE void finish(const Sm90BackwardArguments& x, int sequence, int head, int row, bool negative) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            const float total = lanes_sum(along[r], 4);
            const int i = row + 8 * r;
            along[r] = 0.0f;
            if (!x.dforget || threadIdx.x % 4 != 0 || i >= x.a.length) continue;
            float& to = x.dforget[head * x.dforget_step + static_cast<int64_t>(sequence) * x.a.length + i];
            to = negative ? -total : to + total;
        }
    }
};

}  // namespace longreach::cuda
