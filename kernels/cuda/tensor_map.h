// Maps for Hopper's copy engine: where a tensor lies and which box of it one copy moves.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "kernels/tensor.h"

namespace longreach::cuda {

// Of a bf16 matrix [sequences length, columns]: boxes of 64 columns and `rows` rows of one sequence. Rows past the end
// of a sequence are read as 0 and not written. Throws where the engine cannot take the tensor.
CUtensorMap tensor_map(const Tensor& matrix, int64_t sequences, int64_t length, int rows);

// Whether the engine can: bf16 rows on 16 bytes, at a distance that is a multiple of 16 bytes.
bool has_tensor_map(const Tensor& matrix);

}  // namespace longreach::cuda
