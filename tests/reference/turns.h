// Rotary frequencies as trained, scaled in training, and changed at evaluation.
#pragma once

#include <algorithm>
#include <cmath>
#include <numbers>
#include <string>
#include <vector>

#include "mixers/latent.h"
#include "model/model_config.h"
#include "reference/inputs.h"

namespace longreach::reference {

// Channels of a head that positions turn.
inline int64_t turned_channels(const model::AttentionConfig& a) {
    const model::LatentConfig latent = a.own<model::LatentConfig>();
    return latent.width > 0 ? latent.shared : a.head_dim;
}

// Angles that are positions times frequencies; others are formulas.
inline bool has_frequencies(const model::AttentionConfig& a) {
    const std::string name = a.written_angle();
    return name == "rope" || name == "p_rope" || name == "p_rope_linspace" || name == "nope";
}

// theta of the channel pairs that are rotated, fastest first.
inline std::vector<double> frequencies(const model::AttentionConfig& a, int64_t channels) {
    const auto number = [&](const char* name, double otherwise) {
        const auto it = a.params.find(name);
        return it == a.params.end() ? otherwise : it->second.init.as_number();
    };
    const std::string name = a.written_angle();
    const bool linear = name == "p_rope_linspace";
    const double pairs = double(channels) / 2;
    double kept = name == "rope" ? pairs : 0;
    if (name == "p_rope" || linear)  // 1e-9: so that 0.7 of 10 pairs is 7 pairs
        kept = std::floor(number("fraction", 0.5) * pairs + 1e-9);
    std::vector<double> theta;
    for (double m = 0; m < kept; ++m) {
        double exponent = m / pairs;
        if (linear) exponent = kept == 1 ? 0 : m / (kept - 1);
        theta.push_back(std::exp(-std::log(number("base", 10000)) * exponent));
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

// Scaled in training, by angle_scaling; then changed by an evaluation at length l. The two kinds that count turns
// go on from the frequencies before the scaling, others from those of training.
inline Turns turns_of(const model::AttentionConfig& a, const PostHoc& change, double l0, double l) {
    using Kind = PostHoc::Kind;
    const model::ScalingConfig& s = a.angle_scaling;
    std::vector<double> theta = frequencies(a, turned_channels(a));
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

}  // namespace longreach::reference
