// The only door to hardware: every operation a step needs, forward directly above backward.
//
// An operation is two declarations: do_norm, which every device implements, and norm, which callers call: its
// row in the table of operations (operation.h; ops.cpp has names, FLOPs and bytes), and a place for decorators.
//
// Shapes: B sequences, T positions, N = B*T tokens, C width, H heads, G key/value heads, d head size, F mlp
// width, V vocabulary, Q = (H + 2G)*d columns of the fused query|key|value matrix.
//
// Conventions
//   - Argument order: outputs, saved, inputs, scalars.
//   - "=" overwrites an output, "+=" accumulates into it. Gradients of parameters accumulate, but for products, which
//     can also set them.
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
#include <utility>

#include "kernels/operation.h"
#include "kernels/row_statistics.h"

namespace longreach {

// Properties of a device that planning depends on.
struct DeviceTraits {
    DType activations = DType::f32;  // and their gradients, and the inputs of matrix products
    DType cached = DType::f32;       // keys and values that a generation keeps
    // Limits of a chunk of the loss head: logits (it has at least 256 rows), and rows.
    int64_t chunk_logits = int64_t{1} << 22, chunk_rows = 4096;
    double datasheet_flops = 0;             // of matrix products; 0: unknown
    int64_t peak_product = 1024;            // side of square matrices large enough to reach the peak rate
    int64_t copy_bytes = int64_t{1} << 26;  // a copy too large for any cache, to measure the memory's rate
};

// The queue of a device's work, for the library that transfers tensors between GPUs.
struct NativeQueue {
    int device = -1;         // -1: the CPU, which has no queue
    void* stream = nullptr;  // cudaStream_t
};

// What planning asks of a device. Workspaces in bytes.
class Planner {
  public:
    virtual ~Planner() = default;
    virtual DeviceTraits do_traits() const { return {}; }
    virtual int64_t do_attention_workspace(const AttentionSpec& spec,
                                           const AttentionGradients& gradients) const = 0;
    virtual int64_t do_muon_workspace(std::span<const MuonSlot> slots) const = 0;
    virtual int64_t do_delta_workspace(const DeltaSpec& spec, bool backward) const = 0;
};

class Ops : public Planner {
  public:
    Ops();  // the table of operations: ops.cpp
    ~Ops() override;
    Ops(const Ops&) = delete;
    Ops& operator=(const Ops&) = delete;
    virtual std::string describe() const = 0;  // "cpu avx512, 2 threads, fp32"
    virtual NativeQueue native_queue() const { return {}; }

    // Every operation called from here on goes through the decorator; null: none does.
    void decorate(std::shared_ptr<Decorator> decorator) { decorator_ = std::move(decorator); }
    Decorator* decorator() const { return decorator_.get(); }
    // Called after each operation: a device whose work is only queued reports here what it refused.
    virtual void finished(const char* /*operation*/) {}

    // --- planning
    DeviceTraits traits() const { return planner().do_traits(); }
    int64_t attention_workspace(const AttentionSpec& spec, const AttentionGradients& gradients) const {
        return planner().do_attention_workspace(spec, gradients);
    }
    int64_t muon_workspace(std::span<const MuonSlot> slots) const {
        return planner().do_muon_workspace(slots);
    }
    int64_t delta_workspace(const DeltaSpec& spec, bool backward) const {
        return planner().do_delta_workspace(spec, backward);
    }
    // Answers these questions as another device would, for planning without it.
    void plan_as(std::shared_ptr<const Planner> other) { plans_as_ = std::move(other); }

