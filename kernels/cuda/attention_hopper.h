// Attention by the kernels for Hopper (attention_forward_sm90.cu, attention_backward_sm90.cu), for bf16 with heads of 64
// or 128 channels, scale, row factors, distance tables or forget sums, sinks and masks. In builds without that architecture
// (LONGREACH_SM90) they serve nothing.
#pragma once

#include "kernels/attention_spec.h"
#include "kernels/cuda/kernels.h"

namespace longreach::cuda {

#if defined(LONGREACH_SM90)
bool attention_sm90_serves(const Tensor& o, const QueryKeyValue& in, const AttentionSpec& spec);
bool attention_backward_sm90_serves(const QueryKeyValue& d, const Tensor& dout, const AttentionSaved& saved,
                                    const AttentionSpec& spec);
#else
inline bool attention_sm90_serves(const Tensor&, const QueryKeyValue&, const AttentionSpec&) {
    return false;
}
inline bool attention_backward_sm90_serves(const QueryKeyValue&, const Tensor&, const AttentionSaved&,
                                           const AttentionSpec&) {
    return false;
}
#endif

// How many blocks of these kernels a device runs: one for each multiprocessor. Code for sm_90a runs on compute capability
// 9.0 alone: 0 on every other, older or newer, whose attention is that of mma.sync.
constexpr int hopper_workers(int architecture, int multiprocessors) {
    return architecture == 90 ? multiprocessors : 0;
}

void attention_sm90(Tensor o, Tensor lse, const QueryKeyValue& in, const AttentionSpec& spec,
                    const HopperWorkers& workers, Stream stream);
// dq, dk, dv and of d_scores the gradients of row factors and forget sums. delta: f32 [H, N].
void attention_backward_sm90(const QueryKeyValue& d, const AttentionGradients& d_scores, const float* delta,
                             const Tensor& dout, const AttentionSaved& saved, const AttentionSpec& spec,
                             const HopperWorkers& workers, Stream stream);

}  // namespace longreach::cuda
