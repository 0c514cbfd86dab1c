// PTX instructions of Hopper (compute capability 9.0, target sm_90a), each a function here and nowhere else: barriers in
// shared memory, the copy engine, products of whole warpgroups. nvcc compiles the instruction, g++ the emulation in
// tests/simt, which also reports wrong uses.
//
// Shared memory is seen through two proxies. Threads read and write it through the generic one, the copy engine and
// wgmma through the asynchronous one. What the copy engine brought is visible to whoever waited for its barrier; what
// threads wrote is visible to wgmma and to the copy engine only after fence_async_proxy() by every thread that wrote,
// and a barrier after it.
#pragma once

#include "kernels/cuda/ptx.cuh"

#include <cuda.h>

#include <cstdint>

namespace longreach::cuda {

// A barrier in shared memory. Its phases alternate in parity from 0 on; a phase completes when all arrivals are there and
// all bytes announced for it have come.
struct alignas(8) PhaseBarrier {
    uint64_t state;
};

// Where the operand of a product lies in shared memory: tiles of rows of 64 bfloat16, 128 bytes, in the order that the
// copy engine's 128-byte swizzle gives: the 16-byte chunk c of row r at chunk c ^ (r % 8). Tiles start on 1024 bytes.
using Operand = uint64_t;

#if defined(__CUDACC__)

DEVICE uint32_t shared_address(const void* p) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

// Once per barrier, by one thread, before anyone uses it: then fence_barrier_init() by that thread and __syncthreads().
DEVICE void barrier_init(PhaseBarrier& barrier, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(&barrier)), "r"(arrivals)
                 : "memory");
}
DEVICE void fence_barrier_init() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
DEVICE void barrier_arrive(PhaseBarrier& barrier) {
    asm volatile("mbarrier.arrive.release.cta.shared::cta.b64 _, [%0];" ::"r"(shared_address(&barrier))
                 : "memory");
}
// Arrives, and makes the phase wait for `bytes` bytes of copies too.
DEVICE void barrier_arrive_expecting(PhaseBarrier& barrier, int bytes) {
    asm volatile(
        "mbarrier.arrive.expect_tx.release.cta.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(&barrier)),
        "r"(bytes)
        : "memory");
}
// Whether the phase of this parity has completed; waits a while for it.
DEVICE bool barrier_try_wait(PhaseBarrier& barrier, int parity) {
    uint32_t completed;
    asm volatile(
        "{\n"
        ".reg .pred p;\n"
        "mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 p, [%1], %2;\n"
        "selp.u32 %0, 1, 0, p;\n"
        "}"
        : "=r"(completed)
        : "r"(shared_address(&barrier)), "r"(parity)
        : "memory");
    return completed != 0;
}
DEVICE void barrier_wait(PhaseBarrier& barrier, int parity) {
    while (!barrier_try_wait(barrier, parity)) {
    }
}

DEVICE void fence_async_proxy() {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// Bytes from device to shared memory, both addresses and the count multiples of 16; they count for the barrier's phase.
DEVICE void bulk_copy(void* to, const void* from, int bytes, PhaseBarrier& barrier) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
            shared_address(to)),
        "l"(from), "r"(bytes), "r"(shared_address(&barrier))
        : "memory");
}
// The box of the map at (column, row, sequence), from device to shared memory, aligned to 1024 bytes there: what lies
// outside the tensor arrives as 0 and counts like the rest.
DEVICE void tensor_copy(void* to, const CUtensorMap& map, int column, int row, int sequence,
                        PhaseBarrier& barrier) {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, "
        "%3, %4}], "
        "[%5];" ::"r"(shared_address(to)),
        "l"(&map), "r"(column), "r"(row), "r"(sequence), "r"(shared_address(&barrier))
        : "memory");
}
// The reverse; what lies outside the tensor is not written. The box may be written again after tensor_stores_read() by
// the thread that issued the store.
DEVICE void tensor_store(const CUtensorMap& map, const void* from, int column, int row, int sequence) {
    asm volatile(
        "cp.async.bulk.tensor.3d.global.shared::cta.tile.bulk_group [%0, {%1, %2, %3}], [%4];" ::"l"(&map),
        "r"(column), "r"(row), "r"(sequence), "r"(shared_address(from))
        : "memory");
}
DEVICE void tensor_stores_commit() {
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
DEVICE void tensor_stores_read() {
    asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}

// Registers per thread of the calling warpgroup, all four warps together; a multiple of 8 from 24 to 240. A block's pool
// is what it was launched with: more_registers() waits until fewer_registers() of others has made room, for ever if
// nobody does (RegisterSplit in tiles_sm90.cuh).
template <int registers>
DEVICE void fewer_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(registers));
}
template <int registers>
DEVICE void more_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(registers));
}

