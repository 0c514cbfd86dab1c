// Loops over rows, spans and reductions. Include inside the instruction-set region, after simd.h.
// No include guard on purpose: the content belongs to the region's namespace.

#include "kernels/cpu/items.h"

// The width of a whole vector, known at compile time; an int in its place is a partial one.
struct Whole {};
LONGREACH_INLINE Vec load(const float* p, Whole, float = 0.0f) {
    return load(p);
}
LONGREACH_INLINE Vec load(const float* p, int n, float fill = 0.0f) {
    return load_first(p, n, fill);
}
LONGREACH_INLINE void store(float* p, Vec v, Whole) {
    store(p, v);
}
LONGREACH_INLINE void store(float* p, Vec v, int n) {
    store_first(p, v, n);
}

// A bf16 is the upper half of an f32.
struct Bf16 {
    uint16_t upper;
};
typedef uint16_t Uppers __attribute__((vector_size(lanes * 2), may_alias, aligned(2)));
typedef uint32_t Words __attribute__((vector_size(lanes * 4), may_alias));

LONGREACH_INLINE Vec load(const Bf16* p, Whole) {
#if defined(LONGREACH_ISA_AVX512)  // GCC makes five instructions of the conversion below
    const Words words =
        (Words)_mm512_maskz_cvtepu16_epi32(0xffff, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
#else
    const Words words = __builtin_convertvector(*reinterpret_cast<const Uppers*>(p), Words);
#endif
    return reinterpret_cast<Vec>(words << 16);
}
LONGREACH_INLINE Vec load(const Bf16* p, int n) {
    Bf16 buffer[lanes] = {};
    for (int i = 0; i < n; ++i) buffer[i] = p[i];
    return load(buffer, Whole{});
}

// body(i, width) over [0, count): whole vectors, then at most one partial one. Write the body as a generic
// lambda, so that each of the two calls is compiled for its own width.
template <class Body>
LONGREACH_INLINE void for_vectors(int64_t count, Body body) {
    int64_t i = 0;
    for (; i + lanes <= count; i += lanes) body(i, Whole{});
    if (i < count) body(i, static_cast<int>(count - i));
}

// Asks the L2 for the cache lines of p[0, count), which will be read some thousand instructions later. A core waits for
// few lines of its L1 at once, so asking that one for what memory holds halves the rate at which it is read.
template <class Element>
LONGREACH_INLINE void prefetch(const Element* p, int64_t count) {
    constexpr int64_t line = 64 / sizeof(Element);
    for (int64_t i = 0; i < count; i += line) __builtin_prefetch(p + i, 0, 2);
}

// body(p, i, width) for vector p of each 16 elements of [0, count), which begins at element i; the last one may be partial.
// All is unrolled: with an index p that is not a constant, sums would stay in memory.
template <class Body>
LONGREACH_INLINE void for_parts(int64_t count, Body body) {
    int64_t i = 0;
    for (; i + sum_lanes <= count; i += sum_lanes) {
#pragma GCC unroll 4
        for (int p = 0; p < sum_parts; ++p) body(p, i + p * lanes, Whole{});
    }
#pragma GCC unroll 4
    for (int p = 0; p < sum_parts; ++p, i += lanes) {
        if (i + lanes <= count)
            body(p, i, Whole{});
        else if (i < count)
            body(p, i, static_cast<int>(count - i));
    }
}

// Sums over [0, count) in f32: term(i, width, sum) returns `sum` plus what a vector of elements from i on adds to it, in
// lanes past a partial width nothing. Four chains of sixteen lanes, so at most count / 64 + 4 additions in a row.
template <class Term>
LONGREACH_INLINE Sums chains(int64_t count, Term term) {
    Sums sum[4];
    int64_t i = 0;
    for (; i + 4 * sum_lanes <= count; i += 4 * sum_lanes)
#pragma GCC unroll 16
        for (int c = 0; c < 4 * sum_parts; ++c) {
            Vec& to = sum[c / sum_parts].part[c % sum_parts];
            to = term(i + c * lanes, Whole{}, to);
        }
    const int64_t whole = i + (count - i) / sum_lanes * sum_lanes;
    for (; i < whole; i += sum_lanes)
#pragma GCC unroll 4
        for (int p = 0; p < sum_parts; ++p) sum[0].part[p] = term(i + p * lanes, Whole{}, sum[0].part[p]);
    for_parts(
        count - i, [&](int p, int64_t at, auto n)
                       __attribute__((always_inline)) { sum[1].part[p] = term(i + at, n, sum[1].part[p]); });
    return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}
template <class Term>
LONGREACH_INLINE float sum_vectors(int64_t count, Term term) {
    return reduce_add(chains(count, [&](int64_t i, auto n, Vec sum) { return sum + term(i, n); }));
}
// Sum of products x(i, width) * y(i, width), each fused with its sum.
template <class X, class Y>
LONGREACH_INLINE float sum_products(int64_t count, X x, Y y) {
    return reduce_add(chains(count, [&](int64_t i, auto n, Vec sum) { return fma(x(i, n), y(i, n), sum); }));
}
template <class Element>
LONGREACH_INLINE Sums products(const float* a, const Element* b, int64_t n) {
    return chains(n, [&](int64_t i, auto m, Vec sum) { return fma(load(a + i, m), load(b + i, m), sum); });
}
template <class Element>
LONGREACH_INLINE float dot(const float* a, const Element* b, int64_t n) {
    return reduce_add(products(a, b, n));
}

// Half as many lanes of f64, converted from f32.
inline constexpr int half_lanes = lanes / 2;
typedef double VecDouble __attribute__((vector_size(half_lanes * 8), may_alias));
typedef float HalfVec __attribute__((vector_size(half_lanes * 4), may_alias, aligned(4)));

LONGREACH_INLINE VecDouble widen(const float* p) {
    return __builtin_convertvector(*reinterpret_cast<const HalfVec*>(p), VecDouble);
}

// Sum in f64 of term(i) over [0, count): term(i) is the VecDouble of elements [i, i + half_lanes), rest(i) one element.
// Four chains of eight lanes.
template <class Term, class Rest>
LONGREACH_INLINE double sum_wide(int64_t count, Term term, Rest rest) {
    constexpr int chain = sum_lanes / 2;
    VecDouble sums[4 * sum_parts] = {};
    int64_t i = 0;
    for (; i + 4 * chain <= count; i += 4 * chain)
#pragma GCC unroll 16
        for (int c = 0; c < 4 * sum_parts; ++c) sums[c] += term(i + c * half_lanes);
    double sum = 0;
    for (int p = 0; p < sum_parts; ++p) {
        const VecDouble total =
            (sums[p] + sums[sum_parts + p]) + (sums[2 * sum_parts + p] + sums[3 * sum_parts + p]);
        for (int k = 0; k < half_lanes; ++k) sum += total[k];
    }
    for (; i < count; ++i) sum += rest(i);
    return sum;
}
LONGREACH_INLINE double dot_wide(const float* x, const float* y, int64_t n) {
    return sum_wide(
        n, [&](int64_t i) { return widen(x + i) * widen(y + i); },
        [&](int64_t i) { return double{x[i]} * y[i]; });
}

// An elementwise op cut into spans: runs of the flat arrays where every tensor is
// contiguous, else whole rows.
struct Span {
    int64_t row, col, count;
    float* of(const Tensor& t) const { return t ? t.f32() + row * t.row_stride + col : nullptr; }
};
struct Spans {
    static constexpr int64_t run = 4096;  // elements: 16 KiB, so that a few arrays fit L1
    bool flat;
    int64_t rows, cols, elements;

    template <class... Others>
    explicit Spans(const Tensor& shape, const Others&... others)
        : flat(shape.contiguous() && (others.contiguous() && ...)),
          rows(shape.rows()),
          cols(shape.cols()),
          elements(shape.count()) {}
    int64_t each() const { return flat ? run : cols; }  // elements
    int64_t count() const { return flat ? (elements + run - 1) / run : rows; }
    Span operator[](int64_t s) const {
        if (!flat) return {s, 0, cols};
        const int64_t begin = s * run;
        return {0, begin, elements - begin < run ? elements - begin : run};
    }
};

// Piece i of [0, count) cut into `pieces` equal pieces (the last may be shorter or empty).
struct Range {
    int64_t begin, end;
};
LONGREACH_INLINE Range piece(int64_t count, int64_t pieces, int64_t i) {
    const int64_t size = (count + pieces - 1) / pieces;
    const int64_t begin = i * size < count ? i * size : count;
    return {begin, begin + size < count ? begin + size : count};
}
