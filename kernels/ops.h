// The only door to hardware: every operation a step needs, forward directly above backward.
//
// Shapes: B sequences, T positions, N = B*T tokens, C width, H heads, G key/value heads, d head size, F mlp
// width, V vocabulary, Q = (H + 2G)*d columns of the fused query|key|value matrix.
//
// Conventions
//   - Argument order: outputs, saved, inputs, scalars.
//   - "=" overwrites an output, "+=" accumulates into it. Gradients of parameters always accumulate.
//   - Matrices of parameters have shape [out, in]; y = x w^T.
//   - Results depend neither on the number of threads nor on the schedule: every reduction has a fixed shape
//   and order.
//   - Activations and gradients are f32 on the CPU; statistics, losses and tables are f32 everywhere; scalar
//   sums f64.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/attention_spec.h"
#include "kernels/tensor.h"

namespace longreach {

enum class Write { set, add };

enum class NormKind { rms, layer };
struct NormSpec {
    NormKind kind = NormKind::rms;
    float eps = 1e-6f;
};

enum class Activation { gelu, gelu_tanh, swiglu };

// Treatment of queries and keys after projection: optional RMS norm over each head, then rotary.
struct QkSpec {
    int64_t length = 0;  // T: position of token n is n % T
    int64_t heads = 0, kv_heads = 0, head_dim = 0;
    bool norm = false;  // parameter-free RMS over d
    float eps = 0.0f;   // of that norm
    // f32 [R, pairs], R >= T: cos and sin of position * theta_m for the first `pairs` channel pairs (m, m +
    // d/2). Pairs past the table keep their values. Empty: no rotary at all.
    Tensor cosine{}, sine{};
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

class Ops {
  public:
    virtual ~Ops() = default;
    virtual std::string describe() const = 0;  // "cpu avx512, 2 threads, fp32"

    // --- memory
    // -----------------------------------------------------------------------------------------------------
    virtual void* allocate(int64_t bytes) = 0;  // zeroed, 64-byte aligned at least
    virtual void release(void* memory, int64_t bytes) = 0;
    virtual void upload(Tensor to, const void* host) = 0;
    virtual void download(void* host, const Tensor& from) = 0;
    virtual int64_t scratch_bytes() const = 0;  // what the implementation itself holds besides the plan
    virtual void zero(Tensor to) = 0;
    virtual void copy(Tensor to, const Tensor& from) = 0;
    virtual void add(Tensor to, const Tensor& from) = 0;  // to += from
    virtual void synchronize() = 0;

    // --- matrix products
    // -------------------------------------------------------------------------------------------- y [N, out]
    // = or += x [N, in] w [out, in]^T.  2*N*in*out FLOPs.
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
    // -------------------------------------------------------------------------------------------------- x
    // [N, C] = table [V, C] at tokens i32 [N].
    virtual void embedding(Tensor x, const Tensor& table, const Tensor& tokens) = 0;
    virtual void embedding_backward(Tensor dtable, const Tensor& dx, const Tensor& tokens) = 0;

    // --- normalisation
    // ----------------------------------------------------------------------------------------------
    // normalised [N, C] = (x - mean) * inverse or x * inverse; y = gain * normalised + bias. Saved:
    // normalised and inverse f32 [N]. Without a gain y and normalised may be the same memory. gain, bias f32
    // [C] may be empty.
    virtual void norm(Tensor y, Tensor normalised, Tensor inverse, const Tensor& x, const Tensor& gain,
                      const Tensor& bias, const NormSpec& spec) = 0;
    // dx = or += ; dgain, dbias += (empty when there is none). dx and dy may be the same memory when write is
    // set.
    virtual void norm_backward(Tensor dx, Tensor dgain, Tensor dbias, const Tensor& dy,
                               const Tensor& normalised, const Tensor& inverse, const Tensor& gain,
                               const NormSpec& spec, Write write) = 0;

    // --- queries and keys
    // ------------------------------------------------------------------------------------------- In place on
    // the first (H+G)*d columns of qkv [N, Q]; values are left alone. inverse f32 [N, H+G] (empty without
    // norm).
    virtual void qk_prepare(Tensor qkv, Tensor inverse, const QkSpec& spec) = 0;
    // In place on dqkv: gradient at the prepared q and k -> gradient at the projections. qkv holds the
    // prepared ones.
    virtual void qk_prepare_backward(Tensor dqkv, const Tensor& qkv, const Tensor& inverse,
                                     const QkSpec& spec) = 0;

    // --- attention
    // -------------------------------------------------------------------------------------------------- i32
    // [B, T]: first visible key given doc_start i32 [B, T] (may be empty) and a window (0: none):
    // max(doc_start_i, i - window + 1, 0).
    virtual void row_starts(Tensor row_start, const Tensor& doc_start, int64_t length, int64_t window) = 0;
    // o [N, H*d] = attention of q [N, H*d], k, v [N, G*d] (slices of qkv); lse f32 [H, N] natural
    // log-sum-exp.
    virtual void attention(Tensor o, Tensor lse, const Tensor& q, const Tensor& k, const Tensor& v,
                           const AttentionSpec& spec) = 0;
    // dq, dk, dv = (overwrite; slices of dqkv). workspace: attention_workspace(spec) bytes, contents
    // irrelevant.
    virtual void attention_backward(Tensor dq, Tensor dk, Tensor dv, Tensor workspace, const Tensor& dout,
                                    const Tensor& o, const Tensor& lse, const Tensor& q, const Tensor& k,
                                    const Tensor& v, const AttentionSpec& spec) = 0;
    virtual int64_t attention_workspace(const AttentionSpec& spec) const = 0;

    // --- activations and mixing
    // ------------------------------------------------------------------------------------- h [N, F] = act(a
    // [N, F]); swiglu: a [N, 2F] holds gate|up, h = silu(gate) * up.
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

    // --- loss
    // -------------------------------------------------------------------------------------------------------
    // loss f32 [n] per row of logits [n, V]; targets i32 [n], -1: row not scored (loss 0, gradient 0).
    // With `gradient` the logits are overwritten by spec.gradient_scale * dloss/dlogits.
    virtual void cross_entropy(Tensor loss, Tensor logits, const Tensor& targets, const LossSpec& spec,
                               bool gradient) = 0;

    // --- reductions and optimisers
    // ---------------------------------------------------------------------------------- out f64 [1] = sum of
    // x (f32); sum of squares.
    virtual void sum(Tensor out, const Tensor& x) = 0;
    virtual void sum_squares(Tensor out, const Tensor& x) = 0;

    virtual void adam(std::span<const AdamSlot> slots, const AdamSpec& spec) = 0;
    // Momentum, Newton-Schulz orthogonalisation and update, matrix by matrix. workspace:
    // muon_workspace(slots) bytes.
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
