// Shared by entmax forward, backward, decoding and statistics. Include after attention_tiles.h in the same region.
//
//   P_ij = u_ij^r,  u_ij = max(0, (alpha - 1) (y_ij - theta_i)),  r = 1 / (alpha - 1)
//
// theta_i, the score at which a weight becomes 0, is where the weights of the row, that of a sink included, add up to 1;
// it takes the place of the lse. With s = u^(r-1) = P^(2 - alpha), which is P's derivative at (alpha - 1)(y - theta) but for
// r, the gradient at a score is s_ij (dP_ij - sum_j s_ij dP_ij / sum_j s_ij), sums over the row with its sink.
//
// Scores and theta are in units of log 2, as everywhere.

// The rule of one head.
struct Entmax {
    float slope = 0;            // (alpha - 1) log 2: of u by y
    float power = 0, part = 0;  // r - 1, alpha - 1
    float sink = 0;             // its score; -infinity: none
    bool squares = false;       // alpha is 1.5: P = u^2 and s = u
    double by_logit = 0;        // d alpha / d AttentionSpec::alpha_logit

    Entmax() = default;
    Entmax(const AttentionSpec& s, int64_t head) {
        double a = double{s.alpha} - 1;
        if (s.alpha_logit) {
            const double share = 1 / (1 + std::exp(-double{s.alpha_logit.f32()[head]}));
            a = share < 0.01 ? 0.01 : share;
            by_logit = share < 0.01 ? 0 : share * (1 - share);
        }
        slope = static_cast<float>(a * 0.6931471805599453);
        power = static_cast<float>(1 / a - 1);
        part = static_cast<float>(a);
        sink = s.sink ? s.sink.f32()[head] * log2_e : -__builtin_inff();
        squares = !s.alpha_logit && s.alpha == 1.5f;
    }
};

struct Weights {
    Vec p, s;
};
// Of scores `above` theta, any sign. A NaN stays one.
template <bool squares>
LONGREACH_INLINE Weights weights_at(const Entmax& e, Vec above) {
    const Vec u = splat(e.slope) * max(Vec{}, above);
    if constexpr (squares) return {u * u, u};
    const Vec s = u > Vec{} ? exp2(splat(e.power) * log2(u)) : Vec{};
    return {s * u, s};
}
LONGREACH_INLINE Weights weights_at(const Entmax& e, Vec above) {
    return e.squares ? weights_at<true>(e, above) : weights_at<false>(e, above);
}
LONGREACH_INLINE bool all_zero(Vec x) {
    return lanes_of(x == Vec{}) == (1u << lanes) - 1;
}

// theta of n vectors of rows, given the largest score of each row, which may be that of the sink. add(theta, total): adds the
// weights of the keys to `total`.
//
// f, the sum of the weights, is convex in theta, and so is its root f^(1/r), a norm. From where the largest weight alone is 1,
// Newton steps for f^(1/r) = 1 come closer from below without passing it, and the first step is the last one where all scores
// are equal. Close to the end steps for f = 1 do as well, without the rounding of the root. Rows are done when a step changes
// nothing; further steps of their neighbours do not change them.
template <bool squares, int n, class Add>
LONGREACH_INLINE void find_thresholds(const Entmax& e, Vec (&theta)[n], Add add) {
    for (int i = 0; i < n; ++i) theta[i] -= splat(1.0f / e.slope);
    for (bool grows = true; grows;) {
        Weights total[n];
        for (int i = 0; i < n; ++i) total[i] = weights_at<squares>(e, splat(e.sink) - theta[i]);
        add(theta, total);
        grows = false;
        for (int i = 0; i < n; ++i) {
            const Vec f = total[i].p;
            const Vec root = squares ? sqrt(f) : exp2(splat(1.0f - e.part) * log2(f));  // f^(1 - 1/r)
            const Vec excess = f > splat(1.01f) ? f - root : splat(e.part) * (f - splat(1.0f));
            const Vec next = theta[i] + excess / (total[i].s * splat(e.slope));
            const VecInt up = next > theta[i];
            theta[i] = up ? next : theta[i];
            grows = grows || lanes_of(up) != 0;
        }
    }
}

inline void check_entmax(const AttentionSpec& s) {
    check(s.alpha >= 1.01f && s.alpha <= 2.0f, "entmax of alpha {}", s.alpha);
    check(!s.alpha_logit || s.alpha_logit.count() == s.heads, "entmax: {} alphas", s.alpha_logit.count());
}