// Four 8 x 8 matrices of bfloat16 to shared memory: the inverse of ldmatrix_x4.
DEVICE void stmatrix_x4(void* row, const uint32_t (&in)[4]) {
    asm volatile(
        "stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(shared_address(row)),
        "r"(in[0]), "r"(in[1]), "r"(in[2]), "r"(in[3])
        : "memory");
}

// Before the first product after ordinary writes of its registers (sums and, if it has them there, a).
DEVICE void products_fence() {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
// Closes the group of the products since the last one.
DEVICE void products_commit() {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// Until at most `pending` groups are under way. Until then their sums are not to be read nor written, and what they
// read, registers and shared memory, not to be written.
template <int pending>
DEVICE void products_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(pending) : "memory");
}

// Sums of a product as operands of its instruction: numbers %0 .. and registers d[0] ...
#define LONGREACH_NAMES_32                                                                                 \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, " \
    "%22, "                                                                                                \
    "%23, %24, %25, %26, %27, %28, %29, %30, %31"
#define LONGREACH_NAMES_48 \
    LONGREACH_NAMES_32     \
    ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define LONGREACH_NAMES_64 \
    LONGREACH_NAMES_48     \
    ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define LONGREACH_NAMES_128                                                                             \
    LONGREACH_NAMES_64                                                                                  \
    ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, %82, " \
    "%83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, %96, %97, %98, %99, %100, %101, " \
    "%102, %103, %104, %105, %106, %107, %108, %109, %110, %111, %112, %113, %114, %115, %116, %117, "  \
    "%118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define LONGREACH_SUMS_8(i)                                                                     \
    "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), \
        "+f"(d[i + 6]), "+f"(d[i + 7])
#define LONGREACH_SUMS_16(i) LONGREACH_SUMS_8(i), LONGREACH_SUMS_8(i + 8)
#define LONGREACH_SUMS_32 LONGREACH_SUMS_16(0), LONGREACH_SUMS_16(16)
#define LONGREACH_SUMS_48 LONGREACH_SUMS_32, LONGREACH_SUMS_16(32)
#define LONGREACH_SUMS_64 LONGREACH_SUMS_48, LONGREACH_SUMS_16(48)
#define LONGREACH_SUMS_128                                                                  \
    LONGREACH_SUMS_64, LONGREACH_SUMS_16(64), LONGREACH_SUMS_16(80), LONGREACH_SUMS_16(96), \
        LONGREACH_SUMS_16(112)
// The operands after n sums: a (a descriptor, or four registers), b, add; then the signs and which are transposed.
#define LONGREACH_PRODUCT(columns, n, of_a, of_b, of_add, transposed, ...)                              \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " of_add                                             \
                 ", 0;\n"                                                                               \
                 "wgmma.mma_async.sync.aligned.m64n" #columns "k16.f32.bf16.bf16 {" LONGREACH_NAMES_##n \
                 "}, " of_a ", " of_b ", p, 1, 1, " transposed ";\n}"                                   \
                 : LONGREACH_SUMS_##n                                                                   \
                 : __VA_ARGS__, "l"(b), "r"(static_cast<int>(add)))
#define LONGREACH_PRODUCT_ROWS(columns, n, transposed, a0, a1, a2, a3, of_b, of_add)                       \
    LONGREACH_PRODUCT(columns, n, "{" a0 ", " a1 ", " a2 ", " a3 "}", of_b, of_add, transposed, "r"(a[0]), \
                      "r"(a[1]), "r"(a[2]), "r"(a[3]))

