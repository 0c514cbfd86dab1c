// Launchers of the CUDA kernels: the contracts of kernels/ops.h, plus a stream and, where sums cross blocks,
// a workspace (contents irrelevant; its size in bytes from the function next to the launcher).
//
// Nothing here waits for the device or allocates. Activations are f32 or bf16, the tensors of one call alike;
// parameters, their gradients, statistics, tables and workspaces f32 or f64 as named. Sums have a fixed
// shape, decided by the sizes alone. A token or target out of range cannot be reported from a kernel: it
// makes its row NaN and leaves memory alone.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/operands.h"

struct CUstream_st;

namespace longreach::cuda {

using Stream = CUstream_st*;  // cudaStream_t

// Blocks of rows whose sums are folded: enough to fill a large GPU, few enough to fold.
inline constexpr int64_t row_blocks(int64_t rows) {
    const int64_t blocks = (rows + 15) / 16;
    return blocks < 1 ? 1 : blocks > 512 ? 512 : blocks;
}
// The same for sums over a flat array.
inline constexpr int64_t flat_blocks(int64_t count) {
    const int64_t blocks = count / 8192;
    return blocks < 1 ? 1 : blocks > 1024 ? 1024 : blocks;
}

// --- memory
void zero(Tensor to, Stream stream);
void copy(Tensor to, const Tensor& from, Stream stream);  // f32 and bf16 may be converted into each other
void add(Tensor to, const Tensor& from, Stream stream);   // to += from

// --- embedding
void embedding(Tensor x, const Tensor& table, const Tensor& tokens, Stream stream);
int64_t embedding_backward_workspace(int64_t tokens, int64_t width);
void embedding_backward(Tensor dtable, Tensor workspace, const Tensor& dx, const Tensor& tokens,
                        Stream stream);

// --- normalisation
void norm(Tensor y, Tensor normalised, Tensor inverse, const Tensor& x, const Tensor& gain,
          const Tensor& bias, const NormSpec& spec, Stream stream);
inline constexpr int64_t norm_backward_workspace(int64_t rows, int64_t width) {
    return row_blocks(rows) * 2 * width * 4;
}
struct NormGradients {
    Tensor x{};
    Write write = Write::set;  // of x; gain and bias accumulate
    Tensor gain{}, bias{};
};
void norm_backward(const NormGradients& d, Tensor workspace, const Tensor& dy, const Tensor& normalised,
                   const Tensor& inverse, const Tensor& gain, const NormSpec& spec, Stream stream);

// --- biases
void add_bias(Tensor y, const Tensor& bias, Stream stream);
inline constexpr int64_t add_bias_backward_workspace(int64_t rows, int64_t width) {
    return row_blocks(rows) * width * 4;
}
void add_bias_backward(Tensor dbias, Tensor workspace, const Tensor& dy, Stream stream);

// --- heads
void prepare_heads(Tensor x, Tensor normalised, Tensor inverse, const HeadSpec& spec, Stream stream);
inline constexpr int64_t prepare_heads_backward_workspace(int64_t rows, int64_t heads, int64_t head_dim) {
    return row_blocks(rows) * (heads * 8 + 2 * head_dim * 4);
}
struct HeadGradients {
    Tensor x{}, gain{}, bias{}, log_eps{};
};
void prepare_heads_backward(const HeadGradients& d, Tensor workspace, const Tensor& x,
                            const Tensor& normalised, const Tensor& inverse, const HeadSpec& spec,
                            Stream stream);

// --- neighbouring positions
void short_conv(Tensor y, const Tensor& x, const Tensor& w, const Tensor& doc_start, int64_t length,
                Stream stream);
inline constexpr int64_t short_conv_backward_workspace(int64_t rows, int64_t taps, int64_t width) {
    return row_blocks(rows) * taps * width * 4;
}
struct ConvTensors {
    Tensor x{}, w{};
};
// `d` receives the gradients at `of`.
void short_conv_backward(const ConvTensors& d, Tensor workspace, const Tensor& dy, const ConvTensors& of,
                         const Tensor& doc_start, int64_t length, Stream stream);
void smear(Tensor y, const Tensor& x, const Tensor& w, const Tensor& lambda, const Tensor& doc_start,
           int64_t length, Stream stream);
inline constexpr int64_t smear_backward_workspace(int64_t rows, int64_t channels) {
    return rows * 2 * 4 + row_blocks(rows) * (channels + 1) * 8;
}
struct SmearTensors {
    Tensor x{}, w{}, lambda{};
};
void smear_backward(const SmearTensors& d, Tensor workspace, const Tensor& dy, const SmearTensors& of,
                    const Tensor& doc_start, int64_t length, Stream stream);

// --- what decides scores
void row_starts(Tensor row_start, const Tensor& doc_start, int64_t length, int64_t window, int64_t chunk,
                Stream stream);
void evaluate_law(Tensor table, const LawSpec& spec, Stream stream);
void law_rows(Tensor factor, const Tensor& table, const LawEntries& entries, Stream stream);
struct LawGradient {
    Tensor dparameter, derivative, gradient, elements;
};
inline constexpr int64_t law_gradient_workspace(int64_t heads, int64_t count, int64_t size) {
    return heads * flat_blocks(count) * size * 8;
}
void law_gradient(const LawGradient& g, const LawEntries& entries, Tensor workspace, Stream stream);
void head_maxima(Tensor out, const Tensor& row_maxima, Stream stream);
void qk_clip(Tensor wq, Tensor wk, const Tensor& maxima, int64_t head_dim, float limit, Stream stream);

// --- what scores read of tokens
void running_sums(Tensor sums, Tensor total, const Tensor& values, const Tensor& keys, int64_t length,
                  int64_t first, Stream stream);
void running_sums_backward(Tensor dvalues, const Tensor& dsums, int64_t length, Stream stream);
void term_gradient(Tensor dx, const Tensor& derivative, const Tensor& gradient, Write write, Stream stream);
void token_angles(Tensor cosine, Tensor sine, const Tensor& sums, const Tensor& theta, int64_t length,
                  int64_t first, Stream stream);
void token_angles_backward(Tensor dsums, const Tensor& dx, const Tensor& x, const Tensor& theta,
                           int64_t head_dim, Write write, Stream stream);

// --- gated delta rule (delta_gates.cu, delta_rule.cu, delta_chunks_*.cu); up to 256 key channels per head
void delta_gates(Tensor decay, Tensor beta, const Tensor& u, const Tensor& ub, const Tensor& a_log,
                 const Tensor& bias, float beta_max, Stream stream);
struct DeltaGateGradients {
    Tensor u, ub, a_log, bias;     // written; a_log and bias accumulate
    const Tensor &ddecay, &dbeta;  // read
};
inline constexpr int64_t delta_gates_backward_workspace(int64_t width) {
    return width * 8;
}
void delta_gates_backward(const DeltaGateGradients& d, Tensor workspace, const Tensor& u, const Tensor& ub,
                          const Tensor& a_log, const Tensor& bias, float beta_max, Stream stream);
struct DeltaInputs {
    const Tensor &q, &k, &v, &decay, &beta;
};
struct DeltaStates {
    Tensor of_chunks{}, last{};  // either may be empty
};
struct DeltaGradients {
    Tensor q, k, v, decay, beta;
};
int64_t delta_workspace(const DeltaSpec& spec, bool backward, DType type);
void delta_rule(Tensor o, const DeltaStates& states, Tensor workspace, const DeltaInputs& in,
                const DeltaSpec& spec, Stream stream);
void delta_rule_backward(const DeltaGradients& d, Tensor workspace, const Tensor& dout, const Tensor& states,
                         const DeltaInputs& in, const DeltaSpec& spec, Stream stream);

// --- attention (attention_forward.cu, attention_decode.cu, attention_backward.cu); head sizes up to 256
// The blocks of the kernels of attention_hopper.h, where they serve; 0: on another GPU. queue: two ints of the device, 0
// between launches, with which blocks share a list of work.
struct HopperWorkers {
    int count = 0;
    int* queue = nullptr;
};
void attention(Tensor o, Tensor lse, Tensor row_maxima, const Tensor& q, const Tensor& k, const Tensor& v,
               const AttentionSpec& spec, Stream stream, const HopperWorkers& workers = {});
void attention_statistics(Tensor statistics, const Tensor& lse, const Tensor& q, const Tensor& k,
                          const Tensor& watched, const AttentionSpec& spec, Stream stream);
void attention_decode(Tensor o, const Tensor& q, const Tensor& k, const Tensor& v, const AttentionSpec& spec,
                      int64_t first, int64_t position, Stream stream);
int64_t attention_backward_workspace(const AttentionSpec& spec, const AttentionGradients& gradients);
struct QueryKeyValue {
    Tensor q{}, k{}, v{};
};
struct AttentionSaved {
    QueryKeyValue in{};
    Tensor o{}, lse{};
};
void attention_backward(const QueryKeyValue& d, const AttentionGradients& gradients, Tensor workspace,
                        const Tensor& dout, const AttentionSaved& saved, const AttentionSpec& spec,
                        Stream stream, const HopperWorkers& workers = {});

// --- the same of the normaliser stick_breaking (stick_breaking_*.cu); backward does not read the lse
void break_sticks(Tensor o, Tensor lse, const Tensor& q, const Tensor& k, const Tensor& v,
                  const AttentionSpec& spec, Stream stream);
void stick_statistics(Tensor statistics, const Tensor& lse, const Tensor& q, const Tensor& k,
                      const Tensor& watched, const AttentionSpec& spec, Stream stream);
void stick_decode(Tensor o, const Tensor& q, const Tensor& k, const Tensor& v, const AttentionSpec& spec,
                  int64_t first, int64_t position, Stream stream);
int64_t stick_workspace(const AttentionSpec& spec, const AttentionGradients& gradients);
void break_sticks_backward(const QueryKeyValue& d, const AttentionGradients& gradients, Tensor workspace,
                           const Tensor& dout, const AttentionSaved& saved, const AttentionSpec& spec,
                           Stream stream);

// --- gates, activations, mixing
// In place: h = max(0, h)^2.
void relu2(Tensor h, Stream stream);
// In place: da = da * 2 sqrt(h).
void relu2_backward(Tensor da, const Tensor& h, Stream stream);
void gate(Tensor y, const Tensor& u, const Tensor& o, const GateSpec& spec, Stream stream);
void gate_backward(Tensor dout, Tensor du, const Tensor& dy, const Tensor& u, const Tensor& o,
                   const GateSpec& spec, Stream stream);
void exclude_own_value(Tensor y, const Tensor& o, const Tensor& v, int64_t head_dim, Stream stream);
void exclude_own_value_backward(Tensor dout, Tensor dv, const Tensor& dy, const Tensor& o, const Tensor& v,
                                int64_t head_dim, Stream stream);
void activation(Tensor h, const Tensor& a, Activation kind, Stream stream);
void activation_backward(Tensor da, const Tensor& dh, const Tensor& a, Activation kind, Stream stream);
void mix(Tensor out, const Coefficient& a, const Tensor& x, const Coefficient& b, const Tensor& y,
         Stream stream);
inline constexpr int64_t mix_backward_workspace(int64_t count) {
    return 2 * flat_blocks(count) * 8;
}
struct MixGradients {
    Tensor x{}, y{}, a{}, b{};
};
void mix_backward(const MixGradients& d, Tensor workspace, const Tensor& dout, const Coefficient& a,
                  const Tensor& x, const Coefficient& b, const Tensor& y, Stream stream);

// --- loss
void cross_entropy(Tensor loss, Tensor logits, const Tensor& targets, const LossSpec& spec, bool gradient,
                   Stream stream);
void top1(Tensor best, const Tensor& logits, Stream stream);

// --- reductions and optimisers
inline constexpr int64_t sum_workspace(int64_t count) {
    return flat_blocks(count) * 8;
}
void sum(Tensor out, Tensor workspace, const Tensor& x, Stream stream);
int64_t sum_squares_workspace(std::span<const Tensor> parts);
void sum_squares(Tensor out, Tensor workspace, std::span<const Tensor> parts, Stream stream);

void adam(std::span<const AdamSlot> slots, const AdamSpec& spec, Stream stream);  // Muon: gemm.h

}  // namespace longreach::cuda
