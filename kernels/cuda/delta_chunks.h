// The gated delta rule in chunks on tensor cores (delta_chunks.cuh), which delta_rule() and its gradient call where it
// takes what they have.
#pragma once

#include "kernels/cuda/kernels.h"

namespace longreach::cuda {

// Whether the chunked kernels take these: bf16, 32 to 128 key channels, at least 16 positions, channels of keys and of
// values in eights, rows that start on 16 bytes. Those of o, of the saved states and of the
// gradients have to as well.
bool delta_in_chunks(const DeltaInputs& in, const DeltaSpec& spec);
// Segments of each sequence that the passes go through at once; 1: no parts, from one end to the other.
int64_t delta_segments(const DeltaSpec& spec);
int64_t delta_chunks_workspace(const DeltaSpec& spec, bool backward);
void delta_rule_in_chunks(Tensor o, const DeltaStates& states, Tensor workspace, const DeltaInputs& in,
                          const DeltaSpec& spec, Stream stream);
void delta_rule_in_chunks_backward(const DeltaGradients& d, Tensor workspace, const Tensor& dout,
                                   const Tensor& states, const DeltaInputs& in, const DeltaSpec& spec,
                                   Stream stream);

}  // namespace longreach::cuda
