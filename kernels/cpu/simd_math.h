// tanh, the logistic function and the normal distribution on Vec. Include after simd.h, inside the region.
// No include guard on purpose: the content belongs to the region's namespace.

LONGREACH_INLINE Vec abs(Vec x) {
    return reinterpret_cast<Vec>(reinterpret_cast<VecInt>(x) & 0x7fffffff);
}
// |x| with the sign of s.
LONGREACH_INLINE Vec with_sign(Vec x, Vec s) {
    const VecInt sign = reinterpret_cast<VecInt>(s) & static_cast<int32_t>(0x80000000u);
    return reinterpret_cast<Vec>((reinterpret_cast<VecInt>(x) & 0x7fffffff) | sign);
}

// exp that propagates a NaN, so that one bad logit makes its loss NaN instead of vanishing from it.
LONGREACH_INLINE Vec exp_or_nan(Vec x) {
    return x == x ? exp(x) : x;
}

// s = 1 / (1 + e^-x) and 1 - s, each with the relative error of e^-x (2e-7 + |x| * 6e-8) and three roundings.
// The clamp keeps e^-x finite, so s stays above zero.
struct Logistic {
    Vec value, rest;
};
LONGREACH_INLINE Logistic logistic(Vec x) {
    const Vec e = exp(min(splat(0.0f) - x, splat(87.0f)));
    const Vec value = splat(1.0f) / (splat(1.0f) + e);
    return {value, e * value};
}
LONGREACH_INLINE Vec sigmoid(Vec x) {
    return logistic(x).value;
}

// log2(1 + x) for 0 <= x <= 1, relative error < 4e-7: 2 atanh(x / (2 + x)) with s = x / (2 + x) <= 1/3, a series of
// odd powers up to s^13 (remainder 5e-8 of s) and two roundings per step, each step a ninth of the one before.
LONGREACH_INLINE Vec log2_1p(Vec x) {
    const Vec s = x / (splat(2.0f) + x);
    const Vec z = s * s;
    Vec p = splat(2.0f / 13.0f);
    p = fma(p, z, splat(2.0f / 11.0f));
    p = fma(p, z, splat(2.0f / 9.0f));
    p = fma(p, z, splat(2.0f / 7.0f));
    p = fma(p, z, splat(2.0f / 5.0f));
    p = fma(p, z, splat(2.0f / 3.0f));
    p = fma(p, z, splat(2.0f));
    return s * p * splat(1.4426950408889634f);
}

// log2 of a normal number above 0, error < 4e-7 and one rounding; finite for 0.
LONGREACH_INLINE Vec log2(Vec x) {
    const auto bits = reinterpret_cast<VecInt>(x);
    const Vec exponent = __builtin_convertvector((bits >> 23) - 127, Vec);
    return exponent + log2_1p(reinterpret_cast<Vec>((bits & 0x7fffff) | 0x3f800000) - splat(1.0f));
}

// log(1 + e^x): relative error 1e-6, that of e^x where x is far below zero.
LONGREACH_INLINE Vec softplus(Vec x) {
    return max(x, Vec{}) + splat(0.6931471805599453f) * log2_1p(exp(Vec{} - abs(x)));
}

// Relative error < 4e-7. Near zero an odd polynomial (minimax on |x| < 0.625, remainder 4e-9), elsewhere
// 1 - 2 / (e^2|x| + 1), whose cancellation costs at most a factor 2 there.
LONGREACH_INLINE Vec tanh(Vec x) {
    const Vec z = x * x;
    Vec p = splat(-5.659988986e-3f);
    p = fma(p, z, splat(2.059098831e-2f));
    p = fma(p, z, splat(-5.372106801e-2f));
    p = fma(p, z, splat(1.333112754e-1f));
    p = fma(p, z, splat(-3.333326053e-1f));
    p = fma(p, z, splat(9.999999961e-1f));
    const Vec magnitude = abs(x);
    const Vec e = exp(min(magnitude + magnitude, splat(40.0f)));
    const Vec far = splat(1.0f) - splat(2.0f) / (e + splat(1.0f));
    const Vec result = magnitude < splat(0.625f) ? x * p : with_sign(far, x);
    return x == x ? result : x;
}

// The standard normal distribution at x: bell = e^(-x^2/2), below = P(Z < x).
// The smaller of the two tails is bell * erfcx(|x|/sqrt 2) / 2, erfcx(z) = e^(z^2) erfc(z) being a polynomial
// in t = 1 / (1 + z/2): minimax of degree 9 on 0 <= z <= 9.4, remainder 3e-8, 3e-7 with f32 rounding.
// Beyond, bell is 0.
struct Normal {
    Vec bell, below;
};
LONGREACH_INLINE Normal normal_at(Vec x) {
    const Vec t = splat(1.0f) / fma(abs(x), splat(0.35355339059f), splat(1.0f));
    Vec p = splat(-5.392298432e-2f);
    p = fma(p, t, splat(2.579951449e-1f));
    p = fma(p, t, splat(-4.281449425e-1f));
    p = fma(p, t, splat(2.042166325e-1f));
    p = fma(p, t, splat(3.04751358e-2f));
    p = fma(p, t, splat(1.744711167e-1f));
    p = fma(p, t, splat(2.519861517e-1f));
    p = fma(p, t, splat(2.806623052e-1f));
    p = fma(p, t, splat(2.822696871e-1f));
    p = fma(p, t, splat(-8.279441531e-6f));
    const Vec bell = exp(splat(-0.5f) * x * x);
    const Vec tail = splat(0.5f) * bell * p;
    return {bell, x < Vec{} ? tail : splat(1.0f) - tail};
}
