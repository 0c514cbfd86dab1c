// The instructions of AMX for tiles of bf16 in plain code, each as Intel's manual says, for CPUs that lack them. Included
// before everything else of a source (-include), it takes the place of the intrinsics there.
//
// What the manual calls an exception is one of C++ here: a tile without shapes, shapes that do not fit each other.
#pragma once

#include <immintrin.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <stdexcept>

namespace longreach::test::tiles {

struct Tile {
    int64_t rows = 0, row_bytes = 0;
    alignas(64) unsigned char at[16][64] = {};
};
// Registers belong to a thread.
inline thread_local Tile registers[8];
inline thread_local bool configured = false;
// By all threads since the program started.
inline std::atomic<int64_t> products{0}, loads{0}, configurations{0}, releases{0};
// A broken CPU: products of odd k are left out.
inline std::atomic<bool> broken{false};

inline void refuse(bool wrong, const char* what) {
    if (wrong) throw std::logic_error(what);
}
inline Tile& configured_tile(int number) {
    refuse(!configured, "tiles without shapes");
    Tile& t = registers[number];
    refuse(t.rows == 0 || t.row_bytes == 0, "a tile without a shape");
    return t;
}

// 64 bytes: palette, first row, 14 reserved; bytes of a row of 16 tiles, two bytes each; rows of 16 tiles.
inline void load_config(const void* from) {
    unsigned char bytes[64];
    std::memcpy(bytes, from, 64);
    refuse(bytes[0] != 1 || bytes[1] != 0, "a palette other than 1, or a first row");
    for (int i = 2; i < 16; ++i) refuse(bytes[i] != 0, "a reserved byte");
    for (int i = 0; i < 16; ++i) {
        const int row_bytes = bytes[16 + 2 * i] + 256 * bytes[17 + 2 * i], rows = bytes[48 + i];
        refuse(row_bytes > 64 || rows > 16, "a tile that is too large");
        refuse((row_bytes == 0) != (rows == 0), "a tile with rows or columns alone");
        refuse(i >= 8 && rows > 0, "a ninth tile");
        if (i >= 8) continue;
        registers[i] = Tile();
        registers[i].rows = rows;
        registers[i].row_bytes = row_bytes;
    }
    configured = true;
    ++configurations;
}
inline void release() {
    for (Tile& t : registers) t = Tile();
    configured = false;
    ++releases;
}
inline void zero(int number) {
    std::memset(configured_tile(number).at, 0, sizeof(Tile::at));
}
inline void load(int number, const void* from, int64_t stride) {
    Tile& t = configured_tile(number);
    std::memset(t.at, 0, sizeof(t.at));
    for (int64_t r = 0; r < t.rows; ++r)
        std::memcpy(t.at[r], static_cast<const char*>(from) + r * stride, static_cast<size_t>(t.row_bytes));
    loads.fetch_add(1, std::memory_order_relaxed);
}
inline void store(int number, void* to, int64_t stride) {
    const Tile& t = configured_tile(number);
    for (int64_t r = 0; r < t.rows; ++r)
        std::memcpy(static_cast<char*>(to) + r * stride, t.at[r], static_cast<size_t>(t.row_bytes));
}

// Denormals read and written as zeros of their sign.
inline float flushed(float x) {
    uint32_t bits;
    std::memcpy(&bits, &x, 4);
    if ((bits & 0x7F800000u) == 0) bits &= 0x80000000u;
    std::memcpy(&x, &bits, 4);
    return x;
}
inline float widened(uint16_t upper) {
    const uint32_t bits = uint32_t{upper} << 16;
    float x;
    std::memcpy(&x, &bits, 4);
    return flushed(x);
}

// sums += left right, in pairs along k: a row of `left` has pairs of one row at consecutive k, a row of `right` those of
// all columns at the same k. Products of even k are one chain of fused multiply-adds from zero on, those of odd k
// another; each operation rounds to nearest even.
__attribute__((target("avx512f,fma"))) inline void multiply(int sums, int left, int right) {
    Tile& c = configured_tile(sums);
    const Tile &a = configured_tile(left), &b = configured_tile(right);
    refuse(sums == left || sums == right || left == right, "a tile twice");
    refuse(a.row_bytes % 4 != 0 || b.row_bytes % 4 != 0 || c.row_bytes % 4 != 0, "a part of a pair");
    refuse(c.rows != a.rows || a.row_bytes / 4 != b.rows || c.row_bytes != b.row_bytes,
           "shapes that do not fit");
    uint16_t x[16][32], y[16][32];
    std::memcpy(x, a.at, sizeof(x));
    std::memcpy(y, b.at, sizeof(y));
    float even_right[16][16], odd_right[16][16];
    for (int k = 0; k < 16; ++k)
        for (int n = 0; n < 16; ++n) {
            even_right[k][n] = widened(y[k][2 * n]);
            odd_right[k][n] = broken ? 0 : widened(y[k][2 * n + 1]);
        }
    for (int64_t m = 0; m < c.rows; ++m) {
        float even[16] = {}, odd[16] = {}, row[16];
        std::memcpy(row, c.at[m], sizeof(row));
        for (int64_t k = 0; k < a.row_bytes / 4; ++k) {
            const float even_left = widened(x[m][2 * k]), odd_left = widened(x[m][2 * k + 1]);
            for (int n = 0; n < 16; ++n) {
                even[n] = flushed(__builtin_fmaf(even_left, even_right[k][n], even[n]));
                odd[n] = flushed(__builtin_fmaf(odd_left, odd_right[k][n], odd[n]));
            }
        }
        for (int n = 0; n < 16; ++n) {
            const float pair = flushed(even[n] + odd[n]);
            row[n] = flushed(flushed(row[n]) + pair);
        }
        std::memcpy(c.at[m], row, static_cast<size_t>(c.row_bytes));
    }
    products.fetch_add(1, std::memory_order_relaxed);
}

}  // namespace longreach::test::tiles

#undef _tile_loadd
#undef _tile_stored
#undef _tile_zero
#undef _tile_dpbf16ps
#define _tile_loadconfig(from) ::longreach::test::tiles::load_config(from)
#define _tile_release() ::longreach::test::tiles::release()
#define _tile_loadd(to, from, stride) ::longreach::test::tiles::load(to, from, stride)
#define _tile_stored(from, to, stride) ::longreach::test::tiles::store(from, to, stride)
#define _tile_zero(to) ::longreach::test::tiles::zero(to)
#define _tile_dpbf16ps(sums, left, right) ::longreach::test::tiles::multiply(sums, left, right)
