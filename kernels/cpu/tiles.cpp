// Whether products in the tiles of AMX are those of vectors.
#include <cmath>
#include <memory>

#include "base/error.h"

#include "kernels/cpu/isa_begin.h"
#include "kernels/cpu/simd.h"
#include "kernels/cpu/gemm.h"

#if defined(LONGREACH_ISA_AVX512)
bool tiles_agree() {
    // All of a register tile and parts of others, several steps of k and part of one.
    constexpr int64_t m = 41, n = 39, k = 77;
    alignas(64) float a[m * k], b[k * n], in_tiles[m * n], in_vectors[m * n];
    uint32_t state = 1;
    const auto next = [&] {  // between -1 and 1, with more bits than bf16 has
        state = state * 1664525u + 1013904223u;
        return static_cast<float>(static_cast<int32_t>(state)) * 0x1p-31f;
    };
    for (float& x : a) x = next();
    for (float& x : b) x = next();
    const std::unique_ptr<float[]> memory(new float[gemm_serial_scratch + 16]);
    void* at = memory.get();
    size_t bytes = (gemm_serial_scratch + 16) * 4;
    float* scratch = static_cast<float*>(std::align(64, gemm_serial_scratch * 4, at, bytes));
    MatrixProduct p{.c = in_tiles, .c_stride = n, .a = {a, k}, .b = {b, n}, .m = m, .n = n, .k = k};
    gemm_serial(p, scratch, Products::bf16_tiles);
    p.c = in_vectors;
    gemm_serial(p, scratch, Products::bf16);
    // Each is off by at most gamma(k + 1) of the sum of |a||b|, both factors rounded by 2^-9 of themselves.
    for (int64_t i = 0; i < m; ++i)
        for (int64_t j = 0; j < n; ++j) {
            float magnitude = 0;
            for (int64_t l = 0; l < k; ++l) magnitude += std::abs(a[i * k + l] * b[l * n + j]);
            const float bound = 2 * (k + 1) * 0x1.02p-24f * magnitude;
            if (!(std::abs(in_tiles[i * n + j] - in_vectors[i * n + j]) <= bound)) return false;
        }
    return true;
}
#endif

#include "kernels/cpu/isa_end.h"