    // --- memory
    virtual void* allocate(int64_t bytes) = 0;  // zeroed, 64-byte aligned at least
    virtual void release(void* memory, int64_t bytes) = 0;
    virtual int64_t scratch_bytes() const = 0;  // held by the implementation outside the plan
    virtual int64_t free_bytes() const { return std::numeric_limits<int64_t>::max(); }  // if known
    virtual void do_upload(Tensor to, const void* host) = 0;
    const Operation<&Ops::do_upload> upload;
    virtual void do_download(void* host, const Tensor& from) = 0;
    const Operation<&Ops::do_download> download;
    virtual void do_zero(Tensor to) = 0;
    const Operation<&Ops::do_zero> zero;
    virtual void do_copy(Tensor to, const Tensor& from) = 0;
    const Operation<&Ops::do_copy> copy;
    virtual void do_add(Tensor to, const Tensor& from) = 0;  // to += from
    const Operation<&Ops::do_add> add;
    virtual void synchronize() = 0;
    // Seconds the device takes for the operations that `work` queues; waits for earlier ones first.
    virtual double seconds_of(const std::function<void()>& work);
    // Runs `work`. A device may record its operations and replay the recording for the same key, so a key
    // implies the same operations, memory and numbers, and `work` must neither wait nor allocate.
    void replay(const std::string& key, const std::function<void()>& work) {
        if (decorator_)
            work();  // a recording would bypass it
        else
            do_replay(key, work);
    }
    virtual void do_replay(const std::string& key, const std::function<void()>& work) {
        (void)key;
        work();
    }
    // Within the work of replay(): what the host does at this place, in every replay as in the first run. It may wait, and
    // what it names has to live as long as the recording. Elsewhere it is done at once.
    virtual void host_step(const std::function<void()>& step) { step(); }

    // --- matrix products
    // y [N, out] = or += x [N, in] w [out, in]^T.  2*N*in*out FLOPs.
    virtual void do_linear(Tensor y, const Tensor& x, const Tensor& w, Write write) = 0;
    const Operation<&Ops::do_linear> linear;
    // dx [N, in] = or += dy [N, out] w.
    virtual void do_linear_backward_input(Tensor dx, const Tensor& dy, const Tensor& w, Write write) = 0;
    const Operation<&Ops::do_linear_backward_input> linear_backward_input;
    // dw [out, in] = or += dy^T x.
    virtual void do_linear_backward_weight(Tensor dw, const Tensor& dy, const Tensor& x, Write write) = 0;
    const Operation<&Ops::do_linear_backward_weight> linear_backward_weight;

    // A second form of w for y = x w^T, in which the device reads it faster for a few rows: f32 elements that it takes, 0 where
    // there is none. It holds w as it was at fill_held(). From hold() on products with w may read `held`, which other devices
    // with the same memory may hold too, until hold() with an empty one.
    virtual int64_t held_floats(const Tensor& /*w*/) const { return 0; }
    virtual void fill_held(Tensor /*held*/, const Tensor& /*w*/) {}
    virtual void hold(const Tensor& /*w*/, const Tensor& /*held*/) {}

    // y [N, W] += bias f32 [W] in every row.
    virtual void do_add_bias(Tensor y, const Tensor& bias) = 0;
    const Operation<&Ops::do_add_bias> add_bias;
    // dbias f32 [W] += sum of dy [N, W] over the rows.
    virtual void do_add_bias_backward(Tensor dbias, const Tensor& dy) = 0;
    const Operation<&Ops::do_add_bias_backward> add_bias_backward;

    // h [N, F] = max(0, x w^T)^2; only h is kept.
    virtual void do_linear_relu2(Tensor h, const Tensor& x, const Tensor& w) = 0;
    const Operation<&Ops::do_linear_relu2> linear_relu2;
    // da [N, F] = (dy [N, C] w [C, F]) * 2 sqrt(h): gradient at the argument of the square of relu.
    virtual void do_linear_relu2_backward(Tensor da, const Tensor& dy, const Tensor& w, const Tensor& h) = 0;
    const Operation<&Ops::do_linear_relu2_backward> linear_relu2_backward;

    // --- embedding
    // x [N, C] = table [V, C] at tokens i32 [N].
    virtual void do_embedding(Tensor x, const Tensor& table, const Tensor& tokens) = 0;
    const Operation<&Ops::do_embedding> embedding;
    virtual void do_embedding_backward(Tensor dtable, const Tensor& dx, const Tensor& tokens) = 0;
    const Operation<&Ops::do_embedding_backward> embedding_backward;