// d = a b, or d += a b where `add`: a 64 x 16 and b 16 x columns of bfloat16, d in fp32, by the four warps of a
// warpgroup. With g = lane / 4, t = lane % 4 and w the warp of the group, d[4 n + e] is that of row
// 16 w + g + 8 (e / 2), column 8 n + 2 t + e % 2.
//
// Both in shared memory. a has k contiguous, b too or, `strided`, n; that only with 256 columns.
template <int columns, bool strided = false>
DEVICE void product(float (&d)[columns / 2], Operand a, Operand b, bool add) {
    static_assert(columns == 64 || columns == 96 || columns == 128 || columns == 256);
    static_assert(!strided || columns == 256);
    if constexpr (strided)
        LONGREACH_PRODUCT(256, 128, "%128", "%129", "%130", "0, 1", "l"(a));
    else if constexpr (columns == 256)
        LONGREACH_PRODUCT(256, 128, "%128", "%129", "%130", "0, 0", "l"(a));
    else if constexpr (columns == 64)
        LONGREACH_PRODUCT(64, 32, "%32", "%33", "%34", "0, 0", "l"(a));
    else if constexpr (columns == 96)
        LONGREACH_PRODUCT(96, 48, "%48", "%49", "%50", "0, 0", "l"(a));
    else
        LONGREACH_PRODUCT(128, 64, "%64", "%65", "%66", "0, 0", "l"(a));
}
// a in registers: the warp's 16 rows as the fragments of mma_m16n8k16_bf16. b has k contiguous or, `strided`, n.
template <int columns, bool strided>
DEVICE void product(float (&d)[columns / 2], const uint32_t (&a)[4], Operand b, bool add) {
    static_assert(columns == 64 || columns == 96 || columns == 128);
    if constexpr (columns == 64 && strided)
        LONGREACH_PRODUCT_ROWS(64, 32, "1", "%32", "%33", "%34", "%35", "%36", "%37");
    else if constexpr (columns == 64)
        LONGREACH_PRODUCT_ROWS(64, 32, "0", "%32", "%33", "%34", "%35", "%36", "%37");
    else if constexpr (columns == 96 && strided)
        LONGREACH_PRODUCT_ROWS(96, 48, "1", "%48", "%49", "%50", "%51", "%52", "%53");
    else if constexpr (columns == 96)
        LONGREACH_PRODUCT_ROWS(96, 48, "0", "%48", "%49", "%50", "%51", "%52", "%53");
    else if constexpr (strided)
        LONGREACH_PRODUCT_ROWS(128, 64, "1", "%64", "%65", "%66", "%67", "%68", "%69");
    else
        LONGREACH_PRODUCT_ROWS(128, 64, "0", "%64", "%65", "%66", "%67", "%68", "%69");
}

#undef LONGREACH_NAMES_32
#undef LONGREACH_NAMES_48
#undef LONGREACH_NAMES_64
#undef LONGREACH_NAMES_128
#undef LONGREACH_SUMS_8
#undef LONGREACH_SUMS_16
#undef LONGREACH_SUMS_32
#undef LONGREACH_SUMS_48
#undef LONGREACH_SUMS_64
#undef LONGREACH_SUMS_128
#undef LONGREACH_PRODUCT
#undef LONGREACH_PRODUCT_ROWS

#else

