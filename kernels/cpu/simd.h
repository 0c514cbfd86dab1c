// Vectors of f32 as wide as the instruction set of the including region.
// Include between isa_begin.h and isa_end.h.
//
// Built on the compiler's vector extension: + - * / and comparisons are the compiler's own; this file adds
// loads, fused multiply-add, reductions in a fixed order, and exp2/exp/tanh with their error bounds. A sum over a row is 16
// sums, whatever the width of a vector (Sums), so that in fp32 every instruction set has the same bits. No include guard
// on purpose: the content belongs to the region's namespace.

#if defined(LONGREACH_ISA_AVX512)
inline constexpr int lanes = 16;
inline constexpr const char* isa_name = "avx512";
#elif defined(LONGREACH_ISA_AVX2)
inline constexpr int lanes = 8;
inline constexpr const char* isa_name = "avx2";
#elif defined(LONGREACH_ISA_NEON_BF16)
inline constexpr int lanes = 4;
inline constexpr const char* isa_name = "neon_bf16";
#elif defined(LONGREACH_ISA_NEON)
inline constexpr int lanes = 4;
inline constexpr const char* isa_name = "neon";
#else
inline constexpr int lanes = 4;
inline constexpr const char* isa_name = "generic";
#endif

#define LONGREACH_INLINE inline __attribute__((always_inline))

typedef float Vec __attribute__((vector_size(lanes * 4), may_alias));
typedef float VecUnaligned __attribute__((vector_size(lanes * 4), may_alias, aligned(4)));
typedef int32_t VecInt __attribute__((vector_size(lanes * 4), may_alias));

LONGREACH_INLINE Vec load(const float* p) {
    return *reinterpret_cast<const VecUnaligned*>(p);
}
LONGREACH_INLINE void store(float* p, Vec v) {
    *reinterpret_cast<VecUnaligned*>(p) = v;
}
// The same to an address aligned to a vector, without reading the cache line first and without keeping it: for a result
// that is larger than the caches. Call drain_stores() before another thread may read it.
LONGREACH_INLINE void store_past_caches(float* p, Vec v) {
#if defined(LONGREACH_ISA_AVX512)
    _mm512_stream_ps(p, (__m512)v);
#elif defined(LONGREACH_ISA_AVX2)
    __builtin_ia32_movntps256(p, v);
#else
    store(p, v);
#endif
}
LONGREACH_INLINE void drain_stores() {
#if defined(LONGREACH_ISA_AVX512) || defined(LONGREACH_ISA_AVX2)
    __builtin_ia32_sfence();
#endif
}
// Whether a result [rows, cols], its rows `stride` apart, is to go there: its rows are aligned to vectors, and it has at
// least 2 MiB, twice what the L2 of a core keeps. A function of the shape and the address.
LONGREACH_INLINE bool goes_past_caches(const float* p, int64_t stride, int64_t rows, int64_t cols) {
    constexpr int64_t bytes = sizeof(float);
    const uint64_t steps = reinterpret_cast<uint64_t>(p) | static_cast<uint64_t>(stride * bytes);
    return steps % sizeof(Vec) == 0 && rows * cols * bytes >= 2 << 20;
}
LONGREACH_INLINE Vec splat(float x) {
    return x - Vec{};
}
// a * b + c in one rounding, but in two for `generic` on x86, which lacks the instruction. The build contracts nothing
// itself (-ffp-contract=off): what is fused is written here, and it is the same on every instruction set.
LONGREACH_INLINE Vec fma(Vec a, Vec b, Vec c) {
#if defined(LONGREACH_ISA_AVX512) && defined(__clang__)
    return (Vec)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(LONGREACH_ISA_AVX512)
    return __builtin_ia32_vfmaddps512_mask(a, b, c, -1, 4);  // all lanes, current rounding
#elif defined(LONGREACH_ISA_AVX2)
    return __builtin_ia32_vfmaddps256(a, b, c);
#elif defined(LONGREACH_ISA_NEON) || defined(LONGREACH_ISA_NEON_BF16)
    return (Vec)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#else
    return a * b + c;
#endif
}
LONGREACH_INLINE Vec max(Vec a, Vec b) {
    return a > b ? a : b;
}
LONGREACH_INLINE Vec min(Vec a, Vec b) {
    return a < b ? a : b;
}
LONGREACH_INLINE Vec sqrt(Vec x) {
#if defined(LONGREACH_ISA_AVX512) && defined(__clang__)
    return (Vec)_mm512_sqrt_ps((__m512)x);
#elif defined(LONGREACH_ISA_AVX512)
    return __builtin_ia32_sqrtps512_mask(x, x, -1, 4);       // all lanes, current rounding
#elif defined(LONGREACH_ISA_AVX2)
    return __builtin_ia32_sqrtps256(x);
#elif defined(LONGREACH_ISA_NEON) || defined(LONGREACH_ISA_NEON_BF16)
    return (Vec)vsqrtq_f32((float32x4_t)x);
#elif defined(__SSE__)
    return __builtin_ia32_sqrtps(x);
#else
    Vec r{};
    for (int i = 0; i < lanes; ++i) r[i] = __builtin_sqrtf(x[i]);
    return r;
#endif
}