    // --- normalisation
    // normalised [N, C] = (x - mean) * inverse or x * inverse; y = gain * normalised + bias.
    // Saved: normalised and inverse f32 [N]. Without a gain y and normalised may be the same memory; y may be x.
    // gain, bias f32 [C] may be empty.
    virtual void do_norm(Tensor y, Tensor normalised, Tensor inverse, const Tensor& x, const Tensor& gain,
                         const Tensor& bias, const NormSpec& spec) = 0;
    const Operation<&Ops::do_norm> norm;
    // dx = or += ; dgain, dbias += (empty when there is none). dx and dy may be the same memory
    // when write is set.
    virtual void do_norm_backward(Tensor dx, Tensor dgain, Tensor dbias, const Tensor& dy,
                                  const Tensor& normalised, const Tensor& inverse, const Tensor& gain,
                                  const NormSpec& spec, Write write) = 0;
    const Operation<&Ops::do_norm_backward> norm_backward;

    // --- heads
    // In place on x [N, heads*d], a slice of qkv. inverse f32 [N, heads] with a norm;
    // normalised [N, heads*d], x after the norm, with a gain; both empty otherwise.
    virtual void do_prepare_heads(Tensor x, Tensor normalised, Tensor inverse, const HeadSpec& spec) = 0;
    const Operation<&Ops::do_prepare_heads> prepare_heads;
    // In place: dx is the gradient at the prepared heads, then at the projections. x holds the prepared ones.
    // dgain, dbias, dlog_eps += (empty when there is none).
    virtual void do_prepare_heads_backward(Tensor dx, Tensor dgain, Tensor dbias, Tensor dlog_eps,
                                           const Tensor& x, const Tensor& normalised, const Tensor& inverse,
                                           const HeadSpec& spec) = 0;
    const Operation<&Ops::do_prepare_heads_backward> prepare_heads_backward;

    // y [N, W] = sum over m < K of w[m] * x at m positions before, channel by channel; w f32 [K, W].
    // Positions before the sequence, or before the document (doc_start i32 [B, T], may be empty), count as zero. On a CPU
    // a document of the only sequence may begin before the first row, at a negative position: then the K - 1 rows in front
    // of x are read.
    virtual void do_short_conv(Tensor y, const Tensor& x, const Tensor& w, const Tensor& doc_start,
                               int64_t length) = 0;
    const Operation<&Ops::do_short_conv> short_conv;
    // dx = ; dw +=.
    virtual void do_short_conv_backward(Tensor dx, Tensor dw, const Tensor& dy, const Tensor& x,
                                        const Tensor& w, const Tensor& doc_start, int64_t length) = 0;
    const Operation<&Ops::do_short_conv_backward> short_conv_backward;

    // --- attention
    // i32 [B, T]: first visible key given doc_start i32 [B, T] (may be empty), a window (0: none) and chunks
    // (0: none): max(doc_start_i, i - window + 1, i / chunk * chunk, 0).
    virtual void do_row_starts(Tensor row_start, const Tensor& doc_start, int64_t length, int64_t window,
                               int64_t chunk) = 0;
    const Operation<&Ops::do_row_starts> row_starts;
    // table f32 [1 or H, R]: entries below spec.length of a score law; with spec.by_token f32 [H, N], of every token.
    virtual void do_evaluate_law(Tensor table, const LawSpec& spec) = 0;
    const Operation<&Ops::do_evaluate_law> evaluate_law;
    // factor f32 [1 or H, N]: of every query, the entry of the keys it counts. table f32 [1 or H, R].
    virtual void do_law_rows(Tensor factor, const Tensor& table, const LawEntries& entries) = 0;
    const Operation<&Ops::do_law_rows> law_rows;
    // dparameter += sum of derivative * gradient: f32 [1] or [H], or of a vector [size] or [H, size]. derivative
    // f32 [1 or H, R] of the table by the parameter; gradient f32 [H, R] of the table, or [H, N] of law_rows;
    // elements i32 [R]: of the vector, the element that each entry reads; empty: no vector.
    virtual void do_law_gradient(Tensor dparameter, const Tensor& derivative, const Tensor& gradient,
                                 const LawEntries& entries, const Tensor& elements) = 0;
    const Operation<&Ops::do_law_gradient> law_gradient;

