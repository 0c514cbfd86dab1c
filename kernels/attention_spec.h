// Everything that decides attention scores, as plain data both devices take.
//
// For query i and key j of one sequence, head h:
//     z_ij = scale * <q_i, k_j>                    far pairs: scale * <q'_i, k'_j>
//     z_ij = scale * sum over c of q_ic k_jc exp(C_ic - C_jc)         with sums by channel
//     z_ij = softcap * tanh(z_ij / softcap)        with a softcap
//     z_ij = row_factor_h(i) * z_ij
//     y_ij = gain_h(t) * z_ij + bias_h(t) + c_h(i) - c_h(j),         t = i - j >= 0
//     P_ij = exp(y_ij) / (sum_j exp(y_ij) + exp(sink_h)), j over the visible keys [row_start_i, i]
//
// or, with broken sticks, P_ij = s(y_ij) prod_(j<k<i) (1 - s(y_ik)), s(y) = 1 / (1 + exp(-y)), j < i,
// or, with entmax, P_ij = max(0, (alpha - 1) (y_ij - theta_i))^(1 / (alpha - 1)), theta_i such that the row adds up to 1.
//
// Causality, sliding windows, chunks and documents are one thing: the first visible key of a row.
// Absent parts cost nothing.
#pragma once

#include "kernels/tensor.h"

namespace longreach {

// Scores of an index, which one small set of heads computes for all heads of attention:
//     I_ij = scale * sum over the index's heads of w_i relu(<q_i, k_j>)
struct IndexScores {
    Tensor queries{};  // f32 [N, heads * head_dim]
    Tensor keys{};     // f32 [N, head_dim], or rows of a cache as attention's keys are
    Tensor weights{};  // f32 [N, heads]
    int64_t heads = 0, head_dim = 0;
    float scale = 1.0f;
    explicit operator bool() const { return heads > 0; }
};

// How the scores of a query become weights.
enum class Normaliser { softmax, stick_breaking, entmax };

struct AttentionSpec {
    int64_t batch = 0;     // B sequences
    int64_t length = 0;    // T positions each
    int64_t heads = 0;     // H query heads
    int64_t kv_heads = 0;  // heads / kv_heads query heads share a key/value head, in consecutive order
    int64_t head_dim = 0;  // d
    float scale = 1.0f;    // s_base, usually 1/sqrt(d)
    float softcap = 0.0f;  // 0: none

    // i32 [B, T]: first visible key of each query, non-decreasing along a sequence, row_start[i] <= i, counted from the
    // position of the first query: negative if keys precede it (Ops::attention). Empty: every earlier key is visible.
    Tensor row_start{};

    // f32 [1 or H, N]: factor of every score of a query, any sign, 0 allowed. Empty: 1.
    Tensor row_factor{};

    // f32 [1 or H, R] each, R >= T: gain and bias by distance, stored backwards
    // (entry R-1-t belongs to distance t) so that ascending keys of one query read ascending memory.
    // Both present or both empty (gain 1, bias 0).
    Tensor distance_gain{};
    Tensor distance_bias{};
    // k, if bias = k (gain^2 - 1) at every distance, as scale-invariant attention has it with k = -decay: kernels may then
    // compute biases instead of reading them. 0: no such k is known.
    float bias_of_gain = 0.0f;
    // f32 [N], with distance tables: w_i. The gain table then holds squares u(t), the gain of a pair is
    // sqrt(max(0, u(t) + w_i)), and its bias is lower by w_i / 2.
    Tensor row_square{};

    // f64 [H, N]: c, running sums along each sequence of the logarithms of forget gates. Only differences
    // count. A kernel splits c into two f32, high + low, and adds (high_i - high_j) + (low_i - low_j): an error
    // of at most 2^-22 |c_i - c_j| + 2^-45 max |c|, whatever tiles the pair lies in. Empty: 0.
    Tensor forget{};

    // f64 [H*d, N]: C of each channel of each head, running sums along each sequence of numbers that are at most 0; as in
    // `forget`, only differences count. With the softmax, on a CPU, in f32; without softcap, row squares, far pairs, row
    // maxima, top_k and gradients of distance tables. Empty: 0.
    Tensor channel_sums{};
    // f32, channel_floats() of them: what a pass over more than one query makes of the keys. Its contents mean nothing after it.
    Tensor channel_memory{};

    // f32 [H]: a score that takes part in the softmax or entmax and carries no value. Empty: none (as if -infinity).
    Tensor sink{};

    // Forward only: pairs at distance far_from or more take their score from these instead of q and k.
    Tensor far_queries{}, far_keys{};  // like q and k
    int64_t far_from = 0;

    // stick_breaking: each visible key, from the nearest on, takes the share s(y) of what nearer ones left. A query does
    // not see its own key; without another o = 0. lse is the log of what is left in the end. Without sinks, row
    // squares, forget sums, far pairs and row maxima.
    // entmax: theta, the score at which a weight becomes exactly 0, takes the place of lse. CPUs have it, without row maxima.
    Normaliser normaliser = Normaliser::softmax;
    float alpha = 1.5f;  // of entmax, 1.01 to 2
    // f32 [H]: alpha of each head is 1 + max(0.01, 1 / (1 + exp(-x))). Empty: alpha.
    Tensor alpha_logit{};

    // Forward only, on a CPU, with the softmax and without row maxima: of the visible keys a query attends to this many,
    // those with the largest y_ij, of equal ones the nearest. 0: to all. With top_k_block, keys are taken in blocks of
    // top_k_block positions, top_k / top_k_block blocks in all: the query's own and those with the largest mean y_ij.
    int64_t top_k = 0, top_k_block = 0;
    // With top_k, not in blocks: keys are chosen by I_ij instead of y_ij, the same ones for all heads.
    IndexScores index{};

    // Row maxima, if a forward pass computes them, are of |z_ij| instead of z_ij.
    bool absolute_maxima = false;
};

// Of AttentionSpec::channel_memory, for any division of `keys` keys into `sequences`: the keys times a factor, and two rows of
// f64 for every block of keys, from a multiple of 64 bytes on.
inline constexpr int64_t channel_block = 32;
inline int64_t channel_floats(const AttentionSpec& s, int64_t sequences, int64_t keys) {
    return s.heads * s.head_dim * (keys + 4 * (keys / channel_block + sequences)) + 16;
}

// Gradients of what AttentionSpec holds; empty: not computed.
struct AttentionGradients {
    Tensor row_factor{};  // f32 [H, N], =
    Tensor distance_gain{},
        distance_bias{};    // like the tables, =; distances below T only. Without row_square
    Tensor forget{};        // f32 [H, N], =: at c, the sum of dy over row n less that over column n
    Tensor channel_sums{};  // f32 [H*d, N], =: at C, q dq - k dk, of k what this head alone gives
    Tensor sink{};          // f32 [H], +=
    Tensor alpha_logit{};   // f32 [H], +=
};

}  // namespace longreach
