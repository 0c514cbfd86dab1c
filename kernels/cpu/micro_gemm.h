// The in-cache core of every matrix product, GEMM and attention alike. Include after simd.h
// in the same region.
//
// A register tile of tile_rows x panel_cols sums of products stays in vector registers while k advances. The
// left side is read one broadcast element at a time through two free strides (so a row-major block and its
// transpose serve alike); the right side is a packed panel: panel_cols values for k = 0, then for k = 1, ...
// Per k and tile: 2 vector loads, tile_rows broadcasts and 2 * tile_rows fused multiply-adds, which keeps
// both multiply-add pipes busy.
//
// Every sum is one chain over k in ascending order, whatever rows share its tile.

#if defined(LONGREACH_ISA_AVX512) || defined(LONGREACH_ISA_NEON) || defined(LONGREACH_ISA_NEON_BF16)
inline constexpr int tile_rows = 12;
#elif defined(LONGREACH_ISA_AVX2)
inline constexpr int tile_rows = 6;
#else
inline constexpr int tile_rows = 4;
#endif
inline constexpr int panel_cols = 2 * lanes;

LONGREACH_INLINE int64_t round_up(int64_t n, int64_t multiple) {
    return (n + multiple - 1) / multiple * multiple;
}
LONGREACH_INLINE int64_t smaller(int64_t a, int64_t b) {
    return a < b ? a : b;
}
LONGREACH_INLINE int64_t larger(int64_t a, int64_t b) {
    return a > b ? a : b;
}

// A unit is what one 32-bit lane multiplies: one f32, or two bf16 consecutive along k.
struct PlainUnit {
    static constexpr int floats = 1;
    // A unit of the left side as multiply_add takes it.
    LONGREACH_INLINE static Vec broadcast(float x) { return splat(x); }
    LONGREACH_INLINE static Vec multiply_add(Vec a, Vec b, Vec sum) { return fma(a, b, sum); }
    // `lanes` units along k: the first n of `lanes` floats, zeros after.
    LONGREACH_INLINE static Vec along(const float* p, int64_t n) {
        return n >= lanes ? load(p) : load_first(p, static_cast<int>(n));
    }
    // Units at the same k of n neighbouring columns; the second row does not exist here.
    LONGREACH_INLINE static Vec across(const float* row, const float*, int64_t n) { return along(row, n); }
    // As exact as an input of a product has to be.
    LONGREACH_INLINE static Vec exp2_of(Vec x) { return exp2(x); }
    // The same, each row times a factor of its own.
    LONGREACH_INLINE static Vec along(const float* p, int64_t n, Vec factor) { return along(p, n) * factor; }
    LONGREACH_INLINE static Vec across(const float* row, const float*, int64_t n, Vec factor, Vec) {
        return along(row, n) * factor;
    }
};

// What an instruction set has for bf16. broadcast: a unit of the left side as multiply_add takes it.
// round_pair: the low half holds the roundings of `low`, the high half those of `high`. interleave: lane i
// holds the roundings of lane i of both. Rounding is to nearest even; sums are f32.
#if defined(LONGREACH_ISA_AVX512)
struct Bf16Instructions {
    LONGREACH_INLINE static Vec broadcast(float x) { return splat(x); }
    LONGREACH_INLINE static Vec multiply_add(Vec a, Vec b, Vec sum) {
        return (Vec)_mm512_dpbf16_ps((__m512)sum, (__m512bh)a, (__m512bh)b);
    }
    LONGREACH_INLINE static Vec exp2_of(Vec x) { return coarse_exp2(x); }
    LONGREACH_INLINE static Vec round_pair(Vec low, Vec high) {
        return (Vec)_mm512_cvtne2ps_pbh((__m512)high, (__m512)low);
    }
    LONGREACH_INLINE static Vec interleave(Vec row, Vec next) {
        const __m512i order = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8,
                                               23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
        return (Vec)_mm512_permutexvar_epi16(order, (__m512i)round_pair(row, next));
    }
};
#elif defined(LONGREACH_ISA_NEON_BF16)
struct Bf16Instructions {
    // In lane 0, where BFDOT by element reads it; of a splat g++ 12 makes a DUP.
    LONGREACH_INLINE static float32x2_t broadcast(float x) { return float32x2_t{x, 0.0f}; }
    LONGREACH_INLINE static Vec multiply_add(float32x2_t a, Vec b, Vec sum) {
        return (Vec)vbfdotq_lane_f32((float32x4_t)sum, (bfloat16x8_t)b, (bfloat16x4_t)a, 0);
    }
    LONGREACH_INLINE static Vec exp2_of(Vec x) { return exp2(x); }
    LONGREACH_INLINE static Vec round_pair(Vec low, Vec high) {
        return (Vec)vcvtq_high_bf16_f32(vcvtq_low_bf16_f32((float32x4_t)low), (float32x4_t)high);
    }
    LONGREACH_INLINE static Vec interleave(Vec row, Vec next) {
        const bfloat16x8_t low = vcvtq_low_bf16_f32((float32x4_t)row);
        const bfloat16x8_t high = vcvtq_low_bf16_f32((float32x4_t)next);
        return (Vec)vzip1q_u16((uint16x8_t)low, (uint16x8_t)high);
    }
};
#endif

