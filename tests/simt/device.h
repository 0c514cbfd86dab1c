// The dialect of kernels/cuda/dialect.h for g++: CUDA's words for a kernel, each with the harness behind it.
// Included by kernels through dialect.h only.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>
#include <vector_functions.h>

#include <cmath>
#include <cstring>
#include <source_location>
#include <tuple>
#include <type_traits>
#include <utility>

#include "simt/kernel_calls.h"

// The threads of the bound, in units of 32, as nops at the function's head, where the harness counts them.
#define KERNEL(threads, ...) __attribute__((noinline, patchable_function_entry(((threads) + 31) / 32, 0)))
#define DEVICE inline
#define HOST_DEVICE inline
#undef __grid_constant__
#define __grid_constant__

// The same for a thread as long as it lives, hence const; the harness sets them at every switch.
extern const uint3 threadIdx, blockIdx;
extern const dim3 blockDim, gridDim;
constexpr int warpSize = 32;

// --- meeting points
using simt_where = std::source_location;

inline void __syncthreads(const simt_where& at = simt_where::current()) {
    longreach::simt::sync_block(at);
}
inline void __syncwarp(unsigned mask = 0xffffffffu, const simt_where& at = simt_where::current()) {
    longreach::simt::sync_warp(mask, at);
}
inline unsigned __ballot_sync(unsigned mask, int predicate, const simt_where& at = simt_where::current()) {
    return longreach::simt::ballot(mask, predicate != 0, at);
}
inline int __any_sync(unsigned mask, int predicate, const simt_where& at = simt_where::current()) {
    return longreach::simt::any(mask, predicate != 0, at);
}
inline int __all_sync(unsigned mask, int predicate, const simt_where& at = simt_where::current()) {
    return longreach::simt::all(mask, predicate != 0, at);
}

namespace longreach::simt {

template <class T>
T shuffle_value(ShuffleKind kind, unsigned mask, T value, int argument, int width, const simt_where& at) {
    static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= 8);
    uint64_t bits = 0;
    __builtin_memcpy(&bits, &value, sizeof(T));
    bits = shuffle(kind, mask, bits, argument, width, at);
    __builtin_memcpy(&value, &bits, sizeof(T));
    return value;
}

}  // namespace longreach::simt

template <class T>
T __shfl_sync(unsigned mask, T value, int lane, int width = 32,
              const simt_where& at = simt_where::current()) {
    return longreach::simt::shuffle_value(longreach::simt::ShuffleKind::index, mask, value, lane, width, at);
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int lanes, int width = 32,
                  const simt_where& at = simt_where::current()) {
    return longreach::simt::shuffle_value(longreach::simt::ShuffleKind::exclusive_or, mask, value, lanes,
                                          width, at);
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned by, int width = 32,
                   const simt_where& at = simt_where::current()) {
    return longreach::simt::shuffle_value(longreach::simt::ShuffleKind::down, mask, value,
                                          static_cast<int>(by), width, at);
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned by, int width = 32,
                 const simt_where& at = simt_where::current()) {
    return longreach::simt::shuffle_value(longreach::simt::ShuffleKind::up, mask, value, static_cast<int>(by),
                                          width, at);
}

// On integers only: a sum of floats would depend on the order.
inline int atomicAdd(int* at, int value, const simt_where& where = simt_where::current()) {
    return longreach::simt::atomic_add(at, value, where);
}
template <class T>
T atomicAdd(T*, T) = delete;

// --- mathematics
// The GPU's
// approximate functions are the exact ones here; comparisons with a GPU need a tolerance.
inline float rsqrtf(float x) {
    return 1.0f / std::sqrt(x);
}
inline float __expf(float x) {
    return std::exp(x);
}
inline float __exp2f(float x) {
    return std::exp2(x);
}
inline float __logf(float x) {
    return std::log(x);
}
inline float __log2f(float x) {
    return std::log2(x);
}
inline float __sinf(float x) {
    return std::sin(x);
}
inline float __cosf(float x) {
    return std::cos(x);
}
inline float __fdividef(float a, float b) {
    return a / b;
}
inline float __frcp_rn(float x) {
    return 1.0f / x;
}
inline float __fsqrt_rn(float x) {
    return std::sqrt(x);
}
inline float __fadd_rn(float a, float b) {
    return a + b;
}
inline float __fsub_rn(float a, float b) {
    return a - b;
}
inline float __fmul_rn(float a, float b) {
    return a * b;
}
inline float __fdiv_rn(float a, float b) {
    return a / b;
}
inline float __fmaf_rn(float a, float b, float c) {
    return std::fma(a, b, c);
}
inline float __saturatef(float x) {
    return x > 0.0f ? (x < 1.0f ? x : 1.0f) : 0.0f;
}
template <class T>
T __ldg(const T* at) {
    return *at;
}

