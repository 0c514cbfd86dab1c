// The score of a layer: its laws one after the other, named ones and formulas, on numbers or on duals.
#pragma once

#include <fmt/format.h>

#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "model/model_config.h"
#include "reference/formula.h"
#include "reference/inputs.h"
#include "reference/laws.h"

namespace longreach::reference {

// --- s_base of z = s_base <q, k>

// Whether the score is made of <q, k> itself.
inline bool of_dot(const model::AttentionConfig& a) {
    const std::vector<std::string> laws = laws_of(a);
    if (laws.empty()) return false;
    if (const auto law = law_named(laws[0])) return scales_cosines(*law);
    return laws[0].find("dot") != std::string::npos;
}

// Of the model without a law, with `base` in place of score_base.
inline double unscaled_base(const model::AttentionConfig& a, double base) {
    const double d = double(a.head_dim);
    switch (a.qk.kind) {
        case model::QkKind::qna:
        case model::QkKind::kna:
        case model::QkKind::kna_w:
            return base > 0 ? base : 1;
        case model::QkKind::qk_l2:
        case model::QkKind::cosa:  // an RMS norm makes queries and keys sqrt(d) times as long
            return base > 0 ? base * d : std::sqrt(d);
        default:
            return base > 0 ? base : 1 / std::sqrt(d);
    }
}

// --- terms

struct TermText {
    std::string name, value, init = "0";
    bool zero_weights = false;
};
// The named laws that read tokens, by formulas of the reference's own.
struct TokenLaw {
    std::string formula;
    std::vector<TermText> terms;
    std::vector<ScoreParameter> parameters;
};
inline const TokenLaw* token_law(const std::string& name) {
    static const std::map<std::string, TokenLaw> laws = {
        {"forgetting", {"z + between(f)", {{"f", "log(1/(1 + exp(-x)))"}}, {}}},
        {"wall", {"z_between(w)", {}, {}}},  // its term: fading_of()
        {"cable", {"z - between(b)", {{"b", "log(1 + exp(x))"}}, {}}},
        {"adaptive_logn",
         {"delta*z + z*beta_q*exp(gamma_q*log(log(n + 1)))",
          {{"beta", "log(1 + exp(x))"}, {"gamma", "1 - 2/(1 + exp(2*x))"}},
          {{.name = "delta", .init = "1", .learn = model::Learning::head}}}}};
    const auto it = laws.find(name);
    return it == laws.end() ? nullptr : &it->second;
}

// The term whose sums fade the channels of queries and keys.
inline std::string fading_name(const model::AttentionConfig& a) {
    const std::string begin = "z_between(";
    for (const std::string& text : laws_of(a)) {
        const std::string& formula = token_law(text) ? token_law(text)->formula : text;
        const size_t at = formula.find(begin);
        if (at == std::string::npos) continue;
        const size_t from = at + begin.size();
        return formula.substr(from, formula.find(')', from) - from);
    }
    return "";
}

// The terms of the config, of which the angle may use one.
inline std::vector<TermText> written_terms(const model::AttentionConfig& a, bool of_angle) {
    std::vector<TermText> all;
    for (const auto& [name, c] : a.terms) {
        if (name == fading_name(a)) continue;
        if ((a.written_angle().find("between(" + name + ")") != std::string::npos) != of_angle) continue;
        all.push_back({name, c.value, "0", c.zero_init});
        if (const std::string* init = c.init.to_string())
            all.back().init = *init;
        else if (!c.init.is_null())
            all.back().init = fmt::format("{}", c.init.as_number());
    }
    return all;
}

// Empty, or the one that fades channels.
inline std::vector<TermText> fading_of(const model::AttentionConfig& a) {
    const std::string name = fading_name(a);
    if (name.empty()) return {};
    TermText term{name, "", "0"};
    if (laws_of(a)[0] == "wall") term = {name, "0 - log(1 + exp(0 - x))", "8"};
    const auto it = a.terms.find(name);
    if (it == a.terms.end()) return {term};
    if (!it->second.value.empty()) term.value = it->second.value;
    if (const std::string* init = it->second.init.to_string())
        term.init = *init;
    else if (!it->second.init.is_null())
        term.init = fmt::format("{}", it->second.init.as_number());
    term.zero_weights = it->second.zero_init;
    return {term};
}

// Those that scores read: of the config, then of the named laws.
inline std::vector<TermText> terms_of(const model::AttentionConfig& a) {
    std::vector<TermText> all = written_terms(a, false);
    for (const std::string& text : laws_of(a))
        for (const TermText& term : token_law(text) ? token_law(text)->terms : std::vector<TermText>()) {
            const auto same = [&](const TermText& t) { return t.name == term.name; };
            const auto known = std::find_if(all.begin(), all.end(), same);
            if (known == all.end())
                all.push_back(term);
            else if (known->value.empty())
                known->value = term.value;
        }
    return all;
}

// --- parameters

// Those of the named laws, as `params` changes them, and what formulas may use.
inline std::vector<ScoreParameter> score_parameters(const model::AttentionConfig& a) {
    std::vector<ScoreParameter> all;
    bool formulas = false;
    for (const std::string& text : laws_of(a)) {
        const auto law = law_named(text);
        const TokenLaw* of_tokens = token_law(text);
        formulas = formulas || !law;
        for (const ScoreParameter& p : of_tokens ? of_tokens->parameters : std::vector<ScoreParameter>())
            all.push_back(p);
        for (const ScoreParameter& p : law ? parameters_of(*law) : std::vector<ScoreParameter>())
            all.push_back(p);
    }
    for (const auto& [name, unused] : a.params) {
        const auto known = [&, n = &name](const ScoreParameter& p) { return p.name == *n; };
        if (formulas && std::none_of(all.begin(), all.end(), known)) all.push_back({name});
    }
    for (ScoreParameter& p : all) {
        const auto it = a.params.find(p.name);
        if (it == a.params.end()) continue;
        const model::ScoreParameterConfig& c = it->second;
        if (const std::string* init = c.init.to_string())
            p.init = *init;
        else if (!c.init.is_null())
            p.init = fmt::format("{}", c.init.as_number());
        if (c.learn != model::Learning::by_law) p.learn = c.learn;
        if (const json::Array* range = c.range.to_array()) {
            p.least = (*range)[0].as_number();
            p.most = (*range)[1].as_number();
        }
        p.positive = p.positive || c.positive;
        p.size = c.size;
    }
    return all;
}

inline bool starts_at_parity(const model::AttentionConfig& a) {
    for (const ScoreParameter& p : score_parameters(a))
        if (p.init == "parity") return true;
    return false;
}

inline double base_scale(const model::AttentionConfig& a) {
    if (of_dot(a)) return 1;
    return unscaled_base(a, starts_at_parity(a) ? 0 : a.score_base);
}

// name: "layers.3.attention."
inline std::string score_tensor(const std::string& name, const std::string& layout, const ScoreParameter& p) {
    const std::string own = (p.positive ? "score.log_" : "score.") + p.name;
    if (p.learn == model::Learning::model) return own;
    if (p.learn == model::Learning::layout)
        return (layout.empty() ? "attention." : "layouts." + layout + ".") + own;
    return name + own;
}

// --- laws

template <class T>
class ScoreLaws {
  public:
    // value(parameter, head, element): as it acts, but for its range.
    template <class Value>
    ScoreLaws(const model::ModelConfig& m, const model::AttentionConfig& a, int64_t layer, const Value& value)
        : heads_(a.heads), head_dim_(a.head_dim), trained_(double(m.train_context)), base_(base_scale(a)) {
        for (const std::string& text : laws_of(a))
            stages_.push_back({token_law(text) ? token_law(text)->formula : text, law_named(text)});
        const std::vector<ScoreParameter> parameters = score_parameters(a);
        for (int64_t h = 0; h < a.heads; ++h) {
            Values<T> names = {{"h", double(h)},          {"H", double(a.heads)},
                               {"l", double(layer)},      {"layers", double(m.layers)},
                               {"d", double(a.head_dim)}, {"L", trained_}};
            std::map<std::string, std::vector<T>> vectors;
            for (const ScoreParameter& p : parameters) {
                std::vector<T> held;
                for (int64_t k = 0; k < std::max<int64_t>(1, p.size); ++k) {
                    const T x = value(p, size_t(h), size_t(k));
                    held.push_back(value_of(x) < p.least ? T(p.least) : value_of(x) > p.most ? T(p.most) : x);
                }
                if (p.size > 0)
                    vectors[p.name] = held;
                else
                    names[p.name] = held[0];
            }
            for (const TermText& term : terms_of(a))  // where no tokens are given
                names[term.name + "_q"] = names[term.name + "_k"] = names["between(" + term.name + ")"] =
                    T(0);
            names_.push_back(std::move(names));
            vectors_.push_back(std::move(vectors));
        }
    }