    // Running sums along each sequence of values f32 [H, B*T], plus keys f32 [H, B*T] (not summed), in f64; either may be
    // empty. sums f64 [H, B*R], T = length: entries first .. first + T - 1 of the R of every sequence. total f64 [H, B]: the
    // sum of values so far, read if first > 0; empty: first is 0. A pass over whole sequences has R = T and first = 0.
    virtual void do_running_sums(Tensor sums, Tensor total, const Tensor& values, const Tensor& keys,
                                 int64_t length, int64_t first) = 0;
    const Operation<&Ops::do_running_sums> running_sums;
    // dvalues f32 [H, B*T] = the sums of dsums f32 [H, B*T] from each position to the end of its sequence.
    virtual void do_running_sums_backward(Tensor dvalues, const Tensor& dsums, int64_t length) = 0;
    const Operation<&Ops::do_running_sums_backward> running_sums_backward;
    // dx [N, H] = or += derivative * gradient, f32 [H, N] both.
    virtual void do_term_gradient(Tensor dx, const Tensor& derivative, const Tensor& gradient,
                                  Write write) = 0;
    const Operation<&Ops::do_term_gradient> term_gradient;

    // cosine, sine f32 [N, G*P] of sums times theta f64 [P]. sums f64 [G, B*R]: of every sequence entries first ..
    // first + length - 1 belong to its tokens.
    virtual void do_token_angles(Tensor cosine, Tensor sine, const Tensor& sums, const Tensor& theta,
                                 int64_t length, int64_t first) = 0;
    const Operation<&Ops::do_token_angles> token_angles;
    // dsums f32 [G, N] = or += the gradient at the sums, given dx [N, H*d] at heads x that these angles have turned.
    virtual void do_token_angles_backward(Tensor dsums, const Tensor& dx, const Tensor& x,
                                          const Tensor& theta, int64_t head_dim, Write write) = 0;
    const Operation<&Ops::do_token_angles_backward> token_angles_backward;

    // o [N, H*d] = attention of q [N, H*d], k, v [N, G*d] (slices of qkv). On a CPU k, v and far_keys may have S > T rows for
    // each sequence: the queries are the last T of S positions, and the entries of forget those of the keys, [H, B*S].
    // lse f32 [H, N]: natural log of the softmax denominator, sink included; of a stick, of what is left of it;
    // of entmax theta, as attention_spec.h says.
    // row_maxima f32 [H, N] (may be empty): the largest z_ij = scale <q_i, k_j> (or |z_ij|) over the
    // visible keys, before softcap and factors; -infinity where row_factor is 0.
    virtual void do_attention(Tensor o, Tensor lse, Tensor row_maxima, const Tensor& q, const Tensor& k,
                              const Tensor& v, const AttentionSpec& spec) = 0;
    const Operation<&Ops::do_attention> attention;
    // statistics f32 [row_statistics, H, N], row_statistics.h, of the attention that gave lse: a second pass
    // over its scores, which like the first stores no more than a tile of them.
    // watched i32 [watched_keys, N] or empty: for every query positions of keys in its sequence, -1 for none; a
    // key that the query does not see has weight 0.
    virtual void do_attention_statistics(Tensor statistics, const Tensor& lse, const Tensor& q,
                                         const Tensor& k, const Tensor& watched,
                                         const AttentionSpec& spec) = 0;
    const Operation<&Ops::do_attention_statistics> attention_statistics;
    // One query per sequence, at `position`, against keys and values computed before: o, q [B, H*d];
    // k, v [B*R, G*d], spec.length = R rows of each sequence, of which [first, position] are visible.
    // In the spec row_factor is [1 or H, B], row_square [B], far_queries like q, far_keys like k, forget
    // [H, B*R], the query's own entry at `position`; there is no row_start.
    virtual void do_attention_decode(Tensor o, const Tensor& q, const Tensor& k, const Tensor& v,
                                     const AttentionSpec& spec, int64_t first, int64_t position) = 0;
    const Operation<&Ops::do_attention_decode> attention_decode;
    // dq, dk, dv = (slices of dqkv).
    // workspace: attention_workspace(spec, gradients) bytes, contents irrelevant.
    virtual void do_attention_backward(Tensor dq, Tensor dk, Tensor dv, const AttentionGradients& gradients,
                                       Tensor workspace, const Tensor& dout, const Tensor& o,
                                       const Tensor& lse, const Tensor& q, const Tensor& k, const Tensor& v,
                                       const AttentionSpec& spec) = 0;
    const Operation<&Ops::do_attention_backward> attention_backward;