#if defined(LONGREACH_ISA_BF16)
// select.cpp hands out bf16 only where the CPU has the instructions. A sum of k products from zero on is off
// by at most gamma(k + 1) of its magnitude, gamma(k) = k u / (1 - k u), u = 2^-24; one of f32 by gamma(k):
//   VDPBF16PS adds the two products of a pair one after the other, each rounded to nearest (u): k roundings.
//   BFDOT adds the two products, which are exact, to each other and their sum to the chain, and rounds both
//   times to odd (2 u). A product passes the rounding in its pair and those of the steps after the first,
//   which adds to zero: at most ceil(k / 2) roundings. (With FEAT_EBF16 it rounds to nearest, but only if
//   FPCR.EBF asks for that.)
// Both read denormal numbers as zero and return zero for denormal results.
struct Bf16Unit : Bf16Instructions {
    static constexpr int floats = 2;
    LONGREACH_INLINE static Vec along(const float* p, int64_t n) {
        return round_pair(PlainUnit::along(p, n), n > lanes ? PlainUnit::along(p + lanes, n - lanes) : Vec{});
    }
    LONGREACH_INLINE static Vec along(const float* p, int64_t n, Vec factor) {
        return round_pair(PlainUnit::along(p, n) * factor,
                          n > lanes ? PlainUnit::along(p + lanes, n - lanes) * factor : Vec{});
    }
    LONGREACH_INLINE static Vec across(const float* row, const float* next, int64_t n) {
        return interleave(PlainUnit::along(row, n), next ? PlainUnit::along(next, n) : Vec{});
    }
    LONGREACH_INLINE static Vec across(const float* row, const float* next, int64_t n, Vec factor,
                                       Vec next_factor) {
        return interleave(PlainUnit::along(row, n) * factor,
                          next ? PlainUnit::along(next, n) * next_factor : Vec{});
    }
};
#endif

// Calls work with a unit of the precision that inputs of products are rounded to.
template <class Work>
LONGREACH_INLINE void with_unit([[maybe_unused]] Precision precision, Work work) {
#if defined(LONGREACH_ISA_BF16)
    if (precision == Precision::bf16) return work(Bf16Unit{});
#endif
    work(PlainUnit{});
}

template <class Unit>
LONGREACH_INLINE int64_t units_of(int64_t floats) {
    return (floats + Unit::floats - 1) / Unit::floats;
}

// What a register tile fetches into L2 while it multiplies: cache lines `step` floats apart, one every `pace` units along k.
struct Ahead {
    const float* at;
    int64_t step;
    int64_t pace = 1;
};
struct NothingAhead {};

// What the sums of a row begin with: start(row, left, right) sets them.
struct FromZero {
    LONGREACH_INLINE void operator()(int64_t, Vec& left, Vec& right) const { left = right = Vec{}; }
};

