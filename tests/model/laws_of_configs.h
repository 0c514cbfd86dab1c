// The named laws as the numbers that tests compare.
#pragma once

#include <string>
#include <vector>

#include "model/attention_score.h"
#include "model/laws.h"

namespace longreach::test {

inline const std::vector<std::string> count_laws = {
    "logn",        "logn_bias", "logn_fixed04", "logn_abc",  "entinv",        "qwen_logn", "llama4",
    "grok2",       "sqrt2logn", "sqrt2lognp1",  "sqrt_abc",  "maxterm2",      "beta_pow",  "solve_c",
    "solve_c_cos", "gammalogn", "cosa_const",   "cosa_logn", "gradmax_gauss", "qknorm_g"};
inline const std::vector<std::string> distance_laws = {"scale_invariant", "log_bias",   "si_interp",
                                                       "alibi",           "kerple_log", "kerple_power"};

inline bool is_for_cosines(const std::string& law) {
    return law == "gammalogn" || law == "cosa_const" || law == "cosa_logn" || law == "qknorm_g";
}
// The parameter that a law multiplies its factor of n with; "": none.
inline std::string factor_parameter(const std::string& law) {
    for (const law::Parameter& p : law::find_law(law)->parameters)
        for (const char* name : {"r", "s", "g", "gamma"})
            if (p.name == name) return name;
    return "";
}

inline model::LayerScore score_of(const model::AttentionConfig& attention, int64_t train_context = 2048) {
    model::ModelConfig m;
    m.layers = 1;
    m.attention = attention;
    m.train_context = train_context;
    return model::layer_score(m, 0);
}

// A part in which nothing learns, at n or t.
inline double value_at(const model::ScorePart& part, law::Variable over, double at, int64_t head = 0) {
    law::Values v;
    v[over] = at;
    v[law::Variable::h] = static_cast<double>(head);
    return law::evaluate(part.formula, v);
}

// A law of n whose factor is 1 times its shape; `params` say what of the shape differs.
inline model::LayerScore shape_of(const std::string& law, int64_t head_dim, int64_t train_context,
                                  ScoreParameters params = {}) {
    model::AttentionConfig a;
    a.heads = 1;
    a.head_dim = head_dim;
    if (is_for_cosines(law)) a.qk.kind = model::QkKind::qk_l2;
    if (const std::string r = factor_parameter(law); !r.empty()) params[r] = starts(1, model::Learning::no);
    if (law == "logn_bias") params["b"] = starts(0, model::Learning::no);
    add_law(a, law, params);
    return score_of(a, train_context);
}
inline double scale_shape(const std::string& law, int64_t head_dim, int64_t train_context, double n,
                          const ScoreParameters& params = {}) {
    return value_at(shape_of(law, head_dim, train_context, params).row, law::Variable::n, n);
}
// Entry n - 1 is the shape at n = 1 .. count, as the device gets it.
inline std::vector<double> scale_shapes(const std::string& law, int64_t head_dim, int64_t train_context,
                                        int64_t count, const ScoreParameters& params = {}) {
    const model::LayerScore s = shape_of(law, head_dim, train_context, params);
    return s.law.tabulate(s.row.formula, law::Variable::n, 0, count, static_cast<double>(train_context));
}

// The first r, whatever its law calls it; 1 for laws without one.
inline double initial_r(const model::AttentionConfig& attention, int64_t train_context) {
    const model::LayerScore s = score_of(attention, train_context);
    for (size_t i = 0; i < s.law.parameters().size(); ++i)
        for (const char* name : {"r", "s", "g", "gamma"})
            if (s.law.parameters()[i].name == name) return s.law.value(0, i);
    return 1;
}
inline double score_base(const model::AttentionConfig& attention) {
    return score_of(attention).base;
}
inline bool uses_train_context(const model::AttentionConfig& attention) {
    return score_of(attention).law.uses_context();
}

struct GainBias {
    double gain = 1, bias = 0;
};
inline model::LayerScore distance_law(const std::string& law, const ScoreParameters& params,
                                      int64_t heads = 1) {
    model::AttentionConfig a;
    a.heads = heads;
    add_law(a, law, params);
    return score_of(a);
}
// Of si_interp, `gain` is the square u(t).
inline GainBias distance_transform(const std::string& law, const ScoreParameters& params, int64_t t,
                                   int64_t head = 0, int64_t heads = 1) {
    const model::LayerScore s = distance_law(law, params, heads);
    const double at = static_cast<double>(t);
    return {value_at(s.gain, law::Variable::t, at, head), value_at(s.bias, law::Variable::t, at, head)};
}
inline double si_interp_row(const ScoreParameters& params, double n) {
    return value_at(distance_law("si_interp", params).square, law::Variable::n, n);
}
inline std::vector<double> alibi_slopes(int64_t heads) {
    std::vector<double> slopes;
    for (int64_t h = 0; h < heads; ++h) slopes.push_back(-distance_transform("alibi", {}, 1, h, heads).bias);
    return slopes;
}

}  // namespace longreach::test
