// Opens the instruction-set region of a CPU kernel source. No include guard: every kernel
// file has one region.
//
// Each kernel source is compiled once per instruction set, with LONGREACH_ISA naming the namespace.
// Only the code between isa_begin.h and isa_end.h is compiled for that set; everything included before stays
// at the baseline, so no inline function of a shared header can end up holding instructions this CPU lacks.
// Include all headers first.
#include "kernels/cpu_device.h"
#if defined(LONGREACH_ISA_AVX512)
#include <immintrin.h>
// avx512bf16 and the two of AMX only allow their intrinsics: no compiler turns f32 arithmetic into them. Precision bf16
// is refused on a CPU that lacks the first, and products use tiles (tiles.h) only where select.cpp says that they work.
#if defined(__clang__)
#pragma clang attribute push(                                                                             \
    __attribute__((target(                                                                                \
        "avx512f,avx512bw,avx512dq,avx512vl,avx512cd,avx512bf16,amx-tile,amx-bf16,avx2,fma,f16c,bmi2"))), \
    apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target( \
    "avx512f,avx512bw,avx512dq,avx512vl,avx512cd,avx512bf16,amx-tile,amx-bf16,avx2,fma,f16c,bmi2,prefer-vector-width=512")
#endif
#elif defined(LONGREACH_ISA_AVX2)
#if defined(__clang__)
#include <immintrin.h>
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c,bmi2"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c,bmi2")
#endif
#elif defined(LONGREACH_ISA_NEON) || defined(LONGREACH_ISA_NEON_BF16)
#include <arm_neon.h>
#if defined(LONGREACH_ISA_NEON_BF16)
#pragma GCC push_options
#pragma GCC target("arch=armv8.2-a+bf16")
#endif
#endif
// Where products of bf16 are instructions: micro_gemm.h has a unit for them.
#if defined(LONGREACH_ISA_AVX512) || defined(LONGREACH_ISA_NEON_BF16)
#define LONGREACH_ISA_BF16 1
#endif
namespace longreach::LONGREACH_ISA {
