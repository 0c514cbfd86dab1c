// Operands of operations other than tensors, as plain data for every device; attention_spec.h has the rest.
#pragma once

#include <algorithm>

#include "kernels/attention_spec.h"
#include "kernels/law_program.h"
#include "kernels/tensor.h"

namespace longreach {

enum class Write { set, add };

enum class NormKind { rms, layer };
struct NormSpec {
    NormKind kind = NormKind::rms;
    float eps = 1e-6f;
};

enum class Activation { gelu, gelu_tanh, swiglu, geglu_tanh, silu };
inline bool is_gated(Activation kind) {  // it has two inputs
    return kind == Activation::swiglu || kind == Activation::geglu_tanh;
}

// Treatment of the heads of queries, keys or values after projection: optional norm over each head's d
// channels, optional gain and bias, then rotary.
enum class HeadNorm { none, rms, layer };
struct HeadSpec {
    int64_t length = 0;  // T: position of token n is n % T
    int64_t heads = 0, head_dim = 0;
    HeadNorm norm = HeadNorm::none;
    float eps = 0.0f;
    Tensor log_eps{};       // f32 [1 or heads]: eps = exp(log_eps), learned; empty: eps above. rms only
    Tensor gain{}, bias{};  // f32 [d], shared by the heads; layer: both; rms: gain or none
    // f32 [R, pairs], R >= T: cos and sin of the angle of the first `pairs` channel pairs (m, m + d/2) at
    // each position. Pairs past the table keep their values. Empty: no rotary at all.
    Tensor cosine{}, sine{};
    // G: the tables have the columns of G heads side by side, each for H/G consecutive heads of x.
    int64_t angle_heads = 1;
};

// What makes decays and betas of logits; Ops::delta_gates has the formulas.
struct DeltaGateSpec {
    Tensor a_log{}, bias{};  // f32 [H], [W]
    float beta_max = 1;
};

// The gated delta rule of H heads; Ops::delta_rule has its recurrence.
inline constexpr int64_t delta_chunk =
    64;  // positions of a chunk; its first state is saved for the backward pass
struct DeltaSpec {
    int64_t batch = 0, length = 0, heads = 0;    // B, T, H
    int64_t key_dim = 0, value_dim = 0;          // d, e: channels of a head's keys and values
    float query_scale = 1.0f, key_scale = 1.0f;  // factors of q and k where they are read
    bool continues = false;                      // the first state is read instead of zero
    // A sequence starts from the last state of the one before it in the batch, where gradients end; a CPU only.
    bool chained = false;
    bool additive = false;  // u = beta v: values are added, nothing is corrected
    Tensor doc_start{};     // i32 [B, T]: states start from zero there; empty: only at 0
    Tensor erase{};         // [N, H*d]: keys that read the state, times key_scale; empty: k
    Tensor derase{};        // the gradient there, written by the backward pass
    int64_t segments = 0;   // of a sequence that a GPU goes through at once, at most; 0: by the shape
};
// Chunks of a sequence.
inline constexpr int64_t delta_chunks(int64_t length) {
    return (length + delta_chunk - 1) / delta_chunk;
}

// FLOPs of a position: three products with the state, and within a chunk of c positions two triangles of scores,
// one that is solved and one that is read. Additive: two products with the state, one triangle, which is read.
inline constexpr double delta_flops_per_token(int64_t heads, int64_t key_dim, int64_t value_dim,
                                              bool additive) {
    const double d = static_cast<double>(key_dim), e = static_cast<double>(value_dim);
    const double c = static_cast<double>(delta_chunk);
    return static_cast<double>(heads) * (additive ? 4 * d * e + c * (d + e) : 6 * d * e + 2 * c * (d + e));
}

// 2-simplicial attention of H heads of d channels; Ops::simplicial has the weights.
struct SimplicialSpec {
    int64_t batch = 0, length = 0;          // B sequences of T queries
    int64_t heads = 0, head_dim = 0;        // H, d
    int64_t window = 0, second_window = 0;  // positions that the first and the second key of a pair are from
    float scale = 1.0f;                     // of the products
    Tensor doc_start{};  // i32 [B, T]: no key before it, counted from the first query; empty: all
    // Where a sequence has more keys than queries: rows of its keys, and the place of the first query among them.
    int64_t room = 0, position = 0;
    int64_t rows() const { return room > 0 ? room : length; }
};

struct SimplicialKeys {
    Tensor k, v, k2, v2;
};

// Pairs of keys that a query sees, on average over a sequence.
inline double simplicial_pairs(int64_t length, int64_t window, int64_t second_window) {
    const int64_t all =
        std::min(length, std::max(window, second_window));  // from there on all see equally many
    const auto pairs = [&](int64_t i) {
        return static_cast<double>(std::min(i, window)) * static_cast<double>(std::min(i, second_window));
    };
    double sum = pairs(all) * static_cast<double>(length - all);
    for (int64_t i = 1; i <= all; ++i) sum += pairs(i);
    return sum / static_cast<double>(length);
}

// A gate on a value o: factor * sigmoid(u) * o or, times_input, factor * u * sigmoid(u) * o.
struct GateSpec {
    float factor = 1.0f;
    bool times_input = false;
    GateSpec(float by = 1.0f, bool times_u = false) : factor(by), times_input(times_u) {}
};

// The least square of a value's length in Ops::exclude_own_value: a zero value takes nothing away.
inline constexpr float own_value_floor = 1e-24f;

// A mixing coefficient: offset + scale * param[0]; param may be empty.
struct Coefficient {
    Tensor param{};
    float scale = 0.0f, offset = 1.0f;
};

enum class Softcap { none, tanh, sigmoid };
// Loss head on logits x: capped y = cap*tanh(x/cap), or cap*sigmoid((x + shift)/temperature).
// loss = LSE(y) - y[target] + z_loss * LSE(y)^2.
struct LossSpec {
    Softcap softcap = Softcap::none;
    float cap = 0, shift = 0, temperature = 1;
    float z_loss = 0;
    float gradient_scale = 0;  // multiplies dlogits, usually 1 / tokens of the step
    Tensor weights{};          // f32 [n], multiply dlogits by row; empty: 1
};

struct AdamSlot {
    Tensor param, gradient, first, second;      // f32, same count
    float learning_rate = 0, weight_decay = 0;  // decoupled: param *= 1 - learning_rate * weight_decay
};
struct AdamSpec {
    float beta1 = 0.9f, beta2 = 0.95f, eps = 1e-8f;
    int64_t step = 1;             // 1-based, for bias correction
    float gradient_scale = 1.0f;  // clipping factor
};

struct MuonSlot {
    Tensor param, gradient, momentum;  // f32 [rows, cols]
    float learning_rate = 0;           // with the shape factor folded in
    float weight_decay = 0;            // param *= 1 - weight_decay (learning rate folded in)
};
struct MuonSpec {
    float momentum = 0.95f;
    bool nesterov = true;
    bool averaged = false;        // false: M = mu M + G; true: M = mu M + (1 - mu) G
    int iterations = 5;           // Newton-Schulz
    float gradient_scale = 1.0f;  // clipping factor
};

}  // namespace longreach