    // What the scores I of spec.index have to learn of the attention that gave lse: which keys its heads weigh most. With p_i
    // the mean of the heads' weights P_i over the visible keys, divided by its sum (a sink takes a part),
    //     losses f32 [N] = sum over j of p_ij (log p_ij - log softmax(I_i)_j)
    // index_lse f32 [N] = log of the sum of exp(I_ij). d.queries, d.keys, d.weights = gradient_scale times the gradients of
    // the sum of losses at those of spec.index; nothing passes on to attention. On a CPU, in f32.
    virtual void do_index_loss(Tensor losses, Tensor index_lse, IndexScores d, const Tensor& lse,
                               const Tensor& q, const Tensor& k, float gradient_scale,
                               const AttentionSpec& spec) = 0;
    const Operation<&Ops::do_index_loss> index_loss;

    // y [N, H*d] = factor * sigmoid(u) * o, or times u as well; u [N, H] (one per head) or [N, H*d].
    virtual void do_gate(Tensor y, const Tensor& u, const Tensor& o, const GateSpec& spec) = 0;
    const Operation<&Ops::do_gate> gate;
    // dout = gradient at o (may be dy), du =.
    virtual void do_gate_backward(Tensor dout, Tensor du, const Tensor& dy, const Tensor& u, const Tensor& o,
                                  const GateSpec& spec) = 0;
    const Operation<&Ops::do_gate_backward> gate_backward;

    // y [N, H*d] = o without its part along v [N, G*d], the own value of each token:
    //     o - <o, v> / max(<v, v>, own_value_floor) v by head
    virtual void do_exclude_own_value(Tensor y, const Tensor& o, const Tensor& v, int64_t head_dim) = 0;
    const Operation<&Ops::do_exclude_own_value> exclude_own_value;
    // dout = gradient at o (may be dy), dv =.
    virtual void do_exclude_own_value_backward(Tensor dout, Tensor dv, const Tensor& dy, const Tensor& o,
                                               const Tensor& v, int64_t head_dim) = 0;
    const Operation<&Ops::do_exclude_own_value_backward> exclude_own_value_backward;

    // --- gated delta rule
    // decay f32 [N, W] = -exp(a_log) softplus(u + bias), the logarithm of what a state keeps; W is H, or H*d with
    // a decay for every key channel. beta f32 [N, H] = beta_max sigmoid(ub); it and ub may be empty on a CPU.
    // u [N, W], ub [N, H].
    virtual void do_delta_gates(Tensor decay, Tensor beta, const Tensor& u, const Tensor& ub,
                                const DeltaGateSpec& spec) = 0;
    const Operation<&Ops::do_delta_gates> delta_gates;
    // du, dub = ; da_log, dbias +=. ddecay f32 [N, W], dbeta f32 [N, H].
    virtual void do_delta_gates_backward(Tensor du, Tensor dub, Tensor da_log, Tensor dbias,
                                         const Tensor& ddecay, const Tensor& dbeta, const Tensor& u,
                                         const Tensor& ub, const DeltaGateSpec& spec) = 0;
    const Operation<&Ops::do_delta_gates_backward> delta_gates_backward;

