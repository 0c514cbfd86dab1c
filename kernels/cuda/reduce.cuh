// Reductions of fixed shape: the order of every addition depends on the block size alone.
//
//   warp     butterfly over 32 lanes; every lane gets the same bits
//   block    warp results side by side in shared memory, added by every thread in warp order
//   grid     one partial result per block in a workspace, folded by a second kernel (fold.h)
#pragma once

#include "kernels/cuda/dialect.h"

namespace longreach::cuda {

inline constexpr unsigned all_lanes = 0xffffffffu;

struct Add {
    template <class T>
    DEVICE T operator()(T a, T b) const {
        return a + b;
    }
};
struct Max {
    template <class T>
    DEVICE T operator()(T a, T b) const {
        return a < b ? b : a;
    }
};

// Over runs of `lanes` lanes, a power of two up to 32. All lanes of the warp take part.
template <class T, class Combine>
DEVICE T lanes_reduce(T value, int lanes, Combine combine) {
    for (int offset = lanes / 2; offset > 0; offset /= 2)
        value = combine(value, __shfl_xor_sync(all_lanes, value, offset));
    return value;
}
template <class T>
DEVICE T lanes_sum(T value, int lanes) {
    return lanes_reduce(value, lanes, Add{});
}
template <class T>
DEVICE T warp_sum(T value) {
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) value += __shfl_xor_sync(all_lanes, value, offset);
    return value;
}

// Shared memory of a block's reduction: one entry per warp.
template <class T, int threads>
struct WarpResults {
    T of[threads / 32];
};

// Over a block of `threads` threads, all of which take part and get the result. The barrier at the end frees
// `results` for the next reduction.
template <int threads, class T, class Combine>
DEVICE T block_reduce(T value, WarpResults<T, threads>& results, Combine combine) {
    const int thread = static_cast<int>(threadIdx.x + blockDim.x * threadIdx.y);
    value = lanes_reduce(value, 32, combine);
    if (thread % 32 == 0) results.of[thread / 32] = value;
    __syncthreads();
    T total = results.of[0];
#pragma unroll
    for (int w = 1; w < threads / 32; ++w) total = combine(total, results.of[w]);
    __syncthreads();
    return total;
}
template <int threads, class T>
DEVICE T block_sum(T value, WarpResults<T, threads>& results) {
    return block_reduce<threads>(value, results, Add{});
}

}  // namespace longreach::cuda
