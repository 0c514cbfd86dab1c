// Numbers that decide scores: rotary frequencies, length scales, biases by distance, changes at evaluation.
#pragma once

#include <algorithm>
#include <cmath>
#include <numbers>
#include <stdexcept>
#include <string>
#include <vector>

#include "model/model_config.h"
#include "reference/concentration.h"
#include "reference/formula.h"
#include "reference/inputs.h"

namespace longreach::reference {

// --- rotary

// theta of the channel pairs that are rotated, fastest first.
inline std::vector<double> frequencies(const model::PositionConfig& position, int64_t head_dim) {
    const double pairs = double(head_dim) / 2;
    double kept = position.kind == model::PositionKind::rope ? pairs : 0;
    if (position.kind == model::PositionKind::p_rope)  // 1e-9: so that 0.7 of 10 pairs is 7 pairs
        kept = std::floor(position.fraction * pairs + 1e-9);
    std::vector<double> theta;
    for (double m = 0; m < kept; ++m) {
        double exponent = m / pairs;
        if (position.kind == model::PositionKind::p_rope && position.spacing == model::Spacing::linspace)
            exponent = kept == 1 ? 0 : m / (kept - 1);
        theta.push_back(std::exp(-std::log(position.base) * exponent));
    }
    return theta;
}

// The frequencies after a change; L0 and L: training and evaluation length. d counts rotated channels alone,
// and the base is what makes theta_m = base^(-2m/d) for them: a change of base by x
// divides theta_m by x^(2m/d).
inline std::vector<double> changed_frequencies(std::vector<double> theta, const PostHoc& change, double l0,
                                               double l) {
    if (l <= l0 || theta.empty()) return theta;
    using Kind = PostHoc::Kind;
    const double pairs = double(theta.size()), d = 2 * pairs;
    const double s = change.factor > 0 ? change.factor : l / l0;
    // d / (d - 2): with a single pair any base gives it the same theta, 1.
    const double ntk_power = pairs > 1 ? d / (d - 2) : 1;
    const double fast = change.fast > 0 ? change.fast : change.kind == Kind::llama3 ? 4 : 32;
    const double spacing = pairs > 1 ? std::log(theta[0] / theta[1]) : 1;
    const auto ramp = [&](double m) {  // YaRN: 1 where theta is divided by s
        if (pairs == 1) return 0.0;
        const auto raw = [&](double rotations) {
            return std::log(l0 / (2 * std::numbers::pi * rotations)) / spacing;
        };
        const double first = raw(fast), last = raw(change.slow);
        const double low = std::max(change.truncate ? std::floor(first) : first, 0.0);
        double high = std::min(change.truncate ? std::ceil(last) : last, d - 1);
        if (low == high) high += 0.001;
        return std::clamp((m - low) / (high - low), 0.0, 1.0);
    };
    for (size_t i = 0; i < theta.size(); ++i) {
        const double m = double(i);
        double& t = theta[i];
        const auto change_base = [&](double x) { t *= std::pow(x, -2 * m / d); };
        if (change.kind == Kind::pi) t /= s;
        if (change.kind == Kind::ntk) change_base(std::pow(s, ntk_power));
        if (change.kind == Kind::ntk_old) change_base(s);
        if (change.kind == Kind::ntk_su) t *= std::pow(s, -(m + 1) / pairs);
        if (change.kind == Kind::ntk_mixed)
            t *= std::exp(-std::log(s) * std::pow((m + 1) / pairs, change.exponent));
        if (change.kind == Kind::ntk_dynamic) {
            const double k = change.factor > 0 ? change.factor : 1;
            change_base(std::pow(k * l / l0 - (k - 1), ntk_power));
        }
        if (change.kind == Kind::yarn) t = t / s * ramp(m) + t * (1 - ramp(m));
        if (change.kind == Kind::llama3) {
            const double turns = l0 * t / (2 * std::numbers::pi);
            const double kept = std::clamp((turns - change.slow) / (fast - change.slow), 0.0, 1.0);
            t = kept * t + (1 - kept) * t / s;
        }
    }
    return theta;
}

// YaRN multiplies queries and keys of rotary layers by this.
inline double yarn_magnitude(const PostHoc& change, double l0, double l) {
    if (change.kind != PostHoc::Kind::yarn || l <= l0) return 1;
    return 0.1 * std::log(change.factor > 0 ? change.factor : l / l0) + 1;
}

// What rotates in a layer: its frequencies, and the factor of its queries and of its keys.
struct Turns {
    std::vector<double> theta;
    double magnitude = 1;
};

// Scaled in training, by position.scaling; then changed by an evaluation at length l. The two kinds that count turns
// go on from the frequencies before the scaling, others from those of training.
inline Turns turns_of(const model::AttentionConfig& a, const PostHoc& change, double l0, double l) {
    using Kind = PostHoc::Kind;
    const model::ScalingConfig& s = a.position.scaling;
    std::vector<double> theta = frequencies(a.position, a.latent.width > 0 ? a.latent.shared : a.head_dim);
    double magnitude = 1;
    const auto of_k = [](double k) { return 0.1 * std::log(k) + 1; };
    if (s.kind != "none" && !theta.empty()) {
        PostHoc scaling;
        scaling.kind = s.kind == "pi"     ? Kind::pi
                       : s.kind == "ntk"  ? Kind::ntk
                       : s.kind == "yarn" ? Kind::yarn
                                          : Kind::llama3;
        const double k = s.factor > 0 ? s.factor : l0 / double(s.original_context);
        const double original = s.original_context > 0 ? double(s.original_context) : std::round(l0 / k);
        scaling.fast = s.fast;
        scaling.slow = s.slow > 0 ? s.slow : 1;
        scaling.truncate = s.truncate;
        const bool further = l > l0 && change.kind == scaling.kind &&
                             (scaling.kind == Kind::yarn || scaling.kind == Kind::llama3);
        scaling.factor = further ? k * (change.factor > 0 ? change.factor : l / l0) : k;
        if (scaling.kind == Kind::yarn) {
            magnitude = s.attention_factor > 0 ? s.attention_factor : of_k(k);
            magnitude *= of_k(scaling.factor) / of_k(k);
        }
        theta = changed_frequencies(theta, scaling, original, 2 * original);
        if (further) return {theta, magnitude};
    }
    const double further = theta.empty() ? 1 : yarn_magnitude(change, l0, l);
    return {changed_frequencies(theta, change, l0, l), magnitude * further};
}

// --- length scale

enum class ScaleKind {
    none,
    logn,
    logn_bias,
    logn_fixed04,
    logn_abc,
    entinv,
    qwen_logn,
    llama4,
    grok2,
    sqrt2logn,
    sqrt2lognp1,
    sqrt_abc,
    maxterm2,
    beta_pow,
    solve_c,
    solve_c_cos,
    gammalogn,
    cosa_const,
    cosa_logn,
    gradmax_gauss,
    qknorm_g
};
enum class DistanceKind { none, scale_invariant, log_bias, si_interp, alibi, kerple_log, kerple_power };

inline size_t index_of(const std::string& name, const std::vector<std::string>& names) {
    const auto at = std::find(names.begin(), names.end(), name);
    if (at == names.end()) throw std::logic_error("no kind is named " + name);
    return size_t(at - names.begin());
}
inline ScaleKind kind_of(const model::ScaleConfig& s) {
    return ScaleKind(index_of(
        s.kind,
        {"none",    "logn",        "logn_bias", "logn_fixed04", "logn_abc",  "entinv",        "qwen_logn",
         "llama4",  "grok2",       "sqrt2logn", "sqrt2lognp1",  "sqrt_abc",  "maxterm2",      "beta_pow",
         "solve_c", "solve_c_cos", "gammalogn", "cosa_const",   "cosa_logn", "gradmax_gauss", "qknorm_g"}));
}
inline DistanceKind kind_of(const model::DistanceConfig& c) {
    return DistanceKind(index_of(
        c.kind, {"none", "scale_invariant", "log_bias", "si_interp", "alibi", "kerple_log", "kerple_power"}));
}

inline bool scales_cosines(ScaleKind kind) {
    return kind == ScaleKind::gammalogn || kind == ScaleKind::cosa_const || kind == ScaleKind::cosa_logn ||
           kind == ScaleKind::qknorm_g;
}

// s_base of z = s_base <q, k>.
inline double base_scale(const model::AttentionConfig& a) {
    const double d = double(a.head_dim);
    const bool plain = kind_of(a.scale) == ScaleKind::none && a.scale.base > 0;
    switch (a.qk.kind) {
        case model::QkKind::qna:
        case model::QkKind::kna:
        case model::QkKind::kna_w:
            return plain ? a.scale.base : 1;
        case model::QkKind::qk_l2:
        case model::QkKind::cosa:
            if (scales_cosines(kind_of(a.scale))) return 1;
            return plain ? a.scale.base * d : std::sqrt(d);
        default:
            return plain ? a.scale.base : 1 / std::sqrt(d);
    }
}

// shape(n) of f = r shape(n) + b.
inline double length_shape(const model::AttentionConfig& a, double n, double l_train) {
    const model::ScaleConfig& s = a.scale;
    const double d = double(a.head_dim);
    switch (kind_of(s)) {
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
            return std::log(s.b * n + s.c);
        case ScaleKind::entinv:
            return std::log(n) / std::log(l_train);
        case ScaleKind::qwen_logn:
            return n > l_train ? std::log(n) / std::log(l_train) : 1;
        case ScaleKind::llama4:
            return 1 + s.attn_scale * std::log(1 + std::floor(n / double(s.floor_scale)));
        case ScaleKind::grok2: {
            const double p = n - 1, length = double(s.attn_temperature_len);
            return p > length ? std::log2(p) / std::log2(length) : 1;
        }
        case ScaleKind::sqrt2logn:
            return std::sqrt(2 * std::log(n));
        case ScaleKind::sqrt2lognp1:
            return std::sqrt(2 * std::log(n + 1));
        case ScaleKind::sqrt_abc:
            return s.a + std::sqrt(2 * std::log(s.b * n + s.c));
        case ScaleKind::maxterm2: {
            const double u = std::sqrt(2 * std::log(n + 1));
            return u -
                   (std::log(std::log(n + 1)) + std::log(4 * std::numbers::pi) - 2 * std::numbers::egamma) /
                       (2 * u);
        }
        case ScaleKind::beta_pow:
            return std::pow(n, 2 / (d - 1));
        case ScaleKind::solve_c:
            return multiplier_for(s.target, std::llround(n), 0);
        case ScaleKind::solve_c_cos:
            return multiplier_for(s.target, std::llround(n), a.head_dim);
        case ScaleKind::cosa_const:
            return 4 * std::log(l_train / 2);
        case ScaleKind::cosa_logn:
            return 4 * std::log(n);
        case ScaleKind::gradmax_gauss:
            return 0.84 * std::sqrt(std::log(n));
    }
    throw std::logic_error("a length scale without a formula");
}

// Kinds whose formula has an r in front.
inline bool has_multiplier(ScaleKind kind) {
    switch (kind) {
        case ScaleKind::logn:
        case ScaleKind::logn_bias:
        case ScaleKind::logn_abc:
        case ScaleKind::sqrt2logn:
        case ScaleKind::sqrt2lognp1:
        case ScaleKind::sqrt_abc:
        case ScaleKind::maxterm2:
        case ScaleKind::beta_pow:
        case ScaleKind::gammalogn:
        case ScaleKind::qknorm_g:
            return true;
        default:
            return false;
    }
}

inline model::ScaleGranularity granularity(const model::ScaleConfig& s) {
    if (s.granularity != model::ScaleGranularity::by_kind) return s.granularity;
    if (kind_of(s) == ScaleKind::logn || kind_of(s) == ScaleKind::logn_bias)
        return model::ScaleGranularity::head;
    return has_multiplier(kind_of(s)) ? model::ScaleGranularity::global : model::ScaleGranularity::fixed;
}

// r at the start, and for good where it is not learned.
inline double first_multiplier(const model::AttentionConfig& a, double l_train) {
    const model::ScaleConfig& s = a.scale;
    if (!has_multiplier(kind_of(s))) return 1;
    if (s.init == model::ScaleInit::value) return s.r;
    if (s.init == model::ScaleInit::by_kind) {
        if (kind_of(s) == ScaleKind::logn || kind_of(s) == ScaleKind::logn_bias) return 0.43;
        if (kind_of(s) == ScaleKind::qknorm_g) return std::log2(l_train * l_train - l_train);
    }
    const double d = double(a.head_dim);
    // <q/|q|, k> and <q, k/|k|> have a scale of 1 without any law, other products 1/sqrt(d).
    const bool one_side = a.qk.kind == model::QkKind::qna || a.qk.kind == model::QkKind::kna ||
                          a.qk.kind == model::QkKind::kna_w;
    const double m0 = s.base > 0 ? s.base * (one_side ? 1 : std::sqrt(d)) : 1;
    return m0 * (scales_cosines(kind_of(s)) ? std::sqrt(d) : 1) / length_shape(a, l_train / 2, l_train);
}

// --- formulas

// The first value of a parameter of `score`; not parity and not drawn.
inline double first_value(const model::AttentionConfig& a, const model::ScoreParameterConfig& p, double head,
                          double layer, const model::ModelConfig& m) {
    if (const std::optional<double> number = p.init.to_number()) return *number;
    return FormulaWalker<double>(p.init.as_string(),
                                 {{"h", head},
                                  {"H", double(a.heads)},
                                  {"l", layer},
                                  {"layers", double(m.layers)},
                                  {"d", double(a.head_dim)},
                                  {"L", double(m.train_context)}},
                                 {})
        .value();
}

// name: "layers.3.attention."
inline std::string score_tensor(const std::string& name, const std::string& layout,
                                const std::string& parameter, const model::ScoreParameterConfig& p) {
    const std::string own = (p.positive ? "score.log_" : "score.") + parameter;
    if (p.learn == model::Learning::model) return own;
    if (p.learn == model::Learning::layout)
        return (layout.empty() ? "attention." : "layouts." + layout + ".") + own;
    return name + own;
}

// --- distance

// Slopes of ALiBi, one per head.
inline std::vector<double> alibi_slopes(int64_t heads) {
    int64_t power = 1;
    while (power * 2 <= heads) power *= 2;
    std::vector<double> slopes;
    for (int64_t h = 1; h <= power; ++h) slopes.push_back(std::exp2(-8 * double(h) / double(power)));
    // The rest: every second slope of twice as many heads.
    for (int64_t h = 1; int64_t(slopes.size()) < heads; h += 2)
        slopes.push_back(std::exp2(-8 * double(h) / double(2 * power)));
    return slopes;
}

}  // namespace longreach::reference
