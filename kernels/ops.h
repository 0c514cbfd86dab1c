// The only door to hardware: every operation a step needs, forward directly above backward.
//
// Shapes: B sequences, T positions, N = B*T tokens, C width, H heads, G key/value heads, d head size, F mlp
// width, V vocabulary, Q = (H + 2G)*d columns of the fused query|key|value matrix.
//
// Conventions
//   - Argument order: outputs, saved, inputs, scalars.
//   - "=" overwrites an output, "+=" accumulates into it. Gradients of parameters always accumulate.
//   - Matrices of parameters have shape [out, in]; y = x w^T.
//   - Results depend neither on the number of threads nor on the schedule: every reduction has a fixed
//     shape and order.
//   - Activations, their gradients and the matrices of products are of the device's type (DeviceTraits);
//     weights and their gradients, statistics, losses and tables are f32 everywhere; scalar sums f64.
#pragma once

#include <functional>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/attention_spec.h"
#include "kernels/row_statistics.h"
#include "kernels/tensor.h"

namespace longreach {

enum class Write { set, add };

enum class NormKind { rms, layer };
struct NormSpec {
    NormKind kind = NormKind::rms;
    float eps = 1e-6f;
};

enum class Activation { gelu, gelu_tanh, swiglu };

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
};

// f_h(i) = r_h shape(n) + b_h with n = i - start_i + 1 keys counted for query i.
struct RowFactorSpec {
    int64_t length = 0;  // T
    Tensor shape{};      // f32 [R], entry n - 1 belongs to n; R >= T
    Tensor start{};      // i32 [B, T]: where the count starts; empty: 0
    Tensor r{}, b{};     // f32 [rows of the factor]; empty: the constants
    float constant_r = 1.0f, constant_b = 0.0f;
};

// Distance tables that depend on learned numbers. Empty tensors: the constants.
enum class DistanceForm {
    scale_invariant,  // m = 2 log(1 + t/tau): gain sqrt(1 + m), bias -decay m
    log_bias,         // gain 1, bias -decay log(1 + t/tau)
    kerple_log,       // gain 1, bias -p_h log(1 + a_h t), p and a raised to 0.01
    kerple_power,     // gain 1, bias -a_h t^p_h, a raised to 0.01, p held in [0.01, 2]
};
struct DistanceFormSpec {
    DistanceForm form = DistanceForm::scale_invariant;
    int64_t length = 0;  // distances 0 .. length-1 are filled
    Tensor log_tau{};    // f32 [1]
    Tensor decay{};      // f32 [1]
    Tensor p{}, a{};     // f32 [H], kerple
    float tau = 1.0f, constant_decay = 1.0f;
};

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

// What planning has to know of a device.
struct DeviceTraits {
    DType activations = DType::f32;  // and their gradients, and the inputs of matrix products
    // A chunk of the loss head: at most so many logits (but 256 rows), at most so many rows.
    int64_t chunk_logits = int64_t{1} << 22, chunk_rows = 4096;
    double datasheet_flops = 0;             // of matrix products; 0: unknown
    int64_t peak_product = 1024;            // side of the matrices whose product shows the device's own rate
    int64_t copy_bytes = int64_t{1} << 26;  // of a copy that shows its memory's rate: no cache holds them
};

// Where a device's work is queued, for the library that carries tensors between GPUs.
struct NativeQueue {
    int device = -1;         // -1: the CPU, which has none
    void* stream = nullptr;  // cudaStream_t
};

class Ops {
  public:
    virtual ~Ops() = default;
    virtual std::string describe() const = 0;  // "cpu avx512, 2 threads, fp32"
    virtual DeviceTraits traits() const { return {}; }
    virtual NativeQueue native_queue() const { return {}; }

