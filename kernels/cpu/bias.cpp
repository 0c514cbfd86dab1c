// A bias added to every row of a matrix: y [N, W] += bias [W];  dbias += sum of dy over the rows.
//
// Nothing is saved. Per element 8 bytes and one FLOP forward, 4 bytes and one FLOP backward. Parallel over
// rows; backward over at most 128 fixed blocks of rows, whose sums are folded in block order.
#include <algorithm>

#include "base/error.h"
#include "kernels/ops.h"

#include "kernels/cpu/isa_begin.h"
#include "kernels/cpu/simd.h"
#include "kernels/cpu/loops.h"
#include "kernels/cpu/fold.h"
#include "kernels/cpu/cpu_ops.h"

void CpuOps::do_add_bias(Tensor y, const Tensor& bias) {
    const int64_t rows = y.rows(), width = y.cols();
    check(bias.count() == width, "a bias of {} for {} columns", bias.count(), width);
    const float* from = bias.f32();
    for_items(pool_, rows, width, [&](int64_t r) {
        float* row = y.f32() + r * y.row_stride;
        for_vectors(width,
                    [&](int64_t i, auto n) { store(row + i, load(row + i, n) + load(from + i, n), n); });
    });
}

void CpuOps::do_add_bias_backward(Tensor dbias, const Tensor& dy) {
    const int64_t rows = dy.rows(), width = dy.cols();
    check(dbias.count() == width, "the gradient of a bias of {} for {} columns", dbias.count(), width);
    const int64_t blocks = fixed_blocks(rows, partial_doubles * 2, width);
    float* partials = reinterpret_cast<float*>(partials_);
    for_items(pool_, blocks, width * piece(rows, blocks, 0).end, [&](int64_t b) {
        float* partial = partials + b * width;
        std::fill_n(partial, width, 0.0f);
        const Range block = piece(rows, blocks, b);
        for (int64_t r = block.begin; r < block.end; ++r) {
            const float* row = dy.f32() + r * dy.row_stride;
            for_vectors(width, [&](int64_t i, auto n) {
                store(partial + i, load(partial + i, n) + load(row + i, n), n);
            });
        }
    });
    const int64_t strips = (width + lanes - 1) / lanes;
    for_items(pool_, strips, lanes * blocks, [&](int64_t s) {
        fold(dbias.f32(), partials, blocks, width,
             Range{s * lanes, std::min<int64_t>(width, (s + 1) * lanes)});
    });
}

#include "kernels/cpu/isa_end.h"
