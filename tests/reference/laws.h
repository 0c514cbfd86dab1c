// The named laws of scores, by formulas of the reference's own: what they make of a score, and their parameters.
#pragma once

#include <algorithm>
#include <cmath>
#include <map>
#include <numbers>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "model/attention_config.h"
#include "reference/concentration.h"
#include "reference/dual.h"

namespace longreach::reference {

enum class Law {
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
    qknorm_g,
    scale_invariant,
    log_bias,
    si_interp,
    alibi,
    kerple_log,
    kerple_power,
    softcap
};

// Nothing: the text is a formula.
inline std::optional<Law> law_named(const std::string& text) {
    static const std::vector<std::string> names = {
        "logn",          "logn_bias",    "logn_fixed04",    "logn_abc",    "entinv",     "qwen_logn",
        "llama4",        "grok2",        "sqrt2logn",       "sqrt2lognp1", "sqrt_abc",   "maxterm2",
        "beta_pow",      "solve_c",      "solve_c_cos",     "gammalogn",   "cosa_const", "cosa_logn",
        "gradmax_gauss", "qknorm_g",     "scale_invariant", "log_bias",    "si_interp",  "alibi",
        "kerple_log",    "kerple_power", "softcap"};
    const auto at = std::find(names.begin(), names.end(), text);
    if (at == names.end()) return std::nullopt;
    return Law(at - names.begin());
}

inline bool scales_cosines(Law law) {
    return law == Law::gammalogn || law == Law::cosa_const || law == Law::cosa_logn || law == Law::qknorm_g;
}

// A parameter of the score.
struct ScoreParameter {
    std::string name;
    std::string init{};  // a number, a formula, "parity" or "uniform(0, <number>)"
    model::Learning learn = model::Learning::no;
    double least = -1e300, most = 1e300;
    bool positive = false;
    int64_t size = 0;  // of a vector; 0: a number
    bool learned() const { return learn != model::Learning::no; }
    // The <number> of a uniform start.
    std::optional<double> drawn_below() const {
        const std::string drawn = "uniform(0, ";
        if (!init.starts_with(drawn)) return std::nullopt;
        return std::stod(init.substr(drawn.size()));
    }
};

// The parameters of a law, where nothing is said of them.
inline std::vector<ScoreParameter> parameters_of(Law law) {
    using enum model::Learning;
    const ScoreParameter r{"r", "parity", layer}, b{"b", "0.1"}, c{"c", "1.9"}, tau{"tau", "10"};
    switch (law) {
        case Law::logn:
            return {{"s", "0.43", head}};
        case Law::logn_bias:
            return {{"s", "0.43", head}, {"b", "0", head}};
        case Law::logn_abc:
            return {r, b, c};
        case Law::sqrt_abc:
            return {r, {"a", "0"}, b, c};
        case Law::sqrt2logn:
        case Law::sqrt2lognp1:
        case Law::maxterm2:
        case Law::beta_pow:
            return {r};
        case Law::llama4:
            return {{"scale", "0.1"}, {"floor_scale", "8192"}};
        case Law::grok2:
            return {{"length", "1024"}};
        case Law::solve_c:
        case Law::solve_c_cos:
            return {{"C", "4"}};
        case Law::gammalogn:
            return {{"gamma", "parity", layer}};
        case Law::qknorm_g:
            return {{"g", "log2(L*L - L)", layer}};
        case Law::logn_fixed04:
        case Law::entinv:
        case Law::qwen_logn:
        case Law::cosa_const:
        case Law::cosa_logn:
        case Law::gradmax_gauss:
        case Law::alibi:
        case Law::softcap:
            return {};
        case Law::scale_invariant:
        case Law::log_bias:
            return {tau, {"c", "1"}};
        case Law::si_interp:
            return {{"kappa", "0.5"}, {"p", "0.5"}, tau, b, c};
        case Law::kerple_log:
            return {{"p", "uniform(0, 2)", head, 0.01}, {"a", "uniform(0, 1)", head, 0.01}};
        case Law::kerple_power:
            return {{"p", "uniform(0, 2)", head, 0.01, 2}, {"a", "uniform(0, 1)", head, 0.01}};
    }
    throw std::logic_error("a law without parameters");
}

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

// Where a law is evaluated.
struct Place {
    double n = 1, t = 0;  // keys counted for the query, and the distance
    int64_t head = 0, heads = 1, head_dim = 64;
    double trained = 2048;  // L
};

template <class T>
using Values = std::map<std::string, T>;  // of the parameters

// f(n) of the laws f z.
template <class T>
T factor_of(Law law, const Place& at, const Values<T>& p) {
    using std::log;
    using std::sqrt;
    const double n = at.n, log_n = std::log(n), trained = at.trained, d = double(at.head_dim);
    const auto abc = [&] { return log(p.at("b") * T(n) + p.at("c")); };
    switch (law) {
        case Law::logn:
            return p.at("s") * T(log_n);
        case Law::logn_bias:
            return p.at("s") * T(log_n) + p.at("b");
        case Law::gammalogn:
            return p.at("gamma") * T(log_n);
        case Law::qknorm_g:
            return p.at("g");
        case Law::logn_fixed04:
            return 0.4 * log_n;
        case Law::logn_abc:
            return p.at("r") * abc();
        case Law::entinv:
            return log_n / std::log(trained);
        case Law::qwen_logn:
            return n > trained ? log_n / std::log(trained) : 1;
        case Law::llama4:
            return T(1) + p.at("scale") * T(std::log(1 + std::floor(n / value_of(p.at("floor_scale")))));
        case Law::grok2: {
            const double length = value_of(p.at("length"));
            return n - 1 > length ? std::log2(n - 1) / std::log2(length) : 1;
        }
        case Law::sqrt2logn:
            return p.at("r") * T(std::sqrt(2 * log_n));
        case Law::sqrt2lognp1:
            return p.at("r") * T(std::sqrt(2 * std::log(n + 1)));
        case Law::sqrt_abc:
            return p.at("r") * (p.at("a") + sqrt(T(2) * abc()));
        case Law::maxterm2: {
            const double u = std::sqrt(2 * std::log(n + 1));
            const double second =
                std::log(std::log(n + 1)) + std::log(4 * std::numbers::pi) - 2 * std::numbers::egamma;
            return p.at("r") * T(u - second / (2 * u));
        }
        case Law::beta_pow:
            return p.at("r") * T(std::pow(n, 2 / (d - 1)));
        case Law::solve_c:
            return multiplier_for(value_of(p.at("C")), std::llround(n), 0);
        case Law::solve_c_cos:
            return multiplier_for(value_of(p.at("C")), std::llround(n), at.head_dim);
        case Law::cosa_const:
            return 4 * std::log(trained / 2);
        case Law::cosa_logn:
            return 4 * log_n;
        case Law::gradmax_gauss:
            return 0.84 * std::sqrt(log_n);
        default:
            throw std::logic_error("not a factor by the number of keys");
    }
}

// What a law makes of a score, of a cosine where it scales those.
template <class T>
T apply(Law law, const T& z, const Place& at, const Values<T>& p) {
    using std::exp;
    using std::log;
    using std::sqrt;
    using std::tanh;
    const auto log_distance = [&] { return log(T(1) + T(at.t) / p.at("tau")); };
    switch (law) {
        case Law::scale_invariant: {
            const T m = T(2) * log_distance();
            return sqrt(T(1) + m) * z - p.at("c") * m;
        }
        case Law::log_bias:
            return z - p.at("c") * log_distance();
        case Law::si_interp: {
            const T by_distance = log_distance(), kappa = p.at("kappa"), share = T(1) - kappa;
            T square = T(1) + T(2) * share * by_distance;
            if (value_of(kappa) > 0) square += T(2) * kappa * log(p.at("b") * T(at.n) + p.at("c"));
            const T root = value_of(square) > 0 ? sqrt(square) : T(0);
            return root * z - (square - T(1)) / T(2) - p.at("p") * by_distance;
        }
        case Law::alibi:
            return z - T(alibi_slopes(at.heads)[size_t(at.head)] * at.t);
        case Law::kerple_log:
            return z - p.at("p") * log(T(1) + p.at("a") * T(at.t));
        case Law::softcap:
            return T(50) * tanh(z / T(50));
        case Law::kerple_power:
            return at.t == 0 ? z : z - p.at("a") * exp(p.at("p") * T(std::log(at.t)));
        default:
            return factor_of(law, at, p) * z;
    }
}

}  // namespace longreach::reference
