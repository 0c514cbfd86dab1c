#include "model/attention_score.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "base/error.h"
#include "base/text.h"
#include "model/attention_angle.h"
#include "law/law_meant.h"

namespace longreach::model {

namespace {

using law::Sharing;

bool unit_vectors(QkKind kind) {
    return kind == QkKind::qk_l2 || kind == QkKind::cosa;
}

// s_base of the same model without a law and without `score_base`.
double default_base(const AttentionConfig& a) {
    const double d = static_cast<double>(a.head_dim);
    if (a.qk.kind == QkKind::qna || a.qk.kind == QkKind::kna || a.qk.kind == QkKind::kna_w) return 1;
    return unit_vectors(a.qk.kind) ? std::sqrt(d) : 1 / std::sqrt(d);
}

// s_base of the unscaled model. `score_base` refers to queries and keys of length sqrt(d), as an RMS norm makes them; unit
// vectors need d times as much for the same scores.
double unscaled_base(const AttentionConfig& a) {
    if (a.score_base == 0) return default_base(a);
    return unit_vectors(a.qk.kind) ? a.score_base * static_cast<double>(a.head_dim) : a.score_base;
}

[[noreturn]] void rethrow(const law::FormulaError& e, const std::string& text, const std::string& key) {
    throw ScoreError(e.begin == e.end ? e.what() : fmt::format("{}: {}", e.what(), law::marked(text, e)),
                     key);
}

law::BoundLaw bind(const ScoreText& text, const law::ModelNumbers& numbers) {
    int64_t blamed = 0;
    try {
        return {text.stages, text.parameters, numbers, blamed, text.terms};
    } catch (const law::FormulaError& e) {
        if (blamed >= 0) {
            auto stage = static_cast<size_t>(blamed);
            if (stage >= text.stages.size()) {
                stage -= text.stages.size();
                const law::Term& term = text.terms[stage % text.terms.size()];
                if (stage < text.terms.size()) rethrow(e, term.formula, ".terms." + term.name);
                rethrow(e, term.init, ".terms." + term.name + ".init");
            }
            const std::string& formula = text.stages[stage].formula;
            if (const std::string meant = law::law_meant(formula); !meant.empty())
                throw ScoreError(fmt::format("no law is named {}: did you mean {}?", formula, meant),
                                 text.keys[stage]);
            rethrow(e, formula, text.keys[stage]);
        }
        const law::Parameter& p = text.parameters[static_cast<size_t>(-1 - blamed)];
        rethrow(e, p.init, ".params." + p.name + ".init");
    }
}

ScorePart part_of(const law::BoundLaw& law, const law::Formula& formula, law::Variable over) {
    ScorePart part{law.stored_form(formula), {}};
    part.value = law.compile(part.formula, over);
    part.by_head = part.value.by_head;
    part.of_token = !part.value.tokens.empty();
    std::vector<size_t> learned = part.value.tokens;
    if (part.value.learned)
        learned.insert(learned.end(), part.value.parameters.begin(), part.value.parameters.end());
    for (const size_t p : learned) {
        const law::Formula d = law::derivative(part.formula, p);
        if (law::is_number(d, 0)) continue;
        law::Formula element;
        if (p < law.parameters().size() && law.parameters()[p].size > 1) {
            if (part.of_token) throw law::FormulaError("a vector cannot stand next to a term", 0, 0);
            element = law::index_of(part.formula, p);
        }
        part.derivatives.push_back({p, d, law.compile(d, over), element});
    }
    return part;
}

bool is_one(const ScorePart& part) {
    return law::is_number(part.formula, 1);
}

// The name of a parameter's tensor in the model.
std::string full_name(const ModelConfig& model, int64_t layer, Sharing sharing, const std::string& tensor) {
    if (sharing == Sharing::model) return tensor;
    if (sharing != Sharing::layout) return fmt::format("layers.{}.attention.{}", layer, tensor);
    const std::string layout = model.layout_name(layer);
    return layout.empty() ? "attention." + tensor : "layouts." + layout + "." + tensor;
}

bool uses(const ScorePart& part, size_t parameter) {
    return part.formula && law::uses_parameter(part.formula, parameter);
}

bool in_row_alone(const LayerScore& s, size_t parameter) {
    return !uses(s.gain, parameter) && !uses(s.bias, parameter) && !uses(s.square, parameter);
}

// Whether a score has a derivative by a parameter, or by the x of a term.
bool learns(const LayerScore& s, size_t parameter) {
    const std::array parts = s.parts();
    return std::any_of(parts.begin(), parts.end(), [&](const ScorePart* part) {
        return std::any_of(part->derivatives.begin(), part->derivatives.end(),
                           [&](const auto& d) { return d.parameter == parameter; });
    });
}

constexpr const char* cannot_learn =
    "cannot learn: its gradient is 0, because it stands only inside floor, ceil or a comparison";

void check_terms(const LayerScore& s, const ScoreText& text, const AttentionConfig& a) {
    for (size_t k = 0; k < text.terms.size(); ++k) {
        const std::string key = ".terms." + text.terms[k].name;
        const size_t x = s.law.input_of(k);
        const std::array parts = s.parts();
        if (std::none_of(parts.begin(), parts.end(), [&](const ScorePart* part) { return uses(*part, x); })) {
            for (const law::Formula& summand : s.law.law().cancelled)
                if (law::uses_parameter(summand, x))
                    throw ScoreError(
                        fmt::format("{} is equal for all keys of a query and cancels in the softmax",
                                    s.law.written(summand)),
                        key);
            throw ScoreError(fmt::format("no formula uses {0}_q, {0}_k or between({0})", text.terms[k].name),
                             key);
        }
        if (!learns(s, x)) throw ScoreError(cannot_learn, key);
    }
    if (!s.has_sums) return;
    if (a.normaliser == Normaliser::stick_breaking)
        throw ScoreError("stick-breaking has no biases by token", text.keys.back());
    if (a.sink != SinkKind::none && !law::is_number(s.key.formula, 0))
        throw ScoreError(
            "a bias of the key is computed up to a number for each query, which cancels in the softmax, but not "
            "against a sink",
            text.keys.back());
}

// What the kernels of fading channels do not know.
void check_fading(const LayerScore& s, const ScoreText& text, const AttentionConfig& a) {
    const auto refuse = [&](bool used, const char* what) {
        if (used) throw ScoreError(fmt::format("z_between({}) {}", s.fading, what), text.keys.front());
    };
    refuse(a.normaliser != Normaliser::softmax, "needs the softmax");
    refuse(s.law.law().softcap != 0, "has no softcap");
    refuse(s.has_square, "is multiplied by a number of n and a number of t, not by sqrt of a sum over both");
    refuse(s.gain.learned() || s.bias.learned(), "stands next to tables by distance that do not learn");
}

void check_parameters(const LayerScore& s, const ScoreText& text) {
    for (size_t i = 0; i < text.parameters.size(); ++i) {
        const law::Parameter& p = text.parameters[i];
        const std::string key = ".params." + p.name;
        if (s.tensors[i].empty()) continue;
        const law::Formula& first = s.law.first(i);
        if (p.learn != Sharing::head && law::uses(first, law::Variable::h))
            throw ScoreError("differs by head, but all heads share this parameter: set learn to head",
                             key + ".init");
        if ((p.learn == Sharing::model || p.learn == Sharing::layout) && law::uses(first, law::Variable::l))
            throw ScoreError("differs by layer, but layers share this parameter: set learn to layer or head",
                             key + ".init");
        if (s.has_square && !in_row_alone(s, i))
            throw ScoreError("cannot learn: the kernels have no gradient of sqrt of a sum over n and t", key);
        if (!learns(s, i)) throw ScoreError(cannot_learn, key);
    }
}

// The factor of s_base of a change; null: none. On a model trained with yarn, whose base has the temperature of its k,
// it is what the larger k adds.
law::Formula temperature_of(const ScoreChange& change, const ModelConfig& model, int64_t layer) {
    if (change.stretch.empty()) return nullptr;
    constexpr law::Variable variables[] = {law::Variable::T, law::Variable::L};
    const double trained = trained_stretch(model, layer);
    const std::string text = trained == 1 ? fmt::format("(0.1*log({}) + 1)^2", change.stretch)
                                          : fmt::format("((0.1*log({}*({})) + 1)/(0.1*log({}) + 1))^2",
                                                        trained, change.stretch, trained);
    return law::resolve(law::parse(text, variables, {}),
                        {{law::Variable::L, static_cast<double>(model.train_context)}});
}

}  // namespace

double bias_of_gain(const LayerScore& score, int64_t rows) {
    const ScorePart &gain = score.gain, &bias = score.bias;
    if (gain.learned() || bias.learned() || score.has_square || is_one(gain)) return 0;
    if (law::uses(gain.formula, law::Variable::T) || law::uses(bias.formula, law::Variable::T)) return 0;
    double k = 0;
    for (int64_t h = 0; h < (gain.by_head || bias.by_head ? score.law.model().heads : 1); ++h) {
        const std::vector<double> gains = score.law.tabulate(gain.formula, law::Variable::t, h, rows, 0),
                                  biases = score.law.tabulate(bias.formula, law::Variable::t, h, rows, 0);
        const auto rest = [&](size_t t) { return gains[t] * gains[t] - 1; };
        if (h == 0) k = biases.back() / rest(gains.size() - 1);
        for (size_t t = 0; t < gains.size(); ++t) {
            const double of_gain = k * rest(t);
            if (!(std::abs(biases[t] - of_gain) <= 1e-13 * (std::abs(biases[t]) + std::abs(k)))) return 0;
        }
    }
    return k;
}

namespace {

LayerScore score_of(const ModelConfig& model, int64_t layer, const AttentionConfig& a,
                    const ScoreChange& change) {
    const ScoreText text = score_text(a, change);
    law::ModelNumbers numbers{.heads = a.heads,
                              .layer = layer,
                              .layers = model.layers,
                              .head_dim = a.head_dim,
                              .train_context = model.train_context};
    const double unscaled = unscaled_base(a);
    const double base = law::mentions(text.stages.front().formula, "dot") ? 1
                        : starts_at_parity(text)                          ? default_base(a)
                                                                          : unscaled;
    numbers.parity = unscaled / base;

    LayerScore s{.law = bind(text, numbers),
                 .tensors = {},
                 .base = base * trained_temperature(model, layer),
                 .factor = temperature_of(change, model, layer)};
    for (size_t i = 0; i < text.parameters.size(); ++i)
        s.tensors.push_back(text.tensors[i].empty()
                                ? ""
                                : full_name(model, layer, text.parameters[i].learn, text.tensors[i]));
    const law::Law& l = s.law.law();
    try {
        s.row = part_of(s.law, l.row, law::Variable::n);
        s.gain = part_of(s.law, l.gain, law::Variable::t);
        s.bias = part_of(s.law, l.bias, law::Variable::t);
        if (l.row_square) s.square = part_of(s.law, l.row_square, law::Variable::n);
        s.between = part_of(s.law, l.between, law::Variable::n);
        s.key = part_of(s.law, -l.key, law::Variable::n);
    } catch (const law::FormulaError& e) {
        if (text.stages.size() > 1) throw ScoreError(e.what(), ".score");  // whose text it is, is not known
        rethrow(e, text.stages.back().formula, text.keys.back());
    }
    s.has_row = !is_one(s.row);
    s.has_square = l.row_square != nullptr;  // with it the kernels read the gain, even if it is 1
    s.has_distance = s.has_square || !is_one(s.gain) || !law::is_number(s.bias.formula, 0);
    s.has_sums = s.between.of_token || s.key.of_token;
    s.counts = law::uses(s.row.formula, law::Variable::n) || s.has_square;
    // A formula with l may leave a parameter out in this layer. What no layer uses is refused by check_scores.
    for (size_t i = 0; i < s.tensors.size(); ++i) {
        const std::array parts = s.parts();
        if (std::none_of(parts.begin(), parts.end(), [&](const ScorePart* part) { return uses(*part, i); }))
            s.tensors[i].clear();
    }
    check_parameters(s, text);
    check_terms(s, text, a);
    s.fading = fading_term(a);
    if (!s.fading.empty()) check_fading(s, text, a);
    if (a.sink != SinkKind::none && s.has_square)
        throw ScoreError(
            "sqrt of a sum over n and t is computed up to a number for each query, which cancels in the "
            "softmax, but not against a sink",
            text.keys.back());
    if (a.sink != SinkKind::none && !l.cancelled.empty())
        throw ScoreError(
            fmt::format("remove {}: it is equal for all keys of a query and cancels in the softmax, but not "
                        "against a sink",
                        s.law.written(l.cancelled.front())),
            text.keys.back());
    return s;
}

}  // namespace

LayerScore layer_score(const ModelConfig& model, int64_t layer, const ScoreChange& change) {
    return score_of(model, layer, model.layer_attention(layer), change);
}

namespace {

// The sums of one term alone, of `heads` heads.
LayerScore sums_of(const ModelConfig& model, int64_t layer, int64_t heads, const std::string& term,
                   const TermConfig& config) {
    AttentionConfig sums;
    sums.heads = heads;
    sums.head_dim = model.layer_attention(layer).head_dim;
    sums.score = json::Value("z + " + law::between(term));
    sums.terms = {{term, config}};
    return score_of(model, layer, sums, {});
}

// The term as the config has it, else the law that names it.
TermConfig fading_config(const AttentionConfig& a, const std::string& term) {
    const auto it = a.terms.find(term);
    TermConfig c = it != a.terms.end() ? it->second : TermConfig{};
    const json::Array* list = a.score.to_array();
    const std::string* first = (list == nullptr ? a.score : list->front()).to_string();
    const law::NamedLaw* named = first != nullptr ? law::find_law(*first) : nullptr;
    for (const law::Term& known : named != nullptr ? named->terms : std::vector<law::Term>()) {
        if (known.name != term) continue;
        if (c.value.empty()) c.value = known.formula;
        if (c.init.is_null()) c.init = json::Value(known.init);
        c.zero_init = c.zero_init || known.zero_weights;
    }
    if (c.value.empty())
        throw ScoreError(fmt::format("z_between takes the name of a term: terms.{} is missing", term),
                         list == nullptr ? ".score" : ".score.0");
    return c;
}

}  // namespace

LayerScore layer_steps(const ModelConfig& model, int64_t layer) {
    const AttentionConfig& a = model.layer_attention(layer);
    const std::string step = angle_step(a);
    check(!step.empty(), "layer {} has no steps", layer);
    return sums_of(model, layer, a.kv(), step, a.terms.at(step));
}

LayerScore layer_fading(const ModelConfig& model, int64_t layer) {
    const AttentionConfig& a = model.layer_attention(layer);
    const std::string term = fading_term(a);
    check(!term.empty(), "layer {} fades no channels", layer);
    LayerScore s = sums_of(model, layer, a.heads * a.head_dim, term, fading_config(a, term));
    // The kernels divide what has faded into factors of at most 1.
    for (const double x : {0.0, 1.0, -1.0, 8.0, -8.0, 30.0, -30.0}) {
        const law::Formula value = law::resolve(s.between.formula, {}, {x});
        if (law::Values values; law::evaluate(value, values) > 0)
            throw ScoreError(
                fmt::format("what fades channels is at most 0 for every x, as log_sigmoid(x) is; at x = "
                            "{} it is {:.4g}",
                            x, law::evaluate(value, values)),
                ".terms." + term);
    }
    return s;
}

}  // namespace longreach::model
