#include "law/library.h"

#include <algorithm>

namespace longreach::law {

namespace {

Parameter fixed(const char* name, const char* init) {
    return {.name = name, .init = init};
}
Parameter learned(const char* name, const char* init, Sharing sharing) {
    return {.name = name, .init = init, .learn = sharing};
}

// Factors by the number of keys.
std::vector<NamedLaw> laws_of_count() {
    const Parameter r = learned("r", "parity", Sharing::layer);
    return {
        {"logn",
         "z * s*log(n)",
         {learned("s", "0.43", Sharing::head)},
         "scalable softmax (SSMax): weights n^(s z)",
         "nakanishi2025"},
        {"logn_bias",
         "z * (s*log(n) + b)",
         {learned("s", "0.43", Sharing::head), learned("b", "0", Sharing::head)},
         "scalable softmax with an offset",
         "nakanishi2025"},
        {"logn_fixed04", "z * 0.4*log(n)", {}, "scalable softmax at a fixed strength", "anson2025"},
        {"logn_abc",
         "z * r*log(b*n + c)",
         {r, fixed("b", "0.1"), fixed("c", "1.9")},
         "a logarithm that starts late",
         "nor2025"},
        {"logn_power", "z * r*log(n + 1)^p", {r, fixed("p", "0.5")}, "a power of the logarithm", ""},
        {"entinv", "z * log(n)/log(L)", {}, "keeps the entropy of attention at every length", "su8823"},
        {"clip_logn",
         "z * max(1, log(n)/log(L))",
         {},
         "entinv beyond the trained length, 1 up to it",
         "su9708 su9948"},
        {"yarn_temp",
         "z * (0.1*log(T/L) + 1)^2",
         {},
         "temperature of YaRN, as a law for eval.score",
         "peng2023yarn"},
        {"qwen_logn",
         "z * where(n > L, log(n)/log(L), 1)",
         {},
         "clip_logn as Qwen 1 writes it",
         "bai2023qwen"},
        {"llama4",
         "z * (1 + scale*log1p(floor(n/floor_scale)))",
         {fixed("scale", "0.1"), fixed("floor_scale", "8192")},
         "Llama 4: temperature of layers without positions, in steps of n",
         "meta2025llama4"},
        {"grok2",
         "z * where(n - 1 > length, log2(n - 1)/log2(length), 1)",
         {fixed("length", "1024")},
         "Grok 2: a logarithm beyond a length; after a softcap",
         "xai2025grok2"},
        {"sqrt2logn", "z * r*sqrt(2*log(n))", {r}, "critical factor of independent normal scores", "nor2025"},
        {"sqrt2lognp1", "z * r*sqrt(2*log(n + 1))", {r}, "sqrt2logn without the zero at one key", "nor2025"},
        {"sqrt_abc",
         "z * r*(a + sqrt(2*log(b*n + c)))",
         {r, fixed("a", "0"), fixed("b", "0.1"), fixed("c", "1.9")},
         "sqrt2logn that starts late",
         "nor2025"},
        {"maxterm2",
         "z * r*(sqrt(2*log(n + 1)) - (log(log(n + 1)) + log(4*pi) - 2*egamma)/(2*sqrt(2*log(n + 1))))",
         {r},
         "two terms of the expected largest of n normals",
         "nor2025"},
        {"largest_normal", "z * r*max_normal(n)", {r}, "the expected largest of n normals", "nor2025"},
        {"beta_pow", "z * r*n^(2/(d - 1))", {r}, "critical growth for directions on a sphere", "nor2025"},
        {"solve_c",
         "z * gaussian_scale(n, C)",
         {fixed("C", "4")},
         "normal scores spread over C keys at every length",
         "nor2025"},
        {"solve_c_cos",
         "z * cosine_scale(n, d, C)",
         {fixed("C", "4")},
         "cosines in d dimensions spread over C keys",
         "nor2025"},
        {"gradmax_gauss", "z * 0.84*sqrt(log(n))", {}, "largest gradient through the softmax", "su9812"},
        {"qknorm_g",
         "dot * g",
         {learned("g", "log2(L*L - L)", Sharing::layer)},
         "a learned factor of cosines",
         "henry2020"},
        {"gammalogn",
         "dot * gamma*log(n)",
         {learned("gamma", "parity", Sharing::layer)},
         "critical factor of cosines in a simplex",
         "chen2025critical"},
        {"cosa_const", "dot * 4*log(L/2)", {}, "a constant factor of cosines", "su9859"},
        {"cosa_logn", "dot * 4*log(n)", {}, "cosines at the largest gradient", "su9859"},
    };
}

std::vector<NamedLaw> laws_of_distance() {
    const Parameter tau = fixed("tau", "10"), one = fixed("c", "1");
    Parameter kerple_p = learned("p", "uniform(0, 2)", Sharing::head);
    Parameter kerple_a = learned("a", "uniform(0, 1)", Sharing::head);
    kerple_p.least = kerple_a.least = 0.01;
    Parameter kerple_power = kerple_p;
    kerple_power.most = 2;
    Parameter buckets = learned("w", "0", Sharing::head);
    buckets.size = 32;
    return {
        {"scale_invariant",
         "z * sqrt(1 + 2*log1p(t/tau)) - c*2*log1p(t/tau)",
         {tau, one},
         "equal expected weight on every decade of distances",
         "anson2025"},
        {"scale_invariant_heads",
         "z * sqrt(1 + 2*log1p(t/tau)) - 2*log1p(t/tau)",
         {fixed("tau", "10^(2*h/max(1, H - 1))")},
         "scale_invariant, tau spread from 1 to 100 over the heads",
         "anson2025"},
        {"log_bias", "z - c*log1p(t/tau)", {tau, one}, "weight falls as a power of the distance", "nor2025"},
        {"si_interp",
         "z * sqrt(1 + 2*(1 - kappa)*log1p(t/tau) + 2*kappa*log(b*n + c)) - (1 - kappa + p)*log1p(t/tau)",
         {fixed("kappa", "0.5"), fixed("p", "0.5"), tau, fixed("b", "0.1"), fixed("c", "1.9")},
         "between scale_invariant and sqrt_abc",
         "nor2025"},
        {"alibi",
         "z - slope*t",
         {fixed("slope",
                "2^(-where(h < 2^floor(log2(H)), 8*(h + 1)/2^floor(log2(H)), 4*(2*(h - 2^floor(log2(H))) + "
                "1)/2^floor(log2(H))))")},
         "a linear penalty, its slope by head",
         "press2021"},
        {"kerple_log",
         "z - p*log1p(a*t)",
         {kerple_p, kerple_a},
         "a learned power of the distance",
         "chi2022"},
        {"kerple_power", "z - a*t^p", {kerple_power, kerple_a}, "a learned stretched exponential", "chi2022"},
        {"buckets",
         "z + lookup(w, where(t < 16, t, min(31, 16 + floor(2*log2(t/16)))))",
         {buckets},
         "a learned bias by bucket of distance, exact below 16",
         ""},
        {"cosine_power",
         "dot * r*(1 + t/tau)^(-p)",
         {learned("r", "parity", Sharing::layer), tau, fixed("p", "0.5")},
         "a power law in the distance, for cosines",
         ""},
    };
}

// What reads the tokens.
std::vector<NamedLaw> laws_of_tokens() {
    return {
        {"forgetting",
         "z + between(f)",
         {},
         "forgetting attention: a key fades by the gates f = sigmoid(x) of the tokens after it",
         "lin2025fox",
         {{.name = "f", .formula = "log_sigmoid(x)"}}},
        {"wall",
         "z_between(w)",
         {},
         "Wall attention: every channel of a key fades by gates of its own of the tokens after it",
         "pai2026wall",
         {{.name = "w", .formula = "log_sigmoid(x)", .init = "8"}}},
        {"cable",
         "z - between(b)",
         {},
         "a distance that the tokens make: context-aware biases",
         "veisi2025cable",
         {{.name = "b", .formula = "softplus(x)"}}},
        {"adaptive_logn",
         "z * (delta + beta_q*log(n + 1)^gamma_q)",
         {learned("delta", "1", Sharing::head)},
         "a factor whose strength and power the query chooses: the temperature of ASEntmax",
         "vasylenko2025",
         {{.name = "beta", .formula = "softplus(x)"}, {.name = "gamma", .formula = "tanh(x)"}}},
    };
}

// Mixtures, parts, and further forms of the laws above.
std::vector<NamedLaw> other_laws() {
    const Parameter r = learned("r", "parity", Sharing::layer);
    const Parameter tau = fixed("tau", "10"), one = fixed("c", "1");
    return {
        {"half_heads_logn",
         "z * where(h < H/2, s*log(n), r*sqrt(2*log(n + 1)))",
         {learned("s", "0.43", Sharing::layer), learned("r", "parity", Sharing::layer)},
         "two factors in one layer",
         "nor2025"},
        {"softcap", "50*tanh(z/50)", {}, "scores bounded by 50", "gemma2024"},

        {"second_moment",
         "z * sqrt(1 + 2*log1p(t/tau)) - 2.5*log1p(t/tau)",
         {tau},
         "scale_invariant with a second moment of the weights that falls as 1/(1 + t/tau), too",
         "nor2025"},
        {"log_bias_heads",
         "z - c*log1p(t/tau)",
         {fixed("c", "4^(2*h/max(1, H - 1) - 1)"), tau},
         "log_bias, its power spread from 1/4 to 4 over the heads",
         "nor2025"},
        {"logn_learned_power",
         "z * r*log(n + 1)^p",
         {r, learned("p", "1", Sharing::layer)},
         "a power of the logarithm, its exponent learned",
         "chen2025critical"},
        {"cosine_growth",
         "dot * r*(1 + t/tau)^(2/(d - 1)) - c*log1p(t/tau)",
         {learned("r", "parity", Sharing::layer), tau, one},
         "cosines with the critical growth by distance, under log_bias",
         "nor2025"},
    };
}

std::vector<NamedLaw> make_library() {
    std::vector<NamedLaw> all = laws_of_count();
    for (const std::vector<NamedLaw>& more : {laws_of_distance(), laws_of_tokens(), other_laws()})
        all.insert(all.end(), more.begin(), more.end());
    return all;
}

}  // namespace

const std::vector<NamedLaw>& library() {
    static const std::vector<NamedLaw> laws = make_library();
    return laws;
}

const NamedLaw* find_law(std::string_view name) {
    const auto it =
        std::find_if(library().begin(), library().end(), [&](const NamedLaw& l) { return l.name == name; });
    return it == library().end() ? nullptr : &*it;
}

}  // namespace longreach::law
