// A law with numbers in place of names.
#include <algorithm>
#include <cmath>

#include "law/library.h"

namespace longreach::law {

namespace {

constexpr Variable init_variables[] = {Variable::h,      Variable::H, Variable::l,
                                       Variable::layers, Variable::d, Variable::L};

Formula parse_init(const std::string& text) {
    constexpr std::string_view uniform = "uniform(";
    // Drawn between two numbers: the middle stands for it where nothing is drawn.
    if (text.starts_with(uniform) && text.ends_with(")")) {
        const size_t comma = text.find(',');
        if (comma == std::string::npos) throw FormulaError("uniform takes 2 arguments", 0, text.size());
        const Formula low =
            parse(std::string_view(text).substr(uniform.size(), comma - uniform.size()), init_variables, {});
        const Formula high =
            parse(std::string_view(text).substr(comma + 1, text.size() - comma - 2), init_variables, {});
        return (low + high) / number(2);
    }
    return parse(text, init_variables, {});
}

}  // namespace

BoundLaw::BoundLaw(const std::vector<std::string>& stages, const std::vector<Parameter>& parameters,
                   const ModelNumbers& model, int64_t& stage)
    : parameters_(parameters), model_(model) {
    std::vector<std::string> names;
    for (const Parameter& p : parameters) names.push_back(p.name);
    std::vector<Formula> formulas;
    for (stage = 0; stage < static_cast<int64_t>(stages.size()); ++stage)
        formulas.push_back(parse(stages[static_cast<size_t>(stage)], score_variables, names));
    size_t blamed = 0;
    try {
        law_ = separate(formulas, names, blamed);
    } catch (const FormulaError&) {
        stage = static_cast<int64_t>(blamed);
        throw;
    }
    values_.assign(static_cast<size_t>(model.heads), {});
    for (auto& head : values_)
        for (const Parameter& p : parameters_) head.emplace_back(static_cast<size_t>(p.size), 1.0);
    for (size_t i = 0; i < parameters_.size(); ++i) {
        stage = -1 - static_cast<int64_t>(i);
        if (parameters_[i].init != "parity") set_initial(i);
    }
    for (size_t i = 0; i < parameters_.size(); ++i) {
        stage = -1 - static_cast<int64_t>(i);
        if (parameters_[i].init == "parity") set_parity(i);
    }
}

Values BoundLaw::values_of(int64_t head) const {
    const auto as_double = [](int64_t n) { return static_cast<double>(n); };
    Values v;
    v[Variable::h] = as_double(head);
    v[Variable::H] = as_double(model_.heads);
    v[Variable::l] = as_double(model_.layer);
    v[Variable::layers] = as_double(model_.layers);
    v[Variable::d] = as_double(model_.head_dim);
    v[Variable::L] = v[Variable::T] = as_double(model_.train_context);
    for (const std::vector<double>& p : values_[static_cast<size_t>(head)]) v.parameters.emplace_back(p);
    return v;
}

void BoundLaw::set_initial(size_t parameter) {
    const Parameter& p = parameters_[parameter];
    const Formula init = parse_init(p.init);
    for (int64_t h = 0; h < model_.heads; ++h) {
        Values v = values_of(h);
        v.parameters.clear();
        const double value = std::clamp(evaluate(init, v), p.least, p.most);
        auto& elements = values_[static_cast<size_t>(h)][parameter];
        std::fill(elements.begin(), elements.end(), value);
    }
}

// The factor of z at n = L/2 and t = 0 becomes that of the unscaled model: 1, and sqrt(d) for cosines.
void BoundLaw::set_parity(size_t parameter) {
    const double target = law_.of_dot ? std::sqrt(static_cast<double>(model_.head_dim)) : 1;
    const Formula factor = law_.row * law_.gain;
    double value = 1;
    for (int64_t h = 0; h < model_.heads; ++h) {
        Values v = values_of(h);
        v[Variable::n] = static_cast<double>(model_.train_context) / 2;
        const double at_one = evaluate(factor, v);
        const double zero = 0;
        v.parameters[parameter] = std::span(&zero, 1);
        if (evaluate(factor, v) == at_one) continue;  // this head does not use it
        if (!(at_one > 0))
            throw FormulaError(
                "parity: the factor of z at n = L/2 is not positive, so no value makes it the unscaled "
                "model's",
                0, 1);
        value = target / at_one;
        break;
    }
    for (auto& head : values_) head[parameter].assign(head[parameter].size(), value);
}

std::vector<double> BoundLaw::table(const Formula& f, Variable over, int64_t first, int64_t head,
                                    int64_t count) const {
    const auto as_double = [](int64_t n) { return static_cast<double>(n); };
    // What is known becomes a number, so that the arguments of solvers are numbers.
    std::vector<std::optional<double>> known;
    for (const std::vector<double>& p : values_[static_cast<size_t>(head)])
        known.push_back(p.size() == 1 ? std::optional(p[0]) : std::nullopt);
    const Formula resolved = resolve(f,
                                     {{Variable::d, as_double(model_.head_dim)},
                                      {Variable::L, as_double(model_.train_context)},
                                      {Variable::h, as_double(head)},
                                      {Variable::H, as_double(model_.heads)}},
                                     known);
    return tabulate(resolved, over, first, count, values_of(head));
}

}  // namespace longreach::law
