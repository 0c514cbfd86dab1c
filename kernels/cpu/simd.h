// Vectors of f32 as wide as the instruction set of the including region. Include between isa_begin.h and isa_end.h.
//
// Built on the compiler's vector extension: + - * / and comparisons are the compiler's own; this file adds loads, fused
// multiply-add, reductions in a fixed order, and exp2/exp/tanh with their error bounds.
// No include guard on purpose: the content belongs to the region's namespace.

#if defined(LONGREACH_ISA_AVX512)
inline constexpr int lanes = 16;
inline constexpr const char* isa_name = "avx512";
#elif defined(LONGREACH_ISA_AVX2)
inline constexpr int lanes = 8;
inline constexpr const char* isa_name = "avx2";
#else
inline constexpr int lanes = 4;
inline constexpr const char* isa_name = "generic";
#endif

#define LONGREACH_INLINE inline __attribute__((always_inline))

typedef float Vec __attribute__((vector_size(lanes * 4), may_alias));
typedef float VecUnaligned __attribute__((vector_size(lanes * 4), may_alias, aligned(4)));
typedef int32_t VecInt __attribute__((vector_size(lanes * 4), may_alias));

LONGREACH_INLINE Vec load(const float* p) { return *reinterpret_cast<const VecUnaligned*>(p); }
LONGREACH_INLINE void store(float* p, Vec v) { *reinterpret_cast<VecUnaligned*>(p) = v; }
LONGREACH_INLINE Vec splat(float x) { return x - Vec{}; }
LONGREACH_INLINE Vec fma(Vec a, Vec b, Vec c) { return a * b + c; }  // contracted: the build sets -ffp-contract=fast
LONGREACH_INLINE Vec max(Vec a, Vec b) { return a > b ? a : b; }
LONGREACH_INLINE Vec min(Vec a, Vec b) { return a < b ? a : b; }

// The first n (0 <= n <= lanes) elements; the others read as `fill` and nothing past p[n-1] is touched.
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

// Horizontal reductions: halves are folded, always in the same order.
LONGREACH_INLINE float reduce_add(Vec v) {
    alignas(64) float b[lanes];
    store(b, v);
    for (int width = lanes / 2; width >= 1; width /= 2)
        for (int i = 0; i < width; ++i) b[i] += b[i + width];
    return b[0];
}
LONGREACH_INLINE float reduce_max(Vec v) {
    alignas(64) float b[lanes];
    store(b, v);
    for (int width = lanes / 2; width >= 1; width /= 2)
        for (int i = 0; i < width; ++i) b[i] = b[i] > b[i + width] ? b[i] : b[i + width];
    return b[0];
}

// 2^x for x <= 128, relative error < 3e-7; 0 below -126 (also for -inf).
LONGREACH_INLINE Vec exp2(Vec x) {
    const Vec magic = splat(12582912.0f);  // 1.5 * 2^23: adding it rounds to the nearest integer
    const Vec clamped = max(x, splat(-126.5f));
    const Vec shifted = clamped + magic;
    const Vec f = clamped - (shifted - magic);  // in [-0.5, 0.5]
    // Coefficients: Taylor of 2^f in f up to degree 6; the remainder at |f| = 1/2 is (ln2/2)^7/7! < 1.2e-7.
    Vec p = splat(1.5403530393381609954e-4f);
    p = fma(p, f, splat(1.3333558146428443423e-3f));
    p = fma(p, f, splat(9.6181291076284771620e-3f));
    p = fma(p, f, splat(5.5504108664821579953e-2f));
    p = fma(p, f, splat(2.4022650695910071233e-1f));
    p = fma(p, f, splat(6.9314718055994530942e-1f));
    p = fma(p, f, splat(1.0f));
    const VecInt exponent = (reinterpret_cast<VecInt>(shifted) - 0x4B400000) << 23;
    const Vec result = reinterpret_cast<Vec>(reinterpret_cast<VecInt>(p) + exponent);
    return x < splat(-126.0f) ? Vec{} : result;
}
LONGREACH_INLINE Vec exp(Vec x) { return exp2(x * splat(1.4426950408889634f)); }
