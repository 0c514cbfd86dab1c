// y = x w^T of few rows, as when texts are continued token by token: w is read once, and takes the time.
#include "kernels/ops.h"

#include "kernels/cpu/isa_begin.h"
#include "kernels/cpu/simd.h"
#include "kernels/cpu/items.h"
#include "kernels/cpu/micro_gemm.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/tiles.h"
#include "kernels/cpu/gemm_parts.h"
#include "kernels/cpu/few_rows.h"
#include "kernels/cpu/cpu_ops.h"

namespace {

// Each turn packs panels of its own, for a few rows none; a thread's panel stays in L1.
template <class Unit, class Scratch>
void multiply_from_rows(Pool& pool, const MatrixProduct& p, Scratch scratch_of) {
    const Blocks blocks = Blocks::of<Unit>(p.k);
    const int64_t weights = few_rows_turn / larger(1, p.m / rows_in_place);
    const int64_t cols = larger(1, weights / p.k / panel_cols) * panel_cols;
    pool.run((p.n + cols - 1) / cols, [&](int64_t turn, int thread) {
        float *own_left = scratch_of(thread), *panel = own_left + left_floats;
        for (int64_t col = turn * cols; col < smaller(p.n, (turn + 1) * cols); col += panel_cols) {
            const auto row = [&](int64_t j) { return p.b.data + smaller(j, p.n) * p.b.row_stride; };
            Run next{row(col + panel_cols), row(col + 2 * panel_cols)};
            for (int64_t block = 0; block < blocks.count; ++block) {
                const int64_t k_begin = block * blocks.length, k_count = blocks.length_of(block, p.k);
                const Left x = left_side<Unit>(own_left, p.a, k_begin, k_count, 0, p.m, panel_cols);
                const Writer writer =
                    writer_at(p, 0, col, block == 0 ? p.beta : 1.0f, block == blocks.count - 1);
                if (p.m <= rows_in_place) {
                    multiply_few<Unit>(p.m, x, row(col) + k_begin, p.b.row_stride, k_count, p.n - col,
                                       writer);
                    continue;
                }
                const int64_t units = units_of<Unit>(k_count);
                pack_right<Unit>(panel, p, k_begin, k_count, col);
                multiply_left_panel<Unit>(x, panel, units, p.m, writer,
                                          [&](int64_t) { return next.take(units); });
            }
        }
    });
}

}  // namespace

bool CpuOps::multiply_few_rows(const MatrixProduct& p) {
    if (p.m > most_few_rows || p.a.transposed || !p.b.transposed || products_ == Products::bf16_tiles)
        return false;
    with_products(products_, [&]<class Unit>(Unit) {
        if constexpr (!Core<Unit>::turned)
            multiply_from_rows<Unit>(pool_, p, [&](int thread) { return scratch_of(thread); });
    });
    return true;
}

#include "kernels/cpu/isa_end.h"
