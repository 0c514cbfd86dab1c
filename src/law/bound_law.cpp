#include "law/bound_law.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include <fmt/format.h>

namespace longreach::law {

namespace {

// a and b of "uniform(a, b)"; nothing: another init.
std::optional<std::pair<Formula, Formula>> parse_uniform(const std::string& text) {
    constexpr std::string_view name = "uniform(";
    if (!text.starts_with(name) || !text.ends_with(")")) return std::nullopt;
    const size_t end = text.size() - 1;
    size_t comma = std::string::npos;
    int depth = 0;
    for (size_t i = name.size(); i < end && comma == std::string::npos; ++i) {
        depth += text[i] == '(' ? 1 : text[i] == ')' ? -1 : 0;
        if (text[i] == ',' && depth == 0) comma = i;
    }
    if (comma == std::string::npos) throw FormulaError("uniform takes 2 arguments", 0, text.size());
    const auto part = [&](size_t from, size_t to) {
        try {
            return parse(std::string_view(text).substr(from, to - from), init_variables, {});
        } catch (const FormulaError& e) {
            throw FormulaError(e.what(), from + e.begin, from + e.end);
        }
    };
    return std::pair(part(name.size(), comma), part(comma + 1, end));
}

// The formula of a stage, with its parameters numbered as those of the law. Positions in the text are kept.
Formula renumbered(const Formula& f, const std::vector<size_t>& numbers, const std::vector<Parameter>& all,
                   bool vector = false) {
    Node n = *f;
    if (n.kind == Node::Kind::parameter) {
        n.parameter = numbers[n.parameter];
        const bool term = n.parameter >= all.size();
        if (term && vector)
            throw FormulaError("a term is one number; lookup reads a vector of params", n.begin, n.end);
        if (!term && !vector && all[n.parameter].size > 1)
            throw FormulaError(fmt::format("{0} has {1} elements: lookup({0}, index) reads one",
                                           all[n.parameter].name, all[n.parameter].size),
                               n.begin, n.end);
    }
    for (size_t i = 0; i < n.arguments.size(); ++i)
        n.arguments[i] = renumbered(n.arguments[i], numbers, all, n.function == Function::lookup && i == 0);
    return std::make_shared<const Node>(std::move(n));
}

Formula held(const Formula& value, const Parameter& p) {
    if (std::isinf(p.least) && std::isinf(p.most)) return value;
    return call(Function::clamp, {value, number(p.least), number(p.most)});
}

}  // namespace

const char* learned(Sharing sharing) {
    switch (sharing) {
        case Sharing::fixed:
            return "";
        case Sharing::model:
            return ", learned for the model";
        case Sharing::layout:
            return ", learned for the layout";
        case Sharing::layer:
            return ", learned by layer";
        case Sharing::head:
            return ", learned by head";
    }
    return "";
}

std::vector<Stage> stages_of(const std::vector<std::string>& formulas, size_t parameters) {
    std::vector<size_t> all(parameters);
    std::iota(all.begin(), all.end(), size_t{0});
    std::vector<Stage> stages;
    for (const std::string& f : formulas) stages.push_back({f, all});
    return stages;
}

BoundLaw::BoundLaw(const std::vector<Stage>& stages, const std::vector<Parameter>& parameters,
                   const ModelNumbers& model, int64_t& stage, const std::vector<Term>& terms)
    : parameters_(parameters), terms_(terms), model_(model) {
    std::vector<std::string> names;
    for (const Parameter& p : parameters) names.push_back(p.name);
    // Behind the parameters stand the x of the terms, then the places of the terms.
    const TermPlaces places{.first = parameters.size() + terms.size(), .terms = terms.size()};
    std::vector<Formula> formulas;
    std::vector<bool> of_factor;
    for (stage = 0; stage < static_cast<int64_t>(stages.size()); ++stage) {
        const Stage& s = stages[static_cast<size_t>(stage)];
        std::vector<std::string> own;
        for (const size_t i : s.parameters) own.push_back(names[i]);
        std::vector<size_t> numbers = s.parameters;
        for (size_t k = 0; k < terms.size(); ++k) {
            const std::string& term = terms[k].name;
            for (const std::string& name : {at_query(term), at_key(term), law::between(term)})
                own.push_back(name), numbers.push_back(places.first + numbers.size() - s.parameters.size());
        }
        formulas.push_back(renumbered(parse_finite(s.formula, score_variables, own), numbers, parameters));
        of_factor.push_back(s.of_factor);
        note_uses(formulas.back());
    }
    size_t blamed = 0;
    try {
        law_ = separate(formulas, blamed, of_factor, places);
    } catch (const FormulaError&) {
        stage = static_cast<int64_t>(blamed);
        throw;
    }
    put_terms(places, static_cast<int64_t>(stages.size()), stage);
    drawn_.resize(parameters.size());
    values_.assign(static_cast<size_t>(model.heads),
                   std::vector<double>(parameters.size() + terms.size(), 1.0));
    set_first_biases(static_cast<int64_t>(stages.size() + terms.size()), stage);
    for (size_t i = 0; i < parameters.size(); ++i) {
        stage = -1 - static_cast<int64_t>(i);
        const Parameter& p = parameters[i];
        first_.push_back(nullptr);
        if (p.init == "parity") continue;
        if (const auto range = parse_uniform(p.init)) {
            const Values v = values_of(0);
            drawn_[i] = {evaluate(range->first, v), evaluate(range->second, v)};
            if (drawn_[i]->first > drawn_[i]->second)
                throw FormulaError("uniform takes the smaller number first", 0, p.init.size());
            first_[i] = (range->first + range->second) / number(2);
        } else {
            first_[i] = parse(p.init, init_variables, {});
        }
        note_uses(first_[i]);
        for (int64_t h = 0; h < model.heads; ++h) {
            const double value = evaluate(first_[i], values_of(h));
            if (std::isnan(value) || std::isinf(value))
                throw FormulaError(
                    fmt::format("the first value is {}{}",
                                std::isnan(value) ? "not a number" : fmt::format("{}", value),
                                uses(first_[i], Variable::h) ? fmt::format(" in head {}", h) : ""),
                    0, p.init.size());
            values_[static_cast<size_t>(h)][i] = std::clamp(value, p.least, p.most);
        }
    }
    for (size_t i = 0; i < parameters_.size(); ++i) {
        stage = -1 - static_cast<int64_t>(i);
        if (parameters_[i].init == "parity") set_parity(i);
    }
    check_first_values(stage);
    for (stage = 0; stage < static_cast<int64_t>(stages.size()); ++stage)
        for (int64_t h = 0; h < model.heads; ++h)
            check_solvers(
                formulas[static_cast<size_t>(stage)],
                [&](const Formula& f) -> std::optional<double> {
                    for (const Variable v : {Variable::n, Variable::t, Variable::z, Variable::dot})
                        if (uses(f, v)) return std::nullopt;
                    for (const auto place : {TermPlaces::query, TermPlaces::key, TermPlaces::between})
                        if (places.reads(f, place)) return std::nullopt;
                    for (size_t i = 0; i < parameters_.size(); ++i)
                        if (learns(i) && uses_parameter(f, i)) return std::nullopt;
                    return evaluate(f, values_of(h));
                },
                true);
}

// Every part becomes a formula of the x of its terms.
void BoundLaw::put_terms(const TermPlaces& places, int64_t first, int64_t& stage) {
    if (terms_.empty()) return;
    std::vector<Formula> of_x;
    for (size_t k = 0; k < terms_.size(); ++k) {
        stage = first + static_cast<int64_t>(k);
        std::vector<std::string> names;
        for (const size_t i : terms_[k].parameters) names.push_back(parameters_[i].name);
        const Formula term = renumbered(parse_finite(terms_[k].formula, term_variables, names),
                                        terms_[k].parameters, parameters_);
        if (!uses(term, Variable::x))
            throw FormulaError("a term is a formula of x", 0, terms_[k].formula.size());
        note_uses(term);
        Node x;
        x.kind = Node::Kind::parameter;
        x.parameter = input_of(k);
        of_x.push_back(substitute(term, Variable::x, std::make_shared<const Node>(std::move(x))));
    }
    const auto put = [&](Formula& part) {
        part = rewrite(part, [&](const Formula& f) -> Formula {
            const bool placed = f->kind == Node::Kind::parameter && f->parameter >= places.first;
            return placed ? of_x[places.term(f->parameter)] : nullptr;
        });
    };
    for (Formula* part : {&law_.row, &law_.between, &law_.key}) put(*part);
    for (Formula& part : law_.cancelled) put(part);
}

void BoundLaw::set_first_biases(int64_t first, int64_t& stage) {
    for (size_t k = 0; k < terms_.size(); ++k) {
        stage = first + static_cast<int64_t>(k);
        const Formula init = parse(terms_[k].init, init_variables, {});
        note_uses(init);
        for (int64_t h = 0; h < model_.heads; ++h) {
            const double value = evaluate(init, values_of(h));
            if (!(std::abs(value) <= std::numeric_limits<float>::max()))
                throw FormulaError("the first value is not finite", 0, terms_[k].init.size());
            values_[static_cast<size_t>(h)][input_of(k)] = value;
        }
    }
}

void BoundLaw::check_first_values(int64_t& stage) const {
    for (size_t i = 0; i < parameters_.size(); ++i) {
        const Parameter& p = parameters_[i];
        if (!p.positive || !learns(i)) continue;
        stage = -1 - static_cast<int64_t>(i);
        for (int64_t h = 0; h < model_.heads; ++h)
            if (!(value(h, i) > 0))
                throw FormulaError(
                    fmt::format("its logarithm is learned, so the first value must be above 0, not {}{}",
                                value(h, i),
                                uses(first_[i], Variable::h) ? fmt::format(" in head {}", h) : ""),
                    0, p.init.size());
    }
}

Values BoundLaw::values_of(int64_t head) const {
    Values v;
    v[Variable::h] = as_double(head);
    v[Variable::H] = as_double(model_.heads);
    v[Variable::l] = as_double(model_.layer);
    v[Variable::layers] = as_double(model_.layers);
    v[Variable::d] = as_double(model_.head_dim);
    v[Variable::L] = v[Variable::T] = as_double(model_.train_context);
    for (const double& p : values_[static_cast<size_t>(head)]) v.parameters.emplace_back(&p, 1);
    return v;
}

// The factor of z at n = L/2 and t = 0 becomes that of the unscaled model.
void BoundLaw::set_parity(size_t parameter) {
    const double usual = law_.of_dot ? std::sqrt(as_double(model_.head_dim)) : 1;
    const double target = model_.parity > 0 ? model_.parity : usual;
    const Formula by_distance =
        law_.row_square ? call(Function::sqrt, {law_.gain + law_.row_square}) : law_.gain;
    const Formula factor = law_.row * by_distance;
    if (!uses_parameter(factor, parameter))
        throw FormulaError(fmt::format("parity: {} is not in the factor of z; give its first value",
                                       parameters_[parameter].name),
                           0, parameters_[parameter].init.size());
    double value = 1;
    for (int64_t h = 0; h < model_.heads; ++h) {
        Values v = values_of(h);
        v[Variable::n] = as_double(model_.train_context) / 2;
        const Formula of_head =
            resolve(factor, {{Variable::h, as_double(h)}, {Variable::H, as_double(model_.heads)}});
        if (!uses_parameter(of_head, parameter)) continue;
        uses_context_ = uses_context_ || uses(of_head, Variable::n);
        const auto with = [&](double x) {
            v.parameters[parameter] = std::span(&x, 1);
            return evaluate(of_head, v);
        };
        const double rest = with(0), slope = with(1) - rest;
        const std::string where = fmt::format("the factor of z at n = {} (half of L)", v[Variable::n]);
        if (!(slope > 0))
            throw FormulaError(fmt::format("parity: {} does not grow with {}; no value makes it that of the "
                                           "unscaled model",
                                           where, parameters_[parameter].name),
                               0, parameters_[parameter].init.size());
        if (!(std::abs(with(3) - rest - 3 * slope) <= 1e-9 * slope))
            throw FormulaError(fmt::format("parity: {} is not linear in {}; give its first value", where,
                                           parameters_[parameter].name),
                               0, parameters_[parameter].init.size());
        value = (target - rest) / slope;
        break;
    }
    for (auto& head : values_) head[parameter] = value;
    first_[parameter] = number(value);
}

std::vector<double> BoundLaw::table(const Formula& f, Variable over, int64_t first, int64_t head,
                                    int64_t count) const {
    // What is known becomes a number, so that the arguments of solvers are numbers.
    return law::tabulate(at_head(f, head, [](size_t) { return false; }), over, first, count, values_of(head));
}

Formula BoundLaw::at_head(const Formula& f, int64_t head, const std::function<bool(size_t)>& open) const {
    const std::vector<double>& values = values_[static_cast<size_t>(head)];
    const Formula of_numbers = rewrite(f, [&](const Formula& part) -> Formula {
        const bool vector = is_call(part, Function::lookup);
        if (!vector && part->kind != Node::Kind::parameter) return nullptr;
        const size_t p = vector ? part->arguments[0]->parameter : part->parameter;
        return open(p) ? nullptr : number(values[p]);
    });
    return resolve(of_numbers, {{Variable::d, as_double(model_.head_dim)},
                                {Variable::L, as_double(model_.train_context)},
                                {Variable::l, as_double(model_.layer)},
                                {Variable::layers, as_double(model_.layers)},
                                {Variable::h, as_double(head)},
                                {Variable::H, as_double(model_.heads)}});
}

Formula BoundLaw::stored_form(const Formula& part) const {
    const auto learned = [&](const Formula& stored, const Parameter& p) {
        return held(p.positive ? call(Function::exp, {stored}) : stored, p);
    };
    const Formula placed = rewrite(part, [&](const Formula& f) -> Formula {
        if (f->kind == Node::Kind::parameter) {
            if (f->parameter >= parameters_.size()) return nullptr;
            const Parameter& p = parameters_[f->parameter];
            return p.learn == Sharing::fixed ? held(first_[f->parameter], p) : learned(f, p);
        }
        if (is_call(f, Function::lookup)) {
            const Formula& vector = f->arguments[0];
            const Parameter& p = parameters_[vector->parameter];
            if (p.learn == Sharing::fixed) return held(first_[vector->parameter], p);
            return learned(call(Function::lookup, {vector, stored_form(f->arguments[1])}), p);
        }
        return nullptr;
    });
    return resolve(placed, {{Variable::l, as_double(model_.layer)},
                            {Variable::layers, as_double(model_.layers)},
                            {Variable::d, as_double(model_.head_dim)},
                            {Variable::L, as_double(model_.train_context)},
                            {Variable::H, as_double(model_.heads)}});
}

CompiledTable BoundLaw::compile(const Formula& stored, Variable over) const {
    std::vector<Input> inputs;
    for (const Parameter& p : parameters_)
        inputs.push_back({.learned = true, .size = p.size, .by_head = p.learn == Sharing::head});
    inputs.resize(inputs.size() + terms_.size(), {.learned = true, .token = true});
    return law::compile(stored, over, inputs);
}

std::vector<double> BoundLaw::tabulate(const Formula& stored, Variable over, int64_t head, int64_t count,
                                       double length) const {
    const Formula f = resolve(stored, {{Variable::h, as_double(head)}, {Variable::T, length}});
    return law::tabulate(f, over, over == Variable::n ? 1 : 0, count, {});
}

}  // namespace longreach::law
