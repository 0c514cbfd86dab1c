// The stand-in for cuBLASLt as tests see it.
#pragma once

#include <cstdint>

namespace longreach::simt {

struct MatmulCounts {
    int64_t heuristics = 0;  // times an algorithm was asked for
    int64_t calls = 0;       // of cublasLtMatmul
    int64_t products = 0;    // in them: batches count as many
};
// Since the program started.
const MatmulCounts& matmul_counts();

// From here on the library knows no algorithm whose partial sums are f32, as for combinations it was not built for.
void without_f32_partial_sums(bool missing);

}  // namespace longreach::simt