    // --- memory
    virtual void* allocate(int64_t bytes) = 0;  // zeroed, 64-byte aligned at least
    virtual void release(void* memory, int64_t bytes) = 0;
    virtual void upload(Tensor to, const void* host) = 0;
    virtual void download(void* host, const Tensor& from) = 0;
    virtual int64_t scratch_bytes() const = 0;  // what the implementation itself holds besides the plan
    virtual void zero(Tensor to) = 0;
    virtual void copy(Tensor to, const Tensor& from) = 0;
    virtual void add(Tensor to, const Tensor& from) = 0;                                // to += from
    virtual int64_t free_bytes() const { return std::numeric_limits<int64_t>::max(); }  // where it tells
    virtual void synchronize() = 0;
    // Seconds that the device takes for what `work` queues, after what was queued before.
    virtual double seconds_of(const std::function<void()>& work);
    // Runs work, which queues the same operations on the same memory with the same numbers whenever the key
    // is the same, and neither waits nor allocates: a device may record it and repeat the recording instead.
    virtual void replay(const std::string& key, const std::function<void()>& work) {
        (void)key;
        work();
    }

    // --- matrix products
    // y [N, out] = or += x [N, in] w [out, in]^T.  2*N*in*out FLOPs.
    virtual void linear(Tensor y, const Tensor& x, const Tensor& w, Write write) = 0;
    // dx [N, in] = or += dy [N, out] w.
    virtual void linear_backward_input(Tensor dx, const Tensor& dy, const Tensor& w, Write write) = 0;
    // dw [out, in] += dy^T x.
    virtual void linear_backward_weight(Tensor dw, const Tensor& dy, const Tensor& x) = 0;

    // h [N, F] = max(0, x w^T)^2; only h is kept.
    virtual void linear_relu2(Tensor h, const Tensor& x, const Tensor& w) = 0;
    // da [N, F] = (dy [N, C] w [C, F]) * 2 sqrt(h): gradient at the argument of the square of relu.
    virtual void linear_relu2_backward(Tensor da, const Tensor& dy, const Tensor& w, const Tensor& h) = 0;

    // --- embedding
    // x [N, C] = table [V, C] at tokens i32 [N].
    virtual void embedding(Tensor x, const Tensor& table, const Tensor& tokens) = 0;
    virtual void embedding_backward(Tensor dtable, const Tensor& dx, const Tensor& tokens) = 0;

    // --- normalisation
    // normalised [N, C] = (x - mean) * inverse or x * inverse; y = gain * normalised + bias.
    // Saved: normalised and inverse f32 [N]. Without a gain y and normalised may be the same memory.
    // gain, bias f32 [C] may be empty.
    virtual void norm(Tensor y, Tensor normalised, Tensor inverse, const Tensor& x, const Tensor& gain,
                      const Tensor& bias, const NormSpec& spec) = 0;
    // dx = or += ; dgain, dbias += (empty when there is none). dx and dy may be the same memory
    // when write is set.
    virtual void norm_backward(Tensor dx, Tensor dgain, Tensor dbias, const Tensor& dy,
                               const Tensor& normalised, const Tensor& inverse, const Tensor& gain,
                               const NormSpec& spec, Write write) = 0;

    // --- heads
    // In place on x [N, heads*d], a slice of qkv. inverse f32 [N, heads] with a norm;
    // normalised [N, heads*d], x after the norm, with a gain; both empty otherwise.
    virtual void prepare_heads(Tensor x, Tensor normalised, Tensor inverse, const HeadSpec& spec) = 0;
    // In place: dx is the gradient at the prepared heads, then at the projections. x holds the prepared ones.
    // dgain, dbias, dlog_eps += (empty when there is none).
    virtual void prepare_heads_backward(Tensor dx, Tensor dgain, Tensor dbias, Tensor dlog_eps,
                                        const Tensor& x, const Tensor& normalised, const Tensor& inverse,
                                        const HeadSpec& spec) = 0;

    // y [N, W] = sum over m < K of w[m] * x at m positions before, channel by channel; w f32 [K, W].
    // Positions before the sequence, or before the document (doc_start i32 [B, T], may be empty),
    // count as zero.
    virtual void short_conv(Tensor y, const Tensor& x, const Tensor& w, const Tensor& doc_start,
                            int64_t length) = 0;
    // dx = ; dw +=.
    virtual void short_conv_backward(Tensor dx, Tensor dw, const Tensor& dy, const Tensor& x, const Tensor& w,
                                     const Tensor& doc_start, int64_t length) = 0;