DEVICE uint32_t shared_address(const void* p) {
    return simt::shared_offset(p);
}
DEVICE void barrier_init(PhaseBarrier& barrier, int arrivals, const simt_where& at = simt_where::current()) {
    simt::barrier_init(&barrier, arrivals, at);
}
DEVICE void fence_barrier_init(const simt_where& at = simt_where::current()) {
    simt::fence_barrier_init(at);
}
DEVICE void barrier_arrive(PhaseBarrier& barrier, const simt_where& at = simt_where::current()) {
    simt::barrier_arrive(&barrier, 0, at);
}
DEVICE void barrier_arrive_expecting(PhaseBarrier& barrier, int bytes,
                                     const simt_where& at = simt_where::current()) {
    simt::barrier_arrive(&barrier, bytes, at);
}
DEVICE bool barrier_try_wait(PhaseBarrier& barrier, int parity,
                             const simt_where& at = simt_where::current()) {
    return simt::barrier_try_wait(&barrier, parity, at);
}
DEVICE void barrier_wait(PhaseBarrier& barrier, int parity, const simt_where& at = simt_where::current()) {
    simt::barrier_wait(&barrier, parity, at);
}
DEVICE void fence_async_proxy(const simt_where& at = simt_where::current()) {
    simt::fence_async_proxy(at);
}
DEVICE void bulk_copy(void* to, const void* from, int bytes, PhaseBarrier& barrier,
                      const simt_where& at = simt_where::current()) {
    simt::bulk_copy(to, from, bytes, &barrier, at);
}
DEVICE void tensor_copy(void* to, const CUtensorMap& map, int column, int row, int sequence,
                        PhaseBarrier& barrier, const simt_where& at = simt_where::current()) {
    simt::tensor_copy(to, &map, column, row, sequence, &barrier, at);
}
DEVICE void tensor_store(const CUtensorMap& map, const void* from, int column, int row, int sequence,
                         const simt_where& at = simt_where::current()) {
    simt::tensor_store(&map, from, column, row, sequence, at);
}
DEVICE void tensor_stores_commit(const simt_where& at = simt_where::current()) {
    simt::tensor_stores_commit(at);
}
DEVICE void tensor_stores_read(const simt_where& at = simt_where::current()) {
    simt::tensor_stores_read(at);
}
template <int registers>
DEVICE void fewer_registers(const simt_where& at = simt_where::current()) {
    simt::change_registers(registers, false, at);
}
template <int registers>
DEVICE void more_registers(const simt_where& at = simt_where::current()) {
    simt::change_registers(registers, true, at);
}
DEVICE void stmatrix_x4(void* row, const uint32_t (&in)[4], const simt_where& at = simt_where::current()) {
    simt::stmatrix_x4(row, in, at);
}
DEVICE void products_fence(const simt_where& at = simt_where::current()) {
    simt::products_fence(at);
}
DEVICE void products_commit(const simt_where& at = simt_where::current()) {
    simt::products_commit(at);
}
template <int pending>
DEVICE void products_wait(const simt_where& at = simt_where::current()) {
    simt::products_wait(pending, at);
}
template <int columns, bool strided = false>
DEVICE void product(float (&d)[columns / 2], Operand a, Operand b, bool add,
                    const simt_where& at = simt_where::current()) {
    static_assert(columns == 64 || columns == 96 || columns == 128 || columns == 256);
    simt::product(d, columns, nullptr, a, b, strided, add, at);
}
template <int columns, bool strided>
DEVICE void product(float (&d)[columns / 2], const uint32_t (&a)[4], Operand b, bool add,
                    const simt_where& at = simt_where::current()) {
    static_assert(columns == 64 || columns == 96 || columns == 128);
    simt::product(d, columns, a, 0, b, strided, add, at);
}

#endif

// The operand whose first tile starts at `tile`. Rows along k (k contiguous): groups of 8 rows are 1024 bytes apart;
// the next 16 of k are advance(operand, 32). Rows along m or n (k strided): groups of 8 of k are 1024 bytes apart, the
// next 64 of n `next_columns` bytes; the next 16 of k are advance(operand, 2048).
DEVICE Operand operand(const void* tile, int next_columns = 16) {
    return static_cast<uint64_t>((shared_address(tile) & 0x3ffff) >> 4) |
           static_cast<uint64_t>((next_columns & 0x3ffff) >> 4) << 16 |
           static_cast<uint64_t>(1024 >> 4) << 32 | static_cast<uint64_t>(1) << 62;
}
DEVICE Operand advance(Operand of, int bytes) {
    return of + static_cast<uint64_t>(bytes >> 4);
}

}  // namespace longreach::cuda
