#include "kernels/amx.h"

#if defined(__x86_64__) && defined(__linux__)
#include <cpuid.h>
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace longreach {

#if defined(__x86_64__) && defined(__linux__)

namespace {

// What the system saves, by the bits of XCR0.
__attribute__((target("xsave"))) unsigned saved_state() {
    return static_cast<unsigned>(_xgetbv(0));
}

// Palette 1 of the CPU has the tiles that kernels/cpu/tiles.h wants.
bool has_shapes() {
    unsigned a, b, c, d;
    if (!__get_cpuid_count(0x1D, 1, &a, &b, &c, &d)) return false;
    const unsigned row_bytes = b & 0xFFFF, tiles = b >> 16, rows = c & 0xFFFF;
    return row_bytes >= 64 && tiles >= 8 && rows >= 16;
}

}  // namespace

bool request_amx() {
    unsigned a, b, c, d;
    constexpr unsigned osxsave = 1u << 27;                // leaf 1, ECX: XGETBV works
    constexpr unsigned tile = 1u << 24, bf16 = 1u << 22;  // leaf 7, EDX
    constexpr unsigned state = 1u << 17 | 1u << 18;       // XTILECFG and XTILEDATA
    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & osxsave)) return false;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(d & tile) || !(d & bf16) || !has_shapes()) return false;
    if ((saved_state() & state) != state) return false;
    constexpr long request_permission = 0x1023, tile_data = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
    return syscall(SYS_arch_prctl, request_permission, tile_data) == 0;
}

#else

bool request_amx() {
    return false;
}

#endif

}  // namespace longreach