    // For every head and sequence, with the state S [d, e], decay g, and q and k times their scales:
    //     S = exp(g_t) S, row by row if g has a number for every channel;  u_t = beta_t (v_t - S^T r_t)
    //     S = S + k_t u_t^T;  o_t = S^T q_t                                additive: u_t = beta_t v_t
    // with r_t = k_t, or spec.erase times the scale of k, on a CPU; then beta may be empty: 1.
    // o, v [N, H*e]; q, k [N, H*d]; decay f32 [N, H] or [N, H*d], at most 0; beta f32 [N, H].
    // states f32 [B * chunks * H, d*e]: S before every chunk of delta_chunk positions; empty: not saved.
    // state f32 [B*H, d*e]: S after the last position; read before the first if spec.continues; may be empty. On a CPU a
    // sequence that continues may have documents, and the first of them may begin at a negative position; with
    // spec.chained the first position of a sequence reads the state of the one before, also where a document begins there.
    // workspace: delta_workspace(spec, false) bytes, contents irrelevant.
    virtual void do_delta_rule(Tensor o, Tensor states, Tensor state, Tensor workspace, const Tensor& q,
                               const Tensor& k, const Tensor& v, const Tensor& decay, const Tensor& beta,
                               const DeltaSpec& spec) = 0;
    const Operation<&Ops::do_delta_rule> delta_rule;
    // dq, dk, dv, ddecay f32, dbeta f32 =. Of whole sequences: spec.continues is false.
    // workspace: delta_workspace(spec, true) bytes, contents irrelevant.
    virtual void do_delta_rule_backward(Tensor dq, Tensor dk, Tensor dv, Tensor ddecay, Tensor dbeta,
                                        Tensor workspace, const Tensor& dout, const Tensor& states,
                                        const Tensor& q, const Tensor& k, const Tensor& v,
                                        const Tensor& decay, const Tensor& beta, const DeltaSpec& spec) = 0;
    const Operation<&Ops::do_delta_rule_backward> delta_rule_backward;

    // --- 2-simplicial attention
    // For every head and query i, over the pairs of a first key j and a second key m that it sees,
    // i - window < j <= i and i - second_window < m <= i, none before doc_start:
    //     P[j, m] = softmax over all pairs of scale * sum over c of q[i, c] k[j, c] k2[m, c]
    //     o[i]    = sum over the pairs of P[j, m] v[j] v2[m], channel by channel;   lse = log of the sum
    // o, q [N, H*d]; k, v, k2, v2 [N, H*d], or [B*room, H*d] with spec.room; lse f32 [H, N]. On a CPU, in f32.
    virtual void do_simplicial(Tensor o, Tensor lse, const Tensor& q, const SimplicialKeys& keys,
                               const SimplicialSpec& spec) = 0;
    const Operation<&Ops::do_simplicial> simplicial;
    // dq, d.k, d.v, d.k2, d.v2 =. Of whole sequences: spec.room is 0.
    virtual void do_simplicial_backward(Tensor dq, SimplicialKeys d, const Tensor& dout, const Tensor& o,
                                        const Tensor& lse, const Tensor& q, const SimplicialKeys& keys,
                                        const SimplicialSpec& spec) = 0;
    const Operation<&Ops::do_simplicial_backward> simplicial_backward;

    // --- activations and mixing
    // h [N, F] = act(a [N, F]); swiglu, geglu_tanh: a [N, 2F] holds gate|up, h = silu(gate) * up or
    // gelu_tanh(gate) * up. Otherwise h may be a, and da may be dh.
    virtual void do_activation(Tensor h, const Tensor& a, Activation kind) = 0;
    const Operation<&Ops::do_activation> activation;
    virtual void do_activation_backward(Tensor da, const Tensor& dh, const Tensor& a, Activation kind) = 0;
    const Operation<&Ops::do_activation_backward> activation_backward;

    // out = a*x + b*y. out may be x or y.
    virtual void do_mix(Tensor out, const Coefficient& a, const Tensor& x, const Coefficient& b,
                        const Tensor& y) = 0;
    const Operation<&Ops::do_mix> mix;
    // dx = a*dout (may be dout); dy += b*dout; da += a.scale * <dout, x>; db += b.scale * <dout, y>.
    // da and db are one-element tensors, empty where the coefficient has no parameter; they may be the same
    // tensor. x (y) is read only where da (db) is present.
    virtual void do_mix_backward(Tensor dx, Tensor dy, Tensor da, Tensor db, const Tensor& dout,
                                 const Coefficient& a, const Tensor& x, const Coefficient& b,
                                 const Tensor& y) = 0;
    const Operation<&Ops::do_mix_backward> mix_backward;

