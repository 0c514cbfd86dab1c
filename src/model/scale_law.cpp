#include "model/scale_law.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/error.h"
#include "law/extreme_values.h"

namespace longreach::model {

namespace {

// Kinds with an r of their own; the others are complete formulas, in which r is 1.
bool has_r(ScaleKind kind) {
    return learnable(kind) && kind != ScaleKind::none;
}

bool starts_at_parity(const ScaleConfig& scale) {
    if (!has_r(scale.kind)) return false;
    if (scale.init == ScaleInit::parity) return true;
    return scale.init == ScaleInit::by_kind && scale.kind != ScaleKind::logn &&
           scale.kind != ScaleKind::logn_bias && scale.kind != ScaleKind::qknorm_g;
}

// log of an x >= 1. Rounding may put an x of 1 just below 1; the result is then 0.
double log_from_one(double x) {
    return std::max(0.0, std::log(x));
}

// Two terms of the expected maximum of n normals, taken at n + 1 so that log log stays finite at n = 1.
double expected_maximum(double n) {
    const double log_n = std::log(n + 1), u = std::sqrt(2 * log_n);
    return u - (std::log(log_n) + std::log(4 * std::numbers::pi) - 2 * std::numbers::egamma) / (2 * u);
}

// s_base of the same model without a length scale and without `base`. cosines: the law is made for cosines.
double default_base(const AttentionConfig& a, bool cosines) {
    const double d = static_cast<double>(a.head_dim);
    switch (a.qk.kind) {
        case QkKind::qna:
        case QkKind::kna:
            return 1;
        case QkKind::qk_l2:
        case QkKind::cosa:
            return cosines ? 1 : std::sqrt(d);
        default:
            return 1 / std::sqrt(d);
    }
}

// s_base of the unscaled model. `base` refers to queries and keys of length sqrt(d), as an RMS norm makes
// them; unit vectors need d times as much for the same scores.
double unscaled_base(const AttentionConfig& a) {
    if (a.scale.base == 0) return default_base(a, false);
    const bool unit = a.qk.kind == QkKind::qk_l2 || a.qk.kind == QkKind::cosa;
    return unit ? a.scale.base * static_cast<double>(a.head_dim) : a.scale.base;
}

}  // namespace

bool acts_on_cosines(ScaleKind kind) {
    return kind == ScaleKind::gammalogn || kind == ScaleKind::cosa_const || kind == ScaleKind::cosa_logn ||
           kind == ScaleKind::qknorm_g;
}

bool uses_train_context(const ScaleConfig& scale) {
    switch (scale.kind) {
        case ScaleKind::entinv:
        case ScaleKind::qwen_logn:
        case ScaleKind::cosa_const:
            return true;
        case ScaleKind::qknorm_g:
            return scale.init == ScaleInit::by_kind;
        default:
            return starts_at_parity(scale);
    }
}

double scale_shape(const ScaleConfig& scale, int64_t head_dim, int64_t train_context, double n) {
    const double d = static_cast<double>(head_dim), trained = static_cast<double>(train_context);
    switch (scale.kind) {
        case ScaleKind::none:
        case ScaleKind::qknorm_g:
            return 1;
        case ScaleKind::logn:
        case ScaleKind::logn_bias:
        case ScaleKind::gammalogn:
            return std::log(n);
        case ScaleKind::logn_fixed04:
            return 0.4 * std::log(n);
        case ScaleKind::logn_abc:
            return log_from_one(scale.b * n + scale.c);
        case ScaleKind::entinv:
            return std::log(n) / std::log(trained);
        case ScaleKind::qwen_logn:
            return n > trained ? std::log(n) / std::log(trained) : 1;
        case ScaleKind::llama4:
            return 1 + scale.attn_scale * std::log1p(std::floor(n / static_cast<double>(scale.floor_scale)));
        case ScaleKind::grok2: {
            const double position = n - 1, length = static_cast<double>(scale.attn_temperature_len);
            return position > length ? std::log2(position) / std::log2(length) : 1;
        }
        case ScaleKind::sqrt2logn:
            return std::sqrt(2 * log_from_one(n));
        case ScaleKind::sqrt2lognp1:
            return std::sqrt(2 * std::log(n + 1));
        case ScaleKind::sqrt_abc:
            return scale.a + std::sqrt(2 * log_from_one(scale.b * n + scale.c));
        case ScaleKind::maxterm2:
            return expected_maximum(n);
        case ScaleKind::beta_pow:
            return std::pow(n, 2 / (d - 1));
        case ScaleKind::solve_c:
            return law::solve_gaussian_scale(n, scale.target);
        case ScaleKind::solve_c_cos:
            return law::CosineScores(head_dim).solve_scale(n, scale.target);
        case ScaleKind::cosa_const:
            return 4 * std::log(trained / 2);
        case ScaleKind::cosa_logn:
            return 4 * std::log(n);
        case ScaleKind::gradmax_gauss:
            return 0.84 * std::sqrt(log_from_one(n));
    }
    return 1;
}

std::vector<double> scale_shapes(const ScaleConfig& scale, int64_t head_dim, int64_t train_context,
                                 int64_t count) {
    if (scale.kind == ScaleKind::solve_c)
        return law::solved_table(count, scale.target,
                                 [&](double n) { return law::solve_gaussian_scale(n, scale.target); });
    if (scale.kind == ScaleKind::solve_c_cos) {
        const law::CosineScores scores(head_dim);
        return law::solved_table(count, scale.target,
                                 [&](double n) { return scores.solve_scale(n, scale.target); });
    }
    std::vector<double> shapes(static_cast<size_t>(count));
    for (int64_t n = 1; n <= count; ++n)
        shapes[static_cast<size_t>(n - 1)] =
            scale_shape(scale, head_dim, train_context, static_cast<double>(n));
    return shapes;
}

double score_base(const AttentionConfig& attention) {
    if (attention.scale.kind == ScaleKind::none) return unscaled_base(attention);
    return default_base(attention, acts_on_cosines(attention.scale.kind));
}

double initial_r(const AttentionConfig& attention, int64_t train_context) {
    const ScaleConfig& scale = attention.scale;
    const double trained = static_cast<double>(train_context);
    if (!has_r(scale.kind) && !scale.learned()) return 1;  // regardless of an inherited init
    if (scale.init == ScaleInit::value) return scale.r;
    if (!starts_at_parity(scale)) {
        if (scale.kind == ScaleKind::logn || scale.kind == ScaleKind::logn_bias) return 0.43;
        if (scale.kind == ScaleKind::qknorm_g) return std::log2(trained * trained - trained);
        return 1;
    }
    // f at n = L_train / 2 makes up for what score_base leaves out. Parity determines r alone: b of
    // logn_bias is not counted.
    const double shape = scale_shape(scale, attention.head_dim, train_context, trained / 2);
    require(shape > 0, ExitCode::usage,
            "scale.init is parity, but the shape of this scale is {} at n = {} (half of L_train): no r makes "
            "it equal the unscaled model",
            shape, trained / 2);
    return unscaled_base(attention) / score_base(attention) / shape;
}

}  // namespace longreach::model