    // The value of a term in head h, where it reads x.
    T term(const TermText& term, size_t h, const T& x) const {
        Values<T> names = names_[h];
        names["x"] = x;
        return FormulaWalker<T>(term.value, names, vectors_[h]).value();
    }

    // The same of one of all channels, which are the heads of its formula.
    T fading(const TermText& term, size_t channel, size_t channels, const T& x) const {
        Values<T> names = names_[0];
        names["h"] = double(channel);
        names["H"] = double(channels);
        names["x"] = x;
        return FormulaWalker<T>(term.value, names, {}).value();
    }

    // dot: <q, k>. length: of the sequence. tokens: the names of terms, and what they stand for.
    T score(const T& dot, size_t h, double n, double t, double length, const Values<T>& tokens = {}) const {
        T z = T(base_) * dot;
        for (const Stage& stage : stages_) {
            if (stage.law) {
                const Place at{n, t, int64_t(h), heads_, head_dim_, trained_};
                z = apply(*stage.law, z, at, names_[h]);
                continue;
            }
            Values<T> names = names_[h];
            names["n"] = n;
            names["t"] = t;
            names["T"] = length;
            names["dot"] = dot;
            names["z"] = z;
            for (const auto& [name, value] : tokens) names[name] = value;
            z = FormulaWalker<T>(stage.text, names, vectors_[h]).value();
        }
        return z;
    }