    // y_p = x_p + lambda * sigmoid(<w, first channels of x_p>) * x_(p-1) [N, C]; w f32 [channels],
    // lambda f32 [1]. At the first position of a sequence or document (doc_start i32 [B, T] or empty) y = x. Documents that
    // begin before the first row: as in short_conv.
    virtual void do_smear(Tensor y, const Tensor& x, const Tensor& w, const Tensor& lambda,
                          const Tensor& doc_start, int64_t length) = 0;
    const Operation<&Ops::do_smear> smear;
    // dx = ; dw, dlambda +=.
    virtual void do_smear_backward(Tensor dx, Tensor dw, Tensor dlambda, const Tensor& dy, const Tensor& x,
                                   const Tensor& w, const Tensor& lambda, const Tensor& doc_start,
                                   int64_t length) = 0;
    const Operation<&Ops::do_smear_backward> smear_backward;

    // --- loss
    // loss f32 [n] per row of logits [n, V]; targets i32 [n], -1: row not scored (loss 0, gradient 0).
    // With `gradient` the logits are overwritten by spec.gradient_scale * dloss/dlogits, times spec.weights.
    virtual void do_cross_entropy(Tensor loss, Tensor logits, const Tensor& targets, const LossSpec& spec,
                                  bool gradient) = 0;
    const Operation<&Ops::do_cross_entropy> cross_entropy;
    // best i32 [n]: column of the largest logit of each row, the first of equal ones. A NaN is never the
    // largest; best is -1 where every logit is NaN. Softcaps do not change the order of logits.
    virtual void do_top1(Tensor best, const Tensor& logits) = 0;
    const Operation<&Ops::do_top1> top1;

    // --- reductions and optimisers
    // out f64 [1] = sum of x (f32).
    virtual void do_sum(Tensor out, const Tensor& x) = 0;
    const Operation<&Ops::do_sum> sum;
    // out f64 [parts]: out[i] = sum of the squares of parts[i] (f32).
    virtual void do_sum_squares(Tensor out, std::span<const Tensor> parts) = 0;
    const Operation<&Ops::do_sum_squares> sum_squares;

    // out [H] = max(out, row maxima [H, N]).
    virtual void do_head_maxima(Tensor out, const Tensor& row_maxima) = 0;
    const Operation<&Ops::do_head_maxima> head_maxima;
    // QK-clip: where maxima[h] > limit, g = limit / maxima[h]: the rows of head h in wq [H*d, C] and wk [G*d,
    // D] are multiplied by sqrt(g); with G < H, those in wq alone by g.
    virtual void do_qk_clip(Tensor wq, Tensor wk, const Tensor& maxima, int64_t head_dim, float limit) = 0;
    const Operation<&Ops::do_qk_clip> qk_clip;

    virtual void do_adam(std::span<const AdamSlot> slots, const AdamSpec& spec) = 0;
    const Operation<&Ops::do_adam> adam;
    // Momentum, Newton-Schulz orthogonalisation and update, matrix by matrix.
    // workspace: muon_workspace(slots) bytes, contents irrelevant.
    virtual void do_muon(std::span<const MuonSlot> slots, Tensor workspace, const MuonSpec& spec) = 0;
    const Operation<&Ops::do_muon> muon;

  private:
    const Planner& planner() const { return plans_as_ ? *plans_as_ : *this; }

    std::shared_ptr<Decorator> decorator_;
    std::shared_ptr<const Planner> plans_as_;
};

enum class Precision { fp32, bf16 };

struct CpuOptions {
    int threads = 0;                        // 0: all that this process may use
    Precision precision = Precision::fp32;  // bf16: rounds the inputs of matrix products, if the CPU can
    std::string isa{};                      // instruction set (select.cpp), such as "avx512"; empty: the best
};
std::unique_ptr<Ops> make_cpu_ops(const CpuOptions& options);

}  // namespace longreach