// One register tile: finish(row, left, right) receives the two vectors of sums of each of `rows` rows.
template <int rows, class Unit, class Fetch, class Finish, class Start = FromZero>
LONGREACH_INLINE void multiply_tile(const float* a, int64_t row_step, int64_t k_step, const float* b,
                                    int64_t k, [[maybe_unused]] Fetch ahead, Finish finish,
                                    Start start = {}) {
    // Three rows to a pointer: the third lies two strides off, which an address can express.
    constexpr int pointers = (rows + 2) / 3;
    const float* p[pointers];
#pragma GCC unroll 16
    for (int i = 0; i < pointers; ++i) p[i] = a + 3 * i * row_step;
    Vec sum[rows][2];
#pragma GCC unroll 16
    for (int r = 0; r < rows; ++r) start(r, sum[r][0], sum[r][1]);
    [[maybe_unused]] int64_t wait = 1;
    for (int64_t i = 0; i < k; ++i) {
        const Vec left = load(b), right = load(b + lanes);
        if constexpr (!std::is_same_v<Fetch, NothingAhead>) {
            if (--wait == 0) {
                __builtin_prefetch(ahead.at, 0, 2);
                ahead.at += ahead.step;
                wait = ahead.pace;
            }
        }
#pragma GCC unroll 16
        for (int r = 0; r < rows; ++r) {
            const auto x = Unit::broadcast(p[r / 3][(r % 3) * row_step]);
            sum[r][0] = Unit::multiply_add(x, left, sum[r][0]);
            sum[r][1] = Unit::multiply_add(x, right, sum[r][1]);
        }
#pragma GCC unroll 16
        for (int j = 0; j < pointers; ++j) p[j] += k_step;
        b += panel_cols;
    }
#pragma GCC unroll 16
    for (int r = 0; r < rows; ++r) finish(r, sum[r][0], sum[r][1]);
}

// A left side. Full tiles lie tile_step apart: tile_rows * row_step unless they were packed one by one.
struct Left {
    const float* data;
    int64_t tile_step, row_step, k_step;
};

// `rows` rows of `a` times one panel, in tiles of tile_rows and smaller ones at the end.
// ahead(t): what tile t fetches.
template <class Unit, class Fetch, class Finish, class Start = FromZero>
LONGREACH_INLINE void multiply_panel(const Left& a, const float* b, int64_t k, int64_t rows, Fetch ahead,
                                     Finish finish, Start start = {}) {
    int64_t r = 0;
    const auto tile = [&]<int size>() __attribute__((always_inline)) {
        const float* at = a.data + r / tile_rows * a.tile_step + r % tile_rows * a.row_step;
        multiply_tile<size, Unit>(
            at, a.row_step, a.k_step, b, k, ahead(r / tile_rows),
            [&](int i, Vec left, Vec right) __attribute__((always_inline)) { finish(r + i, left, right); },
            [&](int i, Vec& left, Vec& right) __attribute__((always_inline)) { start(r + i, left, right); });
        r += size;
    };
    while (rows - r >= tile_rows) tile.template operator()<tile_rows>();
    if constexpr (tile_rows > 8)
        if (rows - r >= 8) tile.template operator()<8>();
    if constexpr (tile_rows > 4)
        if (rows - r >= 4) tile.template operator()<4>();
    if (rows - r >= 2) tile.template operator()<2>();
    if (rows - r >= 1) tile.template operator()<1>();
}
template <class Unit, class Finish>
LONGREACH_INLINE void multiply_panel(const float* a, int64_t row_step, int64_t k_step, const float* b,
                                     int64_t k, int64_t rows, Finish finish) {
    multiply_panel<Unit>(
        Left{a, tile_rows * row_step, row_step, k_step}, b, k, rows, [](int64_t) { return NothingAhead{}; },
        finish);
}
// to [rows, panel_cols], rows `stride` floats apart, += `rows` rows of k units times a panel. Each element goes on as one chain
// from what it was: a k cut into several calls has the bits of one, where vectors of another width cut it elsewhere.
template <class Unit>
void multiply_onto(float* to, int64_t stride, const Left& a, const float* panel, int64_t k, int64_t rows) {
    multiply_panel<Unit>(
        a, panel, k, rows, [](int64_t) { return NothingAhead{}; },
        [=](int64_t r, Vec left, Vec right) __attribute__((always_inline)) {
            store(to + r * stride, left);
            store(to + r * stride + lanes, right);
        },
        [=](int64_t r, Vec & left, Vec & right) __attribute__((always_inline)) {
            left = load(to + r * stride), right = load(to + r * stride + lanes);
        });
}

// Packing. `k` counts floats from here on; k floats are packed as ceil(k / Unit::floats) units.

// Rows of the left side, k contiguous: row r at to + r * to_stride, padded with zeros to a
// multiple of `lanes` units.
template <class Unit>
LONGREACH_INLINE void pack_rows(float* to, int64_t to_stride, const float* from, int64_t stride, int64_t rows,
                                int64_t k) {
    for (int64_t r = 0; r < rows; ++r)
        for (int64_t i = 0, u = 0; i < k; i += lanes * Unit::floats, u += lanes)
            store(to + r * to_stride + u, Unit::along(from + r * stride + i, k - i));
}

