// Sums of f32 tensors in f64: out [1] = sum x, or out [i] = sum x_i^2 of several.
//
// 4 bytes and one or two FLOPs per element. Parallel over at most 4096 blocks of the flat array whose size
// depends on the count alone; the block sums are added in block order.
#include <algorithm>

#include "base/error.h"
#include "kernels/ops.h"

#include "kernels/cpu/isa_begin.h"
#include "kernels/cpu/simd.h"
#include "kernels/cpu/loops.h"
#include "kernels/cpu/cpu_ops.h"

namespace {

constexpr int64_t most_blocks = 4096;
constexpr int64_t least_block = 1 << 13;  // elements

template <class BlockSum>
double sum_blocks(double* partials, int64_t count, Pool& pool, BlockSum block_sum) {
    const int64_t blocks = std::clamp<int64_t>(count / least_block, 1, most_blocks);
    for_items(pool, blocks, piece(count, blocks, 0).end, [&](int64_t b) {
        const Range block = piece(count, blocks, b);
        partials[b] = block_sum(block.begin, block.end - block.begin);
    });
    double sum = 0;
    for (int64_t b = 0; b < blocks; ++b) sum += partials[b];
    return sum;
}

}  // namespace

void CpuOps::do_sum(Tensor out, const Tensor& x) {
    check(x.contiguous() && out.dtype == DType::f64 && x.dtype == DType::f32, "sum of {} into {}",
          name_of(x.dtype), name_of(out.dtype));
    const float* p = x.f32();
    out.f64()[0] = sum_blocks(partials_, x.count(), pool_, [p](int64_t begin, int64_t n) {
        const float* from = p + begin;
        return sum_wide(
            n, [from](int64_t i) { return widen(from + i); }, [from](int64_t i) { return double{from[i]}; });
    });
}

void CpuOps::do_sum_squares(Tensor out, std::span<const Tensor> parts) {
    check(out.dtype == DType::f64 && out.count() == std::ssize(parts),
          "sums of squares of {} tensors into {} {}", parts.size(), out.count(), name_of(out.dtype));
    double* to = out.f64();
    for (const Tensor& x : parts) {
        check(x.contiguous() && x.dtype == DType::f32, "sum of squares of {}", name_of(x.dtype));
        const float* p = x.f32();
        *to++ = sum_blocks(partials_, x.count(), pool_,
                           [p](int64_t begin, int64_t n) { return dot_wide(p + begin, p + begin, n); });
    }
}

#include "kernels/cpu/isa_end.h"
