// The passes of Muon around its matrix products, each over a batch of matrices of one shape or of one
// another's transpose. s is the shorter side, l the longer one; x_i = x + i * step is [s, l], turned where
// matrix i has more rows than columns.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/cuda/kernels.h"

namespace longreach::cuda {

// f32 or bf16 matrices [s, l], one per slot.
struct MuonBatch {
    std::span<const MuonSlot> slots;
    void* x = nullptr;
    DType type = DType::f32;
    int64_t step = 0;  // elements
};

// momentum = mu momentum + q g; partials[i * flat_blocks(s l) + b] = sum of squares of the direction
// u_i over block b.
void muon_momentum(const MuonBatch& batch, double* partials, const MuonSpec& spec, Stream stream);
// x_i = u_i / (sqrt(squares[i]) + 1e-7), with u_i = q g + mu momentum (Nesterov) or momentum.
void muon_scale(const MuonBatch& batch, const double* squares, const MuonSpec& spec, Stream stream);
// param = param * (1 - weight_decay) - learning_rate * x_i, turned back.
void muon_update(const MuonBatch& batch, Stream stream);

}  // namespace longreach::cuda
