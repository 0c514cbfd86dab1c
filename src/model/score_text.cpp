// The score of an attention section as text: formulas, written or of named laws, and what `params` and `terms` say.
#include <algorithm>

#include <fmt/format.h>

#include "model/attention_angle.h"
#include "model/attention_score.h"

namespace longreach::model {

namespace {

using law::Sharing;

std::string text_of(double value) {
    return fmt::format("{}", value);
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
    explicit Builder(const AttentionConfig& attention) : a_(attention), fading_(fading_term(attention)) {}

    ScoreText text(const ScoreChange& change) {
        const std::string of_angle = angle_step(a_);
        for (const auto& [name, config] : a_.terms)
            if (name != of_angle && name != fading_) add_term({.name = name, .formula = ""}, ".score");
        if (a_.score.is_null())
            add_stage("z", {}, ".score");
        else
            for_entries(a_.score, ".score", [&](const std::string& text, const std::string& key) {
                named_or_formula(text, key);
            });
        keep_apart(of_angle, "turns heads");
        if (!change.factor.empty()) {
            add_stage(law::find_law(change.factor)->formula, {}, "eval.rope.scale");
            out_.stages.back().of_factor = true;
        }
        if (!change.laws.is_null())
            for_entries(change.laws, "eval.score",
                        [&](const std::string& text, const std::string& key) { add_change(text, key); });
        // Those of an evaluation too, which to the parser are formulas of z.
        for (size_t i = 1; i < out_.stages.size(); ++i)
            if (const std::vector<std::string> terms = law::faded_by(out_.stages[i].formula); !terms.empty())
                throw ScoreError(
                    fmt::format("z is the score so far: z_between({}) belongs into the first formula",
                                terms.front()),
                    out_.keys[i]);
        if (!fading_.empty()) check_fading(of_angle);
        return std::move(out_);
    }

  private:
    // No formula may read a term that is not by head.
    void keep_apart(const std::string& term, const char* does) const {
        for (size_t i = 0; i < out_.stages.size() && !term.empty(); ++i)
            for (const std::string& place : {law::at_query(term), law::at_key(term), law::between(term)})
                if (law::mentions(out_.stages[i].formula, place))
                    throw ScoreError(
                        fmt::format("the term {} {}: give the score a term of its own", term, does),
                        out_.keys[i]);
    }
    void check_fading(const std::string& of_angle) const {
        keep_apart(fading_, "fades channels");
        const std::string written = fmt::format("z_between({})", fading_);
        if (fading_ == of_angle)
            throw ScoreError(
                fmt::format("the term {} turns heads: give the score a term of its own", fading_),
                out_.keys.front());
        const std::string& formula = out_.stages.front().formula;
        for (const std::string& term : law::faded_by(formula))
            if (term != fading_)
                throw ScoreError(
                    fmt::format("channels fade by one term: {} and z_between({})", written, term),
                    out_.keys.front());
        for (const char* other : {"z", "dot"})
            if (law::mentions(formula, other))
                throw ScoreError(fmt::format("{} next to {}: a score has one of them", other, written),
                                 out_.keys.front());
    }
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
            for (const law::Term& term : named->terms)
                if (term.name != fading_) add_term(term, key);
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
    const std::string fading_;
    ScoreText out_;
    std::vector<std::pair<std::string, size_t>> names_;  // of parameters, and their index
};

}  // namespace

std::string fading_term(const AttentionConfig& a) {
    const auto of_formula = [](const json::Value& written) -> std::string {
        const std::string* text = written.to_string();
        if (text == nullptr) return "";
        const law::NamedLaw* named = law::find_law(*text);
        const std::vector<std::string> terms = law::faded_by(named != nullptr ? named->formula : *text);
        return terms.empty() ? "" : terms.front();
    };
    const json::Array* list = a.score.to_array();
    if (list == nullptr) return of_formula(a.score);
    for (const json::Value& one : *list)
        if (const std::string term = of_formula(one); !term.empty()) return term;
    return "";
}

ScoreText score_text(const AttentionConfig& attention, const ScoreChange& change) {
    return Builder(attention).text(change);
}

bool starts_at_parity(const ScoreText& text) {
    return std::any_of(text.parameters.begin(), text.parameters.end(),
                       [](const law::Parameter& p) { return p.init == "parity"; });
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

}  // namespace longreach::model
