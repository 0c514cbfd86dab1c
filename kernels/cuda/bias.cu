// A bias added to every row of a matrix: y [N, W] += bias [W];  dbias += sum of dy over the rows.
//
// Nothing is saved. In units of the element size: 2 accesses per element forward, 1 backward, and one FLOP
// each. Forward one pack of 16 bytes per thread; backward strips of columns times fixed blocks of rows, whose
// sums are folded in block order.
#include "kernels/cuda/fold.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/vec.cuh"

namespace longreach::cuda {
namespace {

template <class T>
struct AddBias {
    View<T> y;
    const float* bias;
    template <int n>
    DEVICE void at(int64_t r, int64_t c) const {
        Pack<n> v = load<n>(y.at(r, c));
        const Pack<n> added = load<n>(bias + c);
#pragma unroll
        for (int k = 0; k < n; ++k) v[k] += added[k];
        store(y.at(r, c), v);
    }
};

constexpr int rows_at_once = 8;  // of a block of threads
struct BiasSums {
    float of[rows_at_once][32];
};

// partials [blocks, W]: sums over a block of rows.
template <class T>
KERNEL(32 * rows_at_once)
void bias_columns_kernel(float* partials, View<const T> dy, int64_t rows, int64_t width) {
    auto& sums = shared<BiasSums>();
    const int64_t c = static_cast<int64_t>(blockIdx.x) * 32 + threadIdx.x;
    const Range block = piece_of(rows, gridDim.y, blockIdx.y);
    float sum = 0.0f;
    if (c < width)
        for (int64_t r = block.begin + threadIdx.y; r < block.end; r += rows_at_once)
            sum += widen(*dy.at(r, c));
    sums.of[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y == 0 && c < width) {
        for (int y = 1; y < rows_at_once; ++y) sum += sums.of[y][threadIdx.x];
        partials[static_cast<int64_t>(blockIdx.y) * width + c] = sum;
    }
}

}  // namespace

void add_bias(Tensor y, const Tensor& bias, Stream stream) {
    check(bias.count() == y.cols(), "a bias of {} for {} columns", bias.count(), y.cols());
    with_element(y.dtype, [&](auto element) {
        using T = typename decltype(element)::type;
        map<T>(AddBias<T>{view<T>(y), bias.f32()}, y.rows(), y.cols(), aligned(y, bias), stream);
    });
}

void add_bias_backward(Tensor dbias, Tensor workspace, const Tensor& dy, Stream stream) {
    const int64_t rows = dy.rows(), width = dy.cols(), blocks = row_blocks(rows);
    check(dbias.count() == width, "the gradient of a bias of {} for {} columns", dbias.count(), width);
    check(workspace.bytes() >= add_bias_backward_workspace(rows, width),
          "add_bias_backward workspace of {} bytes", workspace.bytes());
    float* partials = workspace.as<float>();
    with_element(dy.dtype, [&](auto element) {
        using T = typename decltype(element)::type;
        launch(bias_columns_kernel<T>,
               {dim3(blocks_for(width, 32), static_cast<unsigned>(blocks)), dim3(32, rows_at_once),
                sizeof(BiasSums), stream},
               partials, view<const T>(dy), rows, width);
    });
    fold_columns(dbias.f32(), partials, blocks, width, width, stream);
}

}  // namespace longreach::cuda
