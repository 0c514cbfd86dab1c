// PTX instructions, each a function here and nowhere else. nvcc compiles the instruction, g++ the emulation
// in tests/simt, which also reports wrong uses.
//
// Needs sm_80. All lanes of a warp call ldmatrix and mma together.
#pragma once

#include "kernels/cuda/dialect.h"

#include <cstdint>
#include <cstring>

namespace longreach::cuda {

#if defined(__CUDACC__)

// 16 bytes from device to shared memory, both aligned to 16, asynchronously; of the source only
// `valid` bytes (0 to 16) are read, the rest arrives as 0. The destination may be touched after cp_async_wait
// only, by other threads after a barrier that follows it.
DEVICE void cp_async_16(void* to, const void* from, int valid = 16) {
    auto shared_address = static_cast<uint32_t>(__cvta_generic_to_shared(to));
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address), "l"(from), "r"(valid)
                 : "memory");
}

// Closes the group of the copies since the last one.
DEVICE void cp_async_commit() {
    asm volatile("cp.async.commit_group;" ::: "memory");
}

// Waits until at most `pending` of the latest groups are under way.
template <int pending>
DEVICE void cp_async_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(pending) : "memory");
}

// Four 8 x 8 matrices of bfloat16 from shared memory: lane l gives the address of row l % 8 of matrix l / 8.
// out[j] holds the elements (l / 4, 2 (l % 4)) and (l / 4, 2 (l % 4) + 1) of matrix j.
DEVICE void ldmatrix_x4(uint32_t (&out)[4], const void* row) {
    auto shared_address = static_cast<uint32_t>(__cvta_generic_to_shared(row));
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
                 : "r"(shared_address)
                 : "memory");
}

// The same of each matrix's transpose.
DEVICE void ldmatrix_x4_trans(uint32_t (&out)[4], const void* row) {
    auto shared_address = static_cast<uint32_t>(__cvta_generic_to_shared(row));
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
                 : "r"(shared_address)
                 : "memory");
}

// d = a b + c: a 16 x 16 and b 16 x 8 of bfloat16, c and d 16 x 8 of fp32. With g = lane / 4 and t = lane %
// 4: a[i] row g + 8 (i % 2), columns 2 t + 8 (i / 2) and the next; b[i] rows 2 t + 8 i and the next, column
// g; c[i], d[i] row g + 8 (i / 2), column 2 t + i % 2. The lower half of a word is the lower index.
DEVICE void mma_m16n8k16_bf16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2],
                              const float (&c)[4]) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%10, %11, %12, %13};"
        : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "f"(c[0]), "f"(c[1]), "f"(c[2]),
          "f"(c[3]));
}

// Barrier `id` (1 to 15; 0 is __syncthreads) of `threads` threads, whole warps. named_arrive does not wait.
template <int id>
DEVICE void named_sync(int threads) {
    asm volatile("bar.sync %0, %1;" ::"n"(id), "r"(threads) : "memory");
}
template <int id>
DEVICE void named_arrive(int threads) {
    asm volatile("bar.arrive %0, %1;" ::"n"(id), "r"(threads) : "memory");
}

// 2^x within 2 ulp; results below the normal range are 0, 2^-inf is 0.
DEVICE float exp2_approx(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// The square root within 2^-23 of itself; of numbers below the normal range 0.
DEVICE float sqrt_approx(float x) {
    float y;
    asm("sqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// x, of which the compiler knows nothing here: what is computed from it is computed anew in every turn of a
// loop instead of being kept in registers around it.
DEVICE int anew(int x) {
    asm volatile("" : "+r"(x));
    return x;
}

#else

DEVICE float exp2_approx(float x) {
    return std::exp2(x);
}
DEVICE float sqrt_approx(float x) {
    return std::sqrt(x);
}
DEVICE int anew(int x) {
    return x;
}
DEVICE void cp_async_16(void* to, const void* from, int valid = 16,
                        const simt_where& at = simt_where::current()) {
    simt::cp_async_16(to, from, valid, at);
}
DEVICE void cp_async_commit(const simt_where& at = simt_where::current()) {
    simt::cp_async_commit(at);
}
template <int pending>
DEVICE void cp_async_wait(const simt_where& at = simt_where::current()) {
    simt::cp_async_wait(pending, at);
}
DEVICE void ldmatrix_x4(uint32_t (&out)[4], const void* row, const simt_where& at = simt_where::current()) {
    simt::ldmatrix_x4(out, row, false, at);
}
DEVICE void ldmatrix_x4_trans(uint32_t (&out)[4], const void* row,
                              const simt_where& at = simt_where::current()) {
    simt::ldmatrix_x4(out, row, true, at);
}
DEVICE void mma_m16n8k16_bf16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2],
                              const float (&c)[4], const simt_where& at = simt_where::current()) {
    simt::mma_m16n8k16_bf16(d, a, b, c, at);
}
template <int id>
DEVICE void named_sync(int threads, const simt_where& at = simt_where::current()) {
    simt::named_barrier(id, threads, true, at);
}
template <int id>
DEVICE void named_arrive(int threads, const simt_where& at = simt_where::current()) {
    simt::named_barrier(id, threads, false, at);
}

#endif

// Two numbers rounded to bfloat16 in one word, the first in its lower half: one instruction.
DEVICE uint32_t pack_bf16(float low, float high) {
    const __nv_bfloat162 both = __floats2bfloat162_rn(low, high);
    uint32_t word;
    memcpy(&word, &both, sizeof(word));
    return word;
}

}  // namespace longreach::cuda