    // --- attention
    // i32 [B, T]: first visible key given doc_start i32 [B, T] (may be empty), a window (0: none) and chunks
    // (0: none): max(doc_start_i, i - window + 1, i / chunk * chunk, 0).
    virtual void row_starts(Tensor row_start, const Tensor& doc_start, int64_t length, int64_t window,
                            int64_t chunk) = 0;
    // factor f32 [1 or H, N].
    virtual void row_factors(Tensor factor, const RowFactorSpec& spec) = 0;
    // dr += sum shape(n) dfactor, db += sum dfactor; dfactor f32 [H, N]; one entry for all heads or one each.
    virtual void row_factors_backward(Tensor dr, Tensor db, const Tensor& dfactor,
                                      const RowFactorSpec& spec) = 0;
    // gain, bias f32 [1 or H, R] for distances below spec.length, stored as AttentionSpec wants them.
    virtual void distance_tables(Tensor gain, Tensor bias, const DistanceFormSpec& spec) = 0;
    // dlog_tau, ddecay [1], dp, da [H] += (empty when not learned).
    virtual void distance_tables_backward(Tensor dlog_tau, Tensor ddecay, Tensor dp, Tensor da,
                                          const Tensor& dgain, const Tensor& dbias,
                                          const DistanceFormSpec& spec) = 0;

    // o [N, H*d] = attention of q [N, H*d], k, v [N, G*d] (slices of qkv).
    // lse f32 [H, N]: natural log of the softmax denominator, sink included.
    // row_maxima f32 [H, N] (may be empty): the largest z_ij = scale <q_i, k_j> (or |z_ij|) over the
    // visible keys, before softcap and factors; -infinity where row_factor is 0.
    virtual void attention(Tensor o, Tensor lse, Tensor row_maxima, const Tensor& q, const Tensor& k,
                           const Tensor& v, const AttentionSpec& spec) = 0;
    // statistics f32 [row_statistics, H, N], row_statistics.h, of the attention that gave lse: a second pass
    // over its scores, which like the first stores no more than a tile of them.
    virtual void attention_statistics(Tensor statistics, const Tensor& lse, const Tensor& q, const Tensor& k,
                                      const AttentionSpec& spec) = 0;
    // One query per sequence, at `position`, against keys and values computed before: o, q [B, H*d];
    // k, v [B*R, G*d], spec.length = R rows of each sequence, of which [first, position] are visible.
    // In the spec row_factor is [1 or H, B], row_square [B], far_queries like q, far_keys like k;
    // there is no row_start.
    virtual void attention_decode(Tensor o, const Tensor& q, const Tensor& k, const Tensor& v,
                                  const AttentionSpec& spec, int64_t first, int64_t position) = 0;
    // dq, dk, dv = (slices of dqkv).
    // workspace: attention_workspace(spec, gradients) bytes, contents irrelevant.
    virtual void attention_backward(Tensor dq, Tensor dk, Tensor dv, const AttentionGradients& gradients,
                                    Tensor workspace, const Tensor& dout, const Tensor& o, const Tensor& lse,
                                    const Tensor& q, const Tensor& k, const Tensor& v,
                                    const AttentionSpec& spec) = 0;
    virtual int64_t attention_workspace(const AttentionSpec& spec,
                                        const AttentionGradients& gradients) const = 0;

    // y [N, H*d] = factor * sigmoid(u) * o; u [N, H] (one per head) or [N, H*d].
    virtual void gate(Tensor y, const Tensor& u, const Tensor& o, float factor) = 0;
    // dout = gradient at o (may be dy), du =.
    virtual void gate_backward(Tensor dout, Tensor du, const Tensor& dy, const Tensor& u, const Tensor& o,
                               float factor) = 0;

