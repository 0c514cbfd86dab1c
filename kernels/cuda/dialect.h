// The language of kernels/cuda. From the same sources nvcc compiles for a GPU, and g++ for the harness
// in tests/simt, thread by thread.
//
//   kernel       KERNEL(256) void name(pointers and plain structs by value): threads per block at most 256;
//                KERNEL(128, 1): registers may go up to what one block of 128 threads can have
//   device code  DEVICE float f(float x); HOST_DEVICE what launches call too (nvcc makes a call of a DEVICE function from
//                host code end the program, often without a word; cuda_host_calls looks for such calls)
//   shared       struct Layout { float x[256]; };  Layout& s = shared<Layout>();  one struct per block, its
//                size is what the launch asks for: shared_bytes = sizeof(Layout)
//   launch       launch(name, {grid, block, sizeof(Layout), stream}, arguments...), never <<<>>>
//   threads      threadIdx, blockIdx, blockDim, gridDim, __syncthreads(), __syncwarp(mask), __shfl_xor_sync,
//                __shfl_down_sync, __shfl_sync, __ballot_sync, __any_sync, __all_sync
//   bfloat16     __nv_bfloat16 of cuda_bf16.h, which both compilers take
// Everything below the CUDA language, PTX, is in ptx.cuh and ptx_sm90.cuh and nowhere else.
#pragma once

#if defined(__CUDACC__)

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstddef>

#define KERNEL(...) __global__ __launch_bounds__(__VA_ARGS__)
#define DEVICE __device__ __forceinline__
#define HOST_DEVICE __host__ __device__ __forceinline__

namespace longreach::cuda {

template <class Layout>
DEVICE Layout& shared() {
    extern __shared__ __align__(1024) unsigned char arena[];
#ifndef NDEBUG
    // Where a launch puts it is not said by its declaration, of which the compiler would conclude that this holds.
    volatile size_t address = __cvta_generic_to_shared(arena);
    if (address % alignof(Layout) != 0) __trap();
#endif
    return *reinterpret_cast<Layout*>(arena);
}

struct Launch {
    dim3 grid, block;
    size_t shared_bytes = 0;
    cudaStream_t stream = nullptr;
};

// Shared memory beyond 48 KiB is asked for here; a failed launch shows in the next cudaGetLastError().
template <class... Parameters, class... Arguments>
void launch(void (*kernel)(Parameters...), const Launch& at, Arguments&&... arguments) {
    if (at.shared_bytes > 48 * 1024)
        cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                             cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(at.shared_bytes));
    cudaLaunchConfig_t config{};
    config.gridDim = at.grid;
    config.blockDim = at.block;
    config.dynamicSmemBytes = at.shared_bytes;
    config.stream = at.stream;
    cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...);
}

}  // namespace longreach::cuda

#else

#include "simt/device.h"  // IWYU pragma: export

#endif