namespace longreach::simt {

template <class To, class From>
To same_bits(From from) {
    static_assert(sizeof(To) == sizeof(From));
    To to;
    __builtin_memcpy(&to, &from, sizeof to);
    return to;
}

}  // namespace longreach::simt

inline int __float_as_int(float x) {
    return longreach::simt::same_bits<int>(x);
}
inline unsigned __float_as_uint(float x) {
    return longreach::simt::same_bits<unsigned>(x);
}
inline float __int_as_float(int x) {
    return longreach::simt::same_bits<float>(x);
}
inline float __uint_as_float(unsigned x) {
    return longreach::simt::same_bits<float>(x);
}
inline int __popc(unsigned x) {
    return __builtin_popcount(x);
}
inline int __clz(int x) {
    return x == 0 ? 32 : __builtin_clz(static_cast<unsigned>(x));
}
inline int __ffs(int x) {
    return __builtin_ffs(x);
}

template <class T>
requires std::is_arithmetic_v<T>
constexpr T min(T a, T b) {
    return b < a ? b : a;
}
template <class T>
requires std::is_arithmetic_v<T>
constexpr T max(T a, T b) {
    return a < b ? b : a;
}

// --- launches
namespace longreach::cuda {

template <class Layout>
Layout& shared(const simt_where& at = simt_where::current()) {
    static_assert(std::is_trivially_destructible_v<Layout>);
    return *static_cast<Layout*>(simt::shared_arena(sizeof(Layout), alignof(Layout), at));
}

struct Launch {
    dim3 grid, block;
    size_t shared_bytes = 0;
    cudaStream_t stream = nullptr;
};

template <class... Parameters, class... Arguments>
void launch(void (*kernel)(Parameters...), const Launch& at, Arguments&&... arguments) {
    struct Call {
        void (*kernel)(Parameters...);
        std::tuple<Parameters...> parameters;
    };
    Call call{kernel, {static_cast<Parameters>(arguments)...}};
    simt::Extent grid{at.grid.x, at.grid.y, at.grid.z}, block{at.block.x, at.block.y, at.block.z};
    size_t shared_bytes = at.shared_bytes;
    // Without the opt-in the launch fails as well. That of a layout beyond the architecture is left to the
    // launch, whose finding says more.
    if (shared_bytes > simt::shared_memory_unasked &&
        cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                             cudaFuncAttributeMaxDynamicSharedMemorySize,
                             static_cast<int>(shared_bytes)) == cudaErrorUnknown)
        return;
    if (simt::launch_fails()) return;
    auto work = [call, grid, block, shared_bytes] {
        simt::LaunchShape shape;
        shape.grid = grid;
        shape.block = block;
        shape.shared_bytes = shared_bytes;
        shape.kernel = reinterpret_cast<const void*>(call.kernel);
        shape.parameters = &call;
        shape.parameter_bytes = sizeof call;
        shape.call = [](const void* parameters) {
            const auto* made = static_cast<const Call*>(parameters);
            std::apply(made->kernel, made->parameters);
        };
        shape.pack = [](const void* parameters, std::vector<std::byte>& to) {
            const auto append = [&to]<class Parameter>(const Parameter& one) {
                to.resize((to.size() + alignof(Parameter) - 1) / alignof(Parameter) * alignof(Parameter));
                const auto* bytes = reinterpret_cast<const std::byte*>(&one);
                to.insert(to.end(), bytes, bytes + sizeof one);
            };
            std::apply([&](const auto&... each) { (append(each), ...); },
                       static_cast<const Call*>(parameters)->parameters);
        };
        simt::run_launch(shape);
    };
    simt::submit(work, at.stream);
}

}  // namespace longreach::cuda
