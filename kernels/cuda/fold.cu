// Partial sums of fixed blocks, folded.
//
//   columns   to[c] += sum over b of partials[b][c]: a block takes 32 columns, its 8 warps every
//             eighth partial row each; the warps' sums are added in warp order
//   totals    one block per output: every thread adds each 256th entry, then a tree over the block
//
// 4 (8) bytes and one addition per partial sum, a few MB at most. The order depends on the counts alone.
#include "kernels/cuda/fold.h"

#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/vec.cuh"

namespace longreach::cuda {
namespace {

constexpr int fold_warps = 8;
struct ColumnSums {
    float of[fold_warps][32];
};

KERNEL(32 * fold_warps)
void fold_columns_kernel(float* to, const float* partials, int64_t blocks, int64_t stride, int64_t cols) {
    ColumnSums& sums = shared<ColumnSums>();
    const int64_t c = static_cast<int64_t>(blockIdx.x) * 32 + threadIdx.x;
    float sum = 0.0f;
    if (c < cols)
        for (int64_t b = threadIdx.y; b < blocks; b += fold_warps) sum += partials[b * stride + c];
    sums.of[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y != 0 || c >= cols) return;
    for (int w = 1; w < fold_warps; ++w) sum += sums.of[w][threadIdx.x];
    to[c] += sum;
}

KERNEL(256) void fold_totals_kernel(Totals totals) {
    auto& results = shared<WarpResults<double, 256>>();
    const double* from = totals.partials + blockIdx.x * totals.step;
    double sum = 0.0;
    for (int64_t i = threadIdx.x; i < totals.count; i += 256) sum += from[i];
    sum = block_sum<256>(sum, results);
    if (threadIdx.x != 0) return;
    if (totals.set) {
        totals.set[blockIdx.x] = sum;
        return;
    }
    double factor = totals.factor;
    if (totals.log_factor) factor *= exp(static_cast<double>(totals.log_factor[blockIdx.x]));
    totals.add_to[blockIdx.x] += static_cast<float>(factor * sum);
}

}  // namespace

void fold_columns(float* to, const float* partials, int64_t blocks, int64_t stride, int64_t cols,
                  Stream stream) {
    launch(fold_columns_kernel,
           {dim3(blocks_for(cols, 32)), dim3(32, fold_warps), sizeof(ColumnSums), stream}, to, partials,
           blocks, stride, cols);
}

void fold_totals(const Totals& totals, int64_t outputs, Stream stream) {
    launch(fold_totals_kernel,
           {dim3(static_cast<unsigned>(outputs)), dim3(256), sizeof(WarpResults<double, 256>), stream},
           totals);
}

}  // namespace longreach::cuda
