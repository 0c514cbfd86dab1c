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

std::string text_of(double value) {
    return fmt::format("{}", value);
}

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

Sharing sharing_of(Learning learn, Sharing by_law) {
    switch (learn) {
        case Learning::by_law:
            return by_law;
        case Learning::no:
            return Sharing::fixed;
        case Learning::model:
            return Sharing::model;
        case Learning::layout:
            return Sharing::layout;
        case Learning::layer:
            return Sharing::layer;
        case Learning::head:
            return Sharing::head;
    }
    return by_law;
}

class Builder {
  public:
    explicit Builder(const AttentionConfig& attention) : a_(attention) {}

    ScoreText text(const ScoreChange& change) {
        const std::string of_angle = angle_step(a_);
        for (const auto& [name, config] : a_.terms)
            if (name != of_angle) add_term({.name = name, .formula = ""}, ".score");
        if (a_.score.is_null())
            add_stage("z", {}, ".score");
        else
            for_entries(a_.score, ".score", [&](const std::string& text, const std::string& key) {
                named_or_formula(text, key);
            });
        for (size_t i = 0; i < out_.stages.size() && !of_angle.empty(); ++i)
            for (const std::string& place :
                 {law::at_query(of_angle), law::at_key(of_angle), law::between(of_angle)})
                if (law::mentions(out_.stages[i].formula, place))
                    throw ScoreError(
                        fmt::format("the term {} turns heads: give the score a term of its own", of_angle),
                        out_.keys[i]);
        if (!change.factor.empty()) {
            add_stage(law::find_law(change.factor)->formula, {}, "eval.rope.scale");
            out_.stages.back().of_factor = true;
        }
        if (!change.laws.is_null())
            for_entries(change.laws, "eval.score",
                        [&](const std::string& text, const std::string& key) { add_change(text, key); });
        return std::move(out_);
    }

  private:
    void add_stage(const std::string& formula, std::vector<size_t> parameters, const std::string& key) {
        out_.stages.push_back({formula, std::move(parameters)});
        out_.keys.push_back(key);
    }
    size_t add_parameter(law::Parameter p, const std::string& tensor) {
        out_.tensors.push_back(p.learn == Sharing::fixed ? "" : tensor);
        out_.parameters.push_back(std::move(p));
        return out_.parameters.size() - 1;
    }

    // body(text, key) for the only formula, or those of a list.
    template <class Body>
    static void for_entries(const json::Value& score, const std::string& key, Body body) {
        const json::Array* list = score.to_array();
        const size_t count = list == nullptr ? 1 : list->size();
        if (count == 0) throw ScoreError("expected a formula or the name of a law", key);
        for (size_t i = 0; i < count; ++i) {
            const std::string at = list == nullptr ? key : fmt::format("{}.{}", key, i);
            const std::string* text = (list == nullptr ? score : (*list)[i]).to_string();
            if (text == nullptr) throw ScoreError("expected a formula or the name of a law", at);
            body(*text, at);
        }
    }

    void add_change(const std::string& written, const std::string& key) {
        const law::NamedLaw* named = law::find_law(written);
        std::vector<size_t> parameters;
        for (law::Parameter p : named != nullptr ? named->parameters : std::vector<law::Parameter>()) {
            if (p.init == "parity" || p.init.starts_with("uniform(") || p.size > 1)
                throw ScoreError(
                    fmt::format(
                        "parameter {} of {} has to be trained: write the formula with a number for it",
                        p.name, written),
                    key);
            p.learn = Sharing::fixed;
            parameters.push_back(add_parameter(std::move(p), ""));
        }
        add_stage(named != nullptr ? named->formula : written, std::move(parameters), key);
    }

    void named_or_formula(const std::string& written, const std::string& key) {
        const law::NamedLaw* named = law::find_law(written);
        std::vector<size_t> parameters;
        if (named != nullptr) {
            for (const law::Term& term : named->terms) add_term(term, key);
            for (const law::Parameter& p : named->parameters) {
                if (find(p.name) != nullptr)
                    throw ScoreError(
                        fmt::format("two laws have a parameter {}: write one of them as a formula", p.name),
                        key);
                parameters.push_back(configured(p));
            }
            return add_stage(named->formula, std::move(parameters), key);
        }
        for (const auto& [name, unused] : a_.params) {
            if (!law::mentions(written, name)) continue;
            const std::string problem = law::name_problem(name);
            if (!problem.empty()) throw ScoreError(problem, ".params." + name);
            const size_t* known = find(name);
            parameters.push_back(known != nullptr ? *known : configured({.name = name, .init = ""}));
        }
        add_stage(written, std::move(parameters), key);
    }