    // --- activations and mixing
    // h [N, F] = act(a [N, F]); swiglu: a [N, 2F] holds gate|up, h = silu(gate) * up.
    virtual void activation(Tensor h, const Tensor& a, Activation kind) = 0;
    virtual void activation_backward(Tensor da, const Tensor& dh, const Tensor& a, Activation kind) = 0;

    // out = a*x + b*y. out may be x or y.
    virtual void mix(Tensor out, const Coefficient& a, const Tensor& x, const Coefficient& b,
                     const Tensor& y) = 0;
    // dx = a*dout (may be dout); dy += b*dout; da += a.scale * <dout, x>; db += b.scale * <dout, y>.
    // da and db are one-element tensors, empty where the coefficient has no parameter; they may be the same
    // tensor. x (y) is read only where da (db) is present.
    virtual void mix_backward(Tensor dx, Tensor dy, Tensor da, Tensor db, const Tensor& dout,
                              const Coefficient& a, const Tensor& x, const Coefficient& b,
                              const Tensor& y) = 0;

    // y_p = x_p + lambda * sigmoid(<w, first channels of x_p>) * x_(p-1) [N, C]; w f32 [channels],
    // lambda f32 [1]. The first position of a sequence, or of a document (doc_start i32 [B, T], may be empty), stays.
    virtual void smear(Tensor y, const Tensor& x, const Tensor& w, const Tensor& lambda,
                       const Tensor& doc_start, int64_t length) = 0;
    // dx = ; dw, dlambda +=.
    virtual void smear_backward(Tensor dx, Tensor dw, Tensor dlambda, const Tensor& dy, const Tensor& x,
                                const Tensor& w, const Tensor& lambda, const Tensor& doc_start,
                                int64_t length) = 0;

    // --- loss
    // loss f32 [n] per row of logits [n, V]; targets i32 [n], -1: row not scored (loss 0, gradient 0).
    // With `gradient` the logits are overwritten by spec.gradient_scale * dloss/dlogits.
    virtual void cross_entropy(Tensor loss, Tensor logits, const Tensor& targets, const LossSpec& spec,
                               bool gradient) = 0;
    // best i32 [n]: column of the largest logit of each row; of equal ones the first. A NaN is never the
    // largest, and where every logit is NaN best is -1. Softcaps leave the order of logits as it is.
    virtual void top1(Tensor best, const Tensor& logits) = 0;

    // --- reductions and optimisers
    // out f64 [1] = sum of x (f32); sum of squares.
    virtual void sum(Tensor out, const Tensor& x) = 0;
    virtual void sum_squares(Tensor out, const Tensor& x) = 0;

    // out [H] = max(out, row maxima [H, N]).
    virtual void head_maxima(Tensor out, const Tensor& row_maxima) = 0;
    // QK-clip: where maxima[h] > limit, g = limit / maxima[h]: the rows of head h in wq [H*d, C] and wk [G*d,
    // C] are multiplied by sqrt(g); with G < H, those in wq alone by g.
    virtual void qk_clip(Tensor wq, Tensor wk, const Tensor& maxima, int64_t head_dim, float limit) = 0;

    virtual void adam(std::span<const AdamSlot> slots, const AdamSpec& spec) = 0;
    // Momentum, Newton-Schulz orthogonalisation and update, matrix by matrix.
    // workspace: muon_workspace(slots) bytes, contents irrelevant.
    virtual void muon(std::span<const MuonSlot> slots, Tensor workspace, const MuonSpec& spec) = 0;
    virtual int64_t muon_workspace(std::span<const MuonSlot> slots) const = 0;
};

enum class Precision { fp32, bf16 };

struct CpuOptions {
    int threads = 0;  // 0: as many as this process may use
    Precision precision =
        Precision::fp32;  // bf16: inputs of matrix products are rounded to bf16 where the CPU has them
    std::string isa{};    // "", "avx512", "avx2" or "generic": the instruction set; empty: the best
};
std::unique_ptr<Ops> make_cpu_ops(const CpuOptions& options);

}  // namespace longreach