// The first n (0 <= n <= lanes) elements; the others read as `fill` and nothing past p[n-1] is touched.
#if defined(LONGREACH_ISA_AVX512)
LONGREACH_INLINE Vec load_first(const float* p, int n, float fill = 0.0f) {
    return (Vec)_mm512_mask_loadu_ps((__m512)splat(fill), static_cast<__mmask16>((1u << n) - 1), p);
}
LONGREACH_INLINE void store_first(float* p, Vec v, int n) {
    _mm512_mask_storeu_ps(p, static_cast<__mmask16>((1u << n) - 1), (__m512)v);
}
#else
LONGREACH_INLINE Vec load_first(const float* p, int n, float fill = 0.0f) {
    alignas(64) float buffer[lanes];
    for (int i = 0; i < lanes; ++i) buffer[i] = i < n ? p[i] : fill;
    return load(buffer);
}
LONGREACH_INLINE void store_first(float* p, Vec v, int n) {
    alignas(64) float buffer[lanes];
    store(buffer, v);
    for (int i = 0; i < n; ++i) p[i] = buffer[i];
}
#endif

// Bit i of a mask: lane i of what a comparison returned.
LONGREACH_INLINE uint32_t lanes_of(VecInt mask) {
#if defined(LONGREACH_ISA_AVX512)
    return _mm512_movepi32_mask((__m512i)mask);
#elif defined(LONGREACH_ISA_AVX2)
    return static_cast<uint32_t>(__builtin_ia32_movmskps256((Vec)mask));
#elif defined(LONGREACH_ISA_NEON) || defined(LONGREACH_ISA_NEON_BF16)
    const uint32x4_t bit = {1, 2, 4, 8};
    return vaddvq_u32(vandq_u32((uint32x4_t)mask, bit));
#elif defined(__SSE__)
    return static_cast<uint32_t>(__builtin_ia32_movmskps((Vec)mask));
#else
    uint32_t bits = 0;
    for (int i = 0; i < lanes; ++i) bits |= static_cast<uint32_t>(mask[i] & 1) << i;
    return bits;
#endif
}
// The lanes of v whose bits are set, one after the other; up to a whole vector is written.
LONGREACH_INLINE void store_lanes(float* p, Vec v, uint32_t bits) {
#if defined(LONGREACH_ISA_AVX512)
    store(p, (Vec)_mm512_maskz_compress_ps(static_cast<__mmask16>(bits), (__m512)v));
#else
    alignas(64) float buffer[lanes];
    store(buffer, v);
    for (; bits != 0; bits &= bits - 1) *p++ = buffer[__builtin_ctz(bits)];
#endif
}

// 0, 1, 2, ... in every lane.
LONGREACH_INLINE VecInt lane_index() {
    VecInt index;
    for (int i = 0; i < lanes; ++i) index[i] = i;
    return index;
}

// Lane i is lane pick(i) of a and b, one after the other. The indices are constants of the language, because g++ moves
// lanes one by one where it finds out too late that they are.
template <auto pick>
LONGREACH_INLINE Vec shuffle(Vec a, Vec b) {
    return [&]<int... lane>(std::integer_sequence<int, lane...>) __attribute__((always_inline)) {
#if defined(__clang__)
        return __builtin_shufflevector(a, b, pick(lane)...);
#else
        return __builtin_shuffle(a, b, VecInt{pick(lane)...});
#endif
    }
    (std::make_integer_sequence<int, lanes>());
}

// Lane i exchanged with lane i ^ distance (a power of two).
template <int distance>
LONGREACH_INLINE Vec swap_lanes(Vec v) {
    return shuffle<[](int lane) { return lane ^ distance; }>(v, v);
}

// Horizontal reductions: halves are folded, always in the same order, that of sixteen lanes.
LONGREACH_INLINE float reduce_add(Vec v) {
    if constexpr (lanes > 8) v += swap_lanes<8>(v);
    if constexpr (lanes > 4) v += swap_lanes<4>(v);
    v += swap_lanes<2>(v);
    return v[0] + v[1];
}
LONGREACH_INLINE float reduce_max(Vec v) {
    if constexpr (lanes > 8) v = max(v, swap_lanes<8>(v));
    if constexpr (lanes > 4) v = max(v, swap_lanes<4>(v));
    v = max(v, swap_lanes<2>(v));
    return v[0] > v[1] ? v[0] : v[1];
}
LONGREACH_INLINE float reduce_min(Vec v) {
    return -reduce_max(Vec{} - v);
}

