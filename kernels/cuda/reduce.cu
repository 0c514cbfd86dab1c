// Sums of f32 tensors in f64: out [1] = sum x, or out [i] = sum x_i^2 of several.
//
// 4 bytes and one or two FLOPs per element. Two launches for up to 160 tensors, whose addresses travel as arguments. A
// tensor has at most 1024 blocks, by its count alone; every thread adds its packs in double, then a tree over the block,
// then one over the tensor's blocks: a sum has the same bits whatever is summed with it.
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/vec.cuh"

namespace longreach::cuda {
namespace {

constexpr int most_tensors = 160;  // of a launch: their descriptions stay below the 4 KiB arguments may take

struct SummedTensor {
    const float* x;
    int64_t count;
    unsigned begin;  // first block
    bool vectors;
};
struct SumList {
    SummedTensor of[most_tensors];
    int tensors;
    unsigned blocks;  // of all
    DEVICE unsigned end(int tensor) const { return tensor + 1 < tensors ? of[tensor + 1].begin : blocks; }
};

template <int n, bool squares>
DEVICE double thread_sum(const float* x, int64_t packs, unsigned blocks, unsigned block) {
    const Range range = piece_of(packs, blocks, block);
    double sum = 0.0;
    for (int64_t i = range.begin + threadIdx.x; i < range.end; i += 256) {
        const Pack<n> v = load<n>(x + i * n);
#pragma unroll
        for (int k = 0; k < n; ++k) {
            const double d = v[k];
            sum += squares ? d * d : d;
        }
    }
    return sum;
}

template <bool squares>
KERNEL(256)
void sum_kernel(double* partials, SumList list) {
    auto& results = shared<WarpResults<double, 256>>();
    int tensor = 0;  // the last that begins at this block or before
    for (int step = 128; step > 0; step /= 2)
        if (tensor + step < list.tensors && list.of[tensor + step].begin <= blockIdx.x) tensor += step;
    const SummedTensor& t = list.of[tensor];
    const unsigned blocks = list.end(tensor) - t.begin, block = blockIdx.x - t.begin;
    double sum = t.vectors ? thread_sum<4, squares>(t.x, t.count / 4, blocks, block)
                           : thread_sum<1, squares>(t.x, t.count, blocks, block);
    sum = block_sum<256>(sum, results);
    if (threadIdx.x == 0) partials[blockIdx.x] = sum;
}

KERNEL(256) void fold_sums_kernel(double* out, const double* partials, SumList list) {
    auto& results = shared<WarpResults<double, 256>>();
    const int tensor = static_cast<int>(blockIdx.x);
    double sum = 0.0;
    for (unsigned b = list.of[tensor].begin + threadIdx.x; b < list.end(tensor); b += 256) sum += partials[b];
    sum = block_sum<256>(sum, results);
    if (threadIdx.x == 0) out[tensor] = sum;
}

template <bool squares>
void sums(const Tensor& out, const Tensor& workspace, std::span<const Tensor> parts, Stream stream) {
    check(out.dtype == DType::f64 && out.count() == std::ssize(parts), "sums of {} tensors into {} {}",
          parts.size(), out.count(), name_of(out.dtype));
    check(workspace.bytes() >= sum_squares_workspace(parts), "sum workspace of {} bytes", workspace.bytes());
    static_assert(sizeof(SumList) + 16 <= 4096);
    double *to = out.f64(), *partials = workspace.as<double>();
    SumList list{};
    const auto flush = [&] {
        if (list.tensors == 0) return;
        const unsigned tensors = static_cast<unsigned>(list.tensors);
        launch(sum_kernel<squares>, {dim3(list.blocks), dim3(256), sizeof(WarpResults<double, 256>), stream},
               partials, list);
        launch(fold_sums_kernel, {dim3(tensors), dim3(256), sizeof(WarpResults<double, 256>), stream}, to,
               static_cast<const double*>(partials), list);
        to += tensors;
        partials += list.blocks;
        list.tensors = 0;
        list.blocks = 0;
    };
    for (const Tensor& x : parts) {
        check(x.contiguous() && x.dtype == DType::f32, "sum of {}", name_of(x.dtype));
        list.of[list.tensors++] = {x.f32(), x.count(), list.blocks, x.count() % 4 == 0 && aligned(x)};
        list.blocks += static_cast<unsigned>(flat_blocks(x.count()));
        if (list.tensors == most_tensors) flush();
    }
    flush();
}

}  // namespace

void sum(Tensor out, Tensor workspace, const Tensor& x, Stream stream) {
    sums<false>(out, workspace, {&x, 1}, stream);
}

int64_t sum_squares_workspace(std::span<const Tensor> parts) {
    int64_t bytes = 0;
    for (const Tensor& x : parts) bytes += sum_workspace(x.count());
    return bytes;
}

void sum_squares(Tensor out, Tensor workspace, std::span<const Tensor> parts, Stream stream) {
    sums<true>(out, workspace, parts, stream);
}

}  // namespace longreach::cuda