    // A term as a law has it, with what the config says of it.
    void add_term(law::Term term, const std::string& key) {
        const std::string section = ".terms." + term.name;
        if (const std::string problem = law::name_problem(term.name); !problem.empty())
            throw ScoreError(problem, section);
        for (const std::string& place : {law::at_query(term.name), law::at_key(term.name)})
            if (a_.params.contains(place))
                throw ScoreError(
                    fmt::format("this is the term {} at the query or the key: choose another name",
                                term.name),
                    ".params." + place);
        const auto known = std::find_if(out_.terms.begin(), out_.terms.end(),
                                        [&](const law::Term& t) { return t.name == term.name; });
        const bool again = known != out_.terms.end();
        if (again && !known->formula.empty() && !term.formula.empty() && !a_.terms.contains(term.name))
            throw ScoreError(
                fmt::format("two laws have a term {}: write one of them as a formula", term.name), key);
        if (const auto it = a_.terms.find(term.name); it != a_.terms.end()) {
            const TermConfig& c = it->second;
            if (!c.value.empty()) term.formula = c.value;
            if (const std::string* init = c.init.to_string())
                term.init = *init;
            else if (const std::optional<double> number = c.init.to_number())
                term.init = text_of(*number);
            else if (!c.init.is_null())
                throw ScoreError("expected a number or a formula", section + ".init");
            term.zero_weights = term.zero_weights || c.zero_init;
        }
        for (const auto& [name, unused] : a_.params)
            if (law::mentions(term.formula, name)) {
                const size_t* parameter = find(name);
                term.parameters.push_back(parameter != nullptr ? *parameter
                                                               : configured({.name = name, .init = ""}));
            }
        if (again)
            *known = std::move(term);
        else
            out_.terms.push_back(std::move(term));
    }

    const size_t* find(const std::string& name) const {
        for (const auto& [known, index] : names_)
            if (known == name) return &index;
        return nullptr;
    }

    // A parameter with what the config says of it.
    size_t configured(law::Parameter p) {
        const std::string key = ".params." + p.name;
        if (const auto it = a_.params.find(p.name); it != a_.params.end()) {
            const ScoreParameterConfig& c = it->second;
            if (const std::string* init = c.init.to_string()) {
                p.init = *init;
            } else if (const std::optional<double> number = c.init.to_number()) {
                p.init = text_of(*number);
            } else if (!c.init.is_null()) {
                throw ScoreError("expected a number, a formula, parity or uniform(a, b)", key + ".init");
            }
            p.learn = sharing_of(c.learn, p.learn);
            p.positive = p.positive || c.positive;
            if (c.size > 0) p.size = c.size;
            p.rate = c.lr;
            set_range(p, c, key);
        }
        if (p.init.empty())
            throw ScoreError("needs a first value: a number, a formula, parity or uniform(a, b)",
                             key + ".init");
        if (p.positive && p.init.starts_with("uniform("))
            throw ScoreError("what starts at random cannot be learned as a logarithm", key + ".positive");
        if (p.learn == Sharing::fixed && p.init.starts_with("uniform("))
            throw ScoreError("a first value drawn at random must learn: set learn to layer or head",
                             key + ".learn");
        if (p.learn == Sharing::fixed && p.size > 1)
            throw ScoreError("a vector that does not learn is one number: let it learn", key + ".learn");
        if (p.learn == Sharing::fixed && p.positive)
            throw ScoreError("has no effect: this parameter does not learn", key + ".positive");
        const std::string tensor = (p.positive ? "score.log_" : "score.") + p.name;
        const std::string name = p.name;
        const size_t index = add_parameter(std::move(p), tensor);
        names_.emplace_back(name, index);
        return index;
    }

    static void set_range(law::Parameter& p, const ScoreParameterConfig& c, const std::string& key) {
        if (c.range.is_null()) return;
        const json::Array* range = c.range.to_array();
        const bool two = range != nullptr && range->size() == 2;
        const std::optional<double> least = two ? (*range)[0].to_number() : std::nullopt;
        const std::optional<double> most = two ? (*range)[1].to_number() : std::nullopt;
        if (!least || !most || *least > *most)
            throw ScoreError("expected two numbers, the smaller first", key + ".range");
        p.least = *least;
        p.most = *most;
    }

    const AttentionConfig& a_;
    ScoreText out_;
    std::vector<std::pair<std::string, size_t>> names_;  // of parameters, and their index
};

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

ScoreText score_text(const AttentionConfig& attention, const ScoreChange& change) {
    return Builder(attention).text(change);
}

std::string written_out(const ScoreText& text) {
    std::string line;
    for (size_t i = 0; i < text.stages.size(); ++i)
        line += fmt::format("{}{}", i == 0 ? "" : ", then ", text.stages[i].formula);
    for (const law::Parameter& p : text.parameters)
        line += fmt::format("; {} = {}{}", p.name, p.init, law::learned(p.learn));
    for (const law::Term& t : text.terms) line += fmt::format("; {} = {} by token", t.name, t.formula);
    return line;
}

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

bool starts_at_parity(const ScoreText& text) {
    return std::any_of(text.parameters.begin(), text.parameters.end(),
                       [](const law::Parameter& p) { return p.init == "parity"; });
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

LayerScore layer_steps(const ModelConfig& model, int64_t layer) {
    const AttentionConfig& a = model.layer_attention(layer);
    const std::string step = angle_step(a);
    check(!step.empty(), "layer {} has no steps", layer);
    AttentionConfig sums;
    sums.heads = a.kv();
    sums.head_dim = a.head_dim;
    sums.score = json::Value("z + " + law::between(step));
    sums.terms = {{step, a.terms.at(step)}};
    return score_of(model, layer, sums, {});
}

}  // namespace longreach::model