  private:
    struct Stage {
        std::string text;
        std::optional<Law> law;
    };
    int64_t heads_, head_dim_;
    double trained_, base_;
    std::vector<Stage> stages_;
    // By head.
    std::vector<Values<T>> names_;
    std::vector<std::map<std::string, std::vector<T>>> vectors_;
};

double parity_of(const model::ModelConfig& m, const model::AttentionConfig& a, int64_t layer,
                 const std::string& name);

// What a parameter starts with; the mean of what is drawn.
inline double first_value(const model::ModelConfig& m, const model::AttentionConfig& a, int64_t layer,
                          const ScoreParameter& p, size_t head) {
    if (p.init == "parity") return parity_of(m, a, layer, p.name);
    if (const auto most = p.drawn_below()) return *most / 2;
    return FormulaWalker<double>(p.init,
                                 {{"h", double(head)},
                                  {"H", double(a.heads)},
                                  {"l", double(layer)},
                                  {"layers", double(m.layers)},
                                  {"d", double(a.head_dim)},
                                  {"L", double(m.train_context)}},
                                 {})
        .value();
}

// With this value small products of a query of L/2 keys score next to it as in the unscaled model.
inline double parity_of(const model::ModelConfig& m, const model::AttentionConfig& a, int64_t layer,
                        const std::string& name) {
    using D = Dual<double, 1>;
    const auto slope = [&](double x) {
        const ScoreLaws<D> laws(m, a, layer, [&](const ScoreParameter& p, size_t h, size_t) {
            return D(p.name == name ? x : first_value(m, a, layer, p, h));
        });
        D dot = 0;
        dot.slope[0] = 1;
        const double trained = double(m.train_context);
        return laws.score(dot, 0, trained / 2, 0, trained).slope[0];
    };
    const double none = slope(0);
    return (unscaled_base(a, a.score_base) - none) / (slope(1) - none);
}

}  // namespace longreach::reference