// Sixteen sums as vectors: element i of a row belongs to sum i % 16.
inline constexpr int sum_lanes = 16;
inline constexpr int sum_parts = sum_lanes / lanes;
struct Sums {
    Vec part[sum_parts] = {};
};
LONGREACH_INLINE Sums operator+(Sums a, const Sums& b) {
    for (int p = 0; p < sum_parts; ++p) a.part[p] += b.part[p];
    return a;
}
// Folded to one vector, as reduce_add begins.
LONGREACH_INLINE Vec folded(Sums s) {
    for (int half = sum_parts / 2; half > 0; half /= 2)
        for (int p = 0; p < half; ++p) s.part[p] += s.part[p + half];
    return s.part[0];
}
LONGREACH_INLINE float reduce_add(const Sums& s) {
    return reduce_add(folded(s));
}

// rows[i][j] becomes rows[j][i]: log2(lanes) rounds, each swapping off-diagonal blocks of half the size.
template <int block = lanes / 2>
LONGREACH_INLINE void transpose(Vec (&rows)[lanes]) {
#pragma GCC unroll 16
    for (int i = 0; i < lanes; ++i) {
        if (i & block) continue;
        const Vec a = rows[i], b = rows[i + block];
        rows[i] =
            shuffle<[](int j) { return j & block ? j + lanes - block : j; }>(a, b);  // the low blocks of both
        rows[i + block] = shuffle<[](int j) { return j & block ? j + lanes : j + block; }>(a, b);
    }
    if constexpr (block > 1) transpose<block / 2>(rows);
}

// 2^f for |f| <= 1/2: minimax for the relative error with 2^0 = 1 exact, 3e-9 before rounding.
LONGREACH_INLINE Vec exp2_fraction(Vec f) {
    Vec p = splat(1.559467782e-04f);
    p = fma(p, f, splat(1.340664341e-03f));
    p = fma(p, f, splat(9.617692791e-03f));
    p = fma(p, f, splat(5.550310388e-02f));
    p = fma(p, f, splat(2.402265221e-01f));
    p = fma(p, f, splat(6.931472421e-01f));
    return fma(p, f, splat(1.0f));
}

#if defined(LONGREACH_ISA_AVX512)
// Lanes with a result that is a normal number, or a NaN. The others take 0: an Intel core goes to microcode, for about
// a hundred cycles, where SCALEF returns less than that or an FMA reads it.
LONGREACH_INLINE __mmask16 has_normal_exp2(Vec x) {
    return _mm512_cmp_ps_mask((__m512)x, (__m512)splat(-126.0f), _CMP_NLT_UQ);
}
#endif

// 2^x for x <= 128, relative error < 2e-7; 0 for x < -126 (-inf too). A NaN stays NaN.
LONGREACH_INLINE Vec exp2(Vec x) {
#if defined(LONGREACH_ISA_AVX512)
    // The forms with a (full) mask: the plain ones make g++ 12 warn of an uninitialised value
    // in its own header.
    const __mmask16 all = 0xFFFF;
    const __m512 n =
        _mm512_maskz_roundscale_ps(all, (__m512)x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    return (Vec)_mm512_maskz_scalef_ps(has_normal_exp2(x), (__m512)exp2_fraction(x - (Vec)n), n);
#else
    const Vec magic = splat(12582912.0f);  // 1.5 * 2^23: adding it rounds to the nearest integer
    const Vec clamped = max(splat(-126.5f), x);
    const Vec shifted = clamped + magic;
    const Vec p = exp2_fraction(clamped - (shifted - magic));
    const VecInt exponent = (reinterpret_cast<VecInt>(shifted) - 0x4B400000) << 23;
    const Vec result = reinterpret_cast<Vec>(reinterpret_cast<VecInt>(p) + exponent);
    return x < splat(-126.0f) ? Vec{} : result;
#endif
}
#if defined(LONGREACH_ISA_AVX512)
// The same to a relative 9e-5, for values that are then rounded to bf16, which costs 22 times that: 2^f 2^floor(x) with
// a minimax polynomial for 0 <= f <= 1, exact at 0.
LONGREACH_INLINE Vec coarse_exp2(Vec x) {
    const __mmask16 all = 0xFFFF;
    const Vec f = (Vec)_mm512_maskz_reduce_ps(all, (__m512)x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
    Vec p = fma(splat(7.706704736e-02f), f, splat(2.276449949e-01f));
    p = fma(p, f, splat(6.951167583e-01f));
    p = fma(p, f, splat(1.0f));
    return (Vec)_mm512_maskz_scalef_ps(has_normal_exp2(x), (__m512)p, (__m512)x);  // x is rounded down
}
#endif
LONGREACH_INLINE Vec exp(Vec x) {
    return exp2(x * splat(1.4426950408889634f));
}
