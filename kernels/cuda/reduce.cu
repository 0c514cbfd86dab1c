// Sums of an f32 tensor in f64: out [1] = sum x, or sum x^2.
//
// 4 bytes and one or two FLOPs per element. At most 1024 blocks of the flat array whose size depends on the
// count alone; every thread adds its packs in double, then a tree over the block, then one over the blocks.
#include "kernels/cuda/fold.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/vec.cuh"

namespace longreach::cuda {
namespace {

template <int n, bool squares>
KERNEL(256)
void sum_kernel(double* partials, const float* x, int64_t packs) {
    auto& results = shared<WarpResults<double, 256>>();
    const Range block = piece_of(packs, gridDim.x, blockIdx.x);
    double sum = 0.0;
    for (int64_t i = block.begin + threadIdx.x; i < block.end; i += 256) {
        const Pack<n> v = load<n>(x + i * n);
#pragma unroll
        for (int k = 0; k < n; ++k) {
            const double d = v[k];
            sum += squares ? d * d : d;
        }
    }
    sum = block_sum<256>(sum, results);
    if (threadIdx.x == 0) partials[blockIdx.x] = sum;
}

template <bool squares>
void sum_blocks(const Tensor& out, const Tensor& workspace, const Tensor& x, Stream stream) {
    check(x.contiguous() && out.dtype == DType::f64 && x.dtype == DType::f32, "sum of {} into {}",
          name_of(x.dtype), name_of(out.dtype));
    const int64_t count = x.count(), blocks = flat_blocks(count);
    check(workspace.bytes() >= sum_workspace(count), "sum workspace of {} bytes", workspace.bytes());
    double* partials = workspace.as<double>();
    with_pack<float>(count % 4 == 0 && aligned(x), [&](auto n) {
        constexpr int pack = decltype(n)::value;
        launch(sum_kernel<pack, squares>,
               {dim3(static_cast<unsigned>(blocks)), dim3(256), sizeof(WarpResults<double, 256>), stream},
               partials, static_cast<const float*>(x.f32()), count / pack);
    });
    fold_totals({.partials = partials, .count = blocks, .set = out.f64()}, 1, stream);
}

}  // namespace

void sum(Tensor out, Tensor workspace, const Tensor& x, Stream stream) {
    sum_blocks<false>(out, workspace, x, stream);
}

void sum_squares(Tensor out, Tensor workspace, const Tensor& x, Stream stream) {
    sum_blocks<true>(out, workspace, x, stream);
}

}  // namespace longreach::cuda
