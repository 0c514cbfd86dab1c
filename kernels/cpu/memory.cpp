// Memory, copies and the lifetime of CpuOps.
#if defined(__linux__)
#include <sys/mman.h>
#endif

#include <cstring>
#include <new>

#include "base/error.h"
#include "kernels/ops.h"

#include "kernels/cpu/isa_begin.h"
#include "kernels/cpu/simd.h"
#include "kernels/cpu/loops.h"
#include "kernels/cpu/micro_gemm.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/cpu_ops.h"

namespace {

// Pages of an anonymous mapping arrive zeroed; aligned_alloc plus memset would touch them all on
// one thread at once.
constexpr std::align_val_t alignment{64};

// Large blocks start on a huge page and ask for huge pages where the system grants them on request: the row
// kernels gain 10 to 40 percent in fewer misses of the address cache.
constexpr int64_t huge_page = int64_t{1} << 21;
std::align_val_t alignment_of(int64_t bytes) {
    return bytes >= 2 * huge_page ? static_cast<std::align_val_t>(huge_page) : alignment;
}
void ask_for_huge_pages([[maybe_unused]] void* memory, [[maybe_unused]] int64_t bytes) {
#if defined(__linux__)
    if (bytes >= 2 * huge_page) madvise(memory, static_cast<size_t>(bytes), MADV_HUGEPAGE);
#endif
}

// Elements or bytes per block of the copy-like loops.
constexpr int64_t block = 1 << 16;

#if defined(LONGREACH_ISA_BF16)
// A row of bf16: the roundings that products make of the same numbers.
void round_row(std::byte* to, const float* from, int64_t count) {
    for (int64_t i = 0; i < count; i += 2 * lanes) {
        const Vec rounded = Bf16Unit::along(from + i, count - i);
        std::memcpy(to + 2 * i, &rounded, static_cast<size_t>(2 * smaller(2 * lanes, count - i)));
    }
}
#endif

template <class Body>
void for_blocks(int64_t count, Pool& pool, Body body) {
    const int64_t blocks = (count + block - 1) / block;
    pool.run(blocks,
             [&](int64_t b, int) { body(b * block, count - b * block < block ? count : (b + 1) * block); });
}

}  // namespace

CpuOps::CpuOps(int threads, Precision precision, Tiles tiles)
    : pool_(threads),
      threads_(pool_.threads()),
      precision_(precision),
      products_(precision == Precision::fp32 ? Products::f32
                : tiles == Tiles::usable     ? Products::bf16_tiles
                                             : Products::bf16),
      tiles_(tiles) {
    scratch_per_thread_ = 1 << 17;  // 512 KiB: half of a typical L2
    packed_floats_ = 1 << 22;       // 16 MiB: larger right-hand sides are packed in pieces
    scratch_ = static_cast<float*>(allocate(scratch_per_thread_ * threads_ * 4));
    packed_ = static_cast<float*>(allocate(packed_floats_ * 4));
    partials_ = static_cast<double*>(allocate(partial_doubles * 8));
}

CpuOps::~CpuOps() {
    release(scratch_, scratch_per_thread_ * threads_ * 4);
    release(packed_, packed_floats_ * 4);
    release(partials_, partial_doubles * 8);
}

std::string CpuOps::describe() const {
    const bool half = precision_ == Precision::bf16;
    return fmt::format("cpu {}{}, {} thread{}, {}{}", isa_name,
                       products_ == Products::bf16_tiles ? "_amx" : "", threads_, threads_ == 1 ? "" : "s",
                       half ? "bf16" : "fp32",
                       half && tiles_ == Tiles::wrong ? " (without AMX, which failed its check)" : "");
}

DeviceTraits CpuOps::do_traits() const {
    return {.cached = precision_ == Precision::bf16 ? DType::bf16 : DType::f32};
}

int64_t CpuOps::scratch_bytes() const {
    return (scratch_per_thread_ * threads_ + packed_floats_) * 4 + partial_doubles * 8;
}

void* CpuOps::allocate(int64_t bytes) {
    void* memory = ::operator new(static_cast<size_t>(bytes), alignment_of(bytes), std::nothrow);
    require(memory != nullptr, ExitCode::device, "cannot allocate {} bytes of memory", bytes);
    ask_for_huge_pages(memory, bytes);
    std::byte* p = static_cast<std::byte*>(memory);
    for_blocks(bytes, pool_, [&](int64_t begin, int64_t end) {
        std::memset(p + begin, 0, static_cast<size_t>(end - begin));
    });
    return memory;
}

void CpuOps::release(void* memory, int64_t bytes) {
    ::operator delete(memory, alignment_of(bytes));
}

void CpuOps::do_upload(Tensor to, const void* host) {
    check(to.contiguous(), "upload into a strided tensor");
    std::memcpy(to.data(), host, static_cast<size_t>(to.bytes()));
}

void CpuOps::do_download(void* host, const Tensor& from) {
    check(from.contiguous(), "download of a strided tensor");
    std::memcpy(host, from.data(), static_cast<size_t>(from.bytes()));
}

void CpuOps::do_zero(Tensor to) {
    check(to.contiguous(), "zero of a strided tensor");
    std::byte* p = to.as<std::byte>();
    for_blocks(to.bytes(), pool_, [&](int64_t begin, int64_t end) {
        std::memset(p + begin, 0, static_cast<size_t>(end - begin));
    });
}

void CpuOps::do_copy(Tensor to, const Tensor& from) {
    const bool rounds = precision_ == Precision::bf16 && from.dtype == DType::f32 && to.dtype == DType::bf16;
    check(to.rows() == from.rows() && to.cols() == from.cols() && (to.dtype == from.dtype || rounds),
          "copy of {}x{} {} to {}x{} {}", from.rows(), from.cols(), name_of(from.dtype), to.rows(), to.cols(),
          name_of(to.dtype));
#if defined(LONGREACH_ISA_BF16)
    if (rounds)
        return for_items(pool_, to.rows(), to.cols(), [&](int64_t r) {
            round_row(to.as<std::byte>() + r * to.row_stride * 2, from.f32() + r * from.row_stride,
                      to.cols());
        });
#endif
    const int64_t size = size_of(to.dtype);
    const int64_t rows = to.rows(), row_bytes = to.cols() * size;
    for_items(pool_, rows, to.cols(), [&](int64_t r) {
        std::memcpy(to.as<std::byte>() + r * to.row_stride * size,
                    from.as<std::byte>() + r * from.row_stride * size, static_cast<size_t>(row_bytes));
    });
}

void CpuOps::do_add(Tensor to, const Tensor& from) {
    check(to.contiguous() && from.contiguous() && to.count() == from.count(), "add of {} to {}", from.count(),
          to.count());
    float* a = to.f32();
    const float* b = from.f32();
    for_blocks(to.count(), pool_, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) a[i] += b[i];
    });
}

#include "kernels/cpu/isa_end.h"