// A row-major [k, n] source as a left side that is summed over its rows: unit u of column j at u * to_stride + j.
// Rows of units are written in whole vectors.
template <class Unit>
LONGREACH_INLINE void pack_columns(float* to, int64_t to_stride, const float* from, int64_t stride, int64_t k,
                                   int64_t n) {
    for (int64_t i = 0; i < k; i += Unit::floats, to += to_stride) {
        const float* row = from + i * stride;
        for (int64_t c = 0; c < n; c += lanes)
            store(to + c, Unit::across(row + c, i + 1 < k ? row + stride + c : nullptr, n - c));
    }
}

// Strips of `width` columns from a row-major [k, n] source, row by row so that each page is visited once:
// strip s at to + s * strip_step, element (u, j) of it at u * width + j. Panels of the right side have width
// panel_cols and zeros after the last column; tiles of a transposed left side have width tile_rows, and since
// whole vectors are stored a strip must be followed by tile_slack unused floats. With `factor`, row i of the source
// is multiplied by factor[i].
inline constexpr int tile_slack = 16;
template <int width, class Unit>
LONGREACH_INLINE void pack_strips(float* to, int64_t strip_step, const float* from, int64_t stride, int64_t k,
                                  int64_t n, const float* factor = nullptr) {
    for (int64_t i = 0; i < k; i += Unit::floats, to += width) {
        const bool pair = i + 1 < k;
        const float* row = from + i * stride;
        const float* next = pair ? row + stride : row;
        const auto units = [&](int64_t c) __attribute__((always_inline)) {
            const float* second = pair ? next + c : nullptr;
            if (!factor) return Unit::across(row + c, second, n - c);
            return Unit::across(row + c, second, n - c, splat(factor[i]), splat(factor[pair ? i + 1 : i]));
        };
        float* strip = to;
#if defined(LONGREACH_ISA_AVX512)
        // Four rows of twelve units are three vectors, and none of them crosses a cache line.
        if constexpr (width == 12)
            if (k - i >= 4 * Unit::floats && !factor) {
                for (int64_t c = 0; c < n; c += width, strip += strip_step) {
                    Vec row_of[4];
#pragma GCC unroll 4
                    for (int r = 0; r < 4; ++r) {
                        const float* at = row + r * Unit::floats * stride + c;
                        row_of[r] = Unit::across(at, Unit::floats > 1 ? at + stride : nullptr, n - c);
                    }
                    // Twelve lanes of one row and four of the next, then eight and eight, then four and twelve.
                    store(strip, shuffle<[](int j) { return j < 12 ? j : j + 4; }>(row_of[0], row_of[1]));
                    store(strip + lanes,
                          shuffle<[](int j) { return j < 8 ? j + 4 : j + 8; }>(row_of[1], row_of[2]));
                    store(strip + 2 * lanes,
                          shuffle<[](int j) { return j < 4 ? j + 8 : j + 12; }>(row_of[2], row_of[3]));
                }
                i += 3 * Unit::floats, to += 3 * width;
                continue;
            }
#endif
        for (int64_t c = 0; c < n; c += width, strip += strip_step)
            for (int64_t v = 0; v < width; v += lanes) store(strip + v, n > c + v ? units(c + v) : Vec{});
    }
}
// One panel: the first panel_cols of n columns.
template <class Unit>
LONGREACH_INLINE void pack_panel(float* to, const float* from, int64_t stride, int64_t k, int64_t n,
                                 const float* factor = nullptr) {
    pack_strips<panel_cols, Unit>(to, 0, from, stride, k, smaller(n, panel_cols), factor);
}

// One panel of the right side from its transpose, a row-major [n, k] source: panel_cols columns,
// of which n exist. With `factor`, row j of the source is multiplied by factor[j].
template <class Unit>
LONGREACH_INLINE void pack_panel_transposed(float* to, const float* from, int64_t stride, int64_t k,
                                            int64_t n, const float* factor = nullptr) {
    const int64_t units = units_of<Unit>(k);
    for (int64_t u = 0; u < units; u += lanes) {
        for (int half = 0; half < panel_cols; half += lanes) {
            Vec block[lanes];
            const int64_t rest = k - u * Unit::floats;
            for (int j = 0; j < lanes; ++j) {
                const int row = half + j;
                const float* at = from + row * stride + u * Unit::floats;
                block[j] = row >= n ? Vec{}
                           : factor ? Unit::along(at, rest, splat(factor[row]))
                                    : Unit::along(at, rest);
            }
            transpose(block);
            const int64_t count = smaller(lanes, units - u);
            for (int64_t i = 0; i < count; ++i) store(to + (u + i) * panel_cols + half, block[i]);
        }
    }
}
