#include "law/angle.h"

#include <algorithm>
#include <array>
#include <cmath>

#include <fmt/format.h>

#include "law/law.h"

namespace longreach::law {

namespace {

std::vector<NamedAngle> make_library() {
    const Definition k{"k", "T/L"}, window{"w", "max(1, floor(L/4))"}, base{"base", "10000"},
        fraction{"fraction", "0.5"}, kept{"kept", "floor(fraction*d/2 + 1e-9)"};
    const Definition leak{"k", "where(w < L, (T - w)/(L - w), T/L)"};
    return {
        {"rope",
         {.near = "p * base^(-2*m/d)", .definitions = {base}},
         true,
         "rotary positions: every pair turns",
         "su2021roformer"},
        {"p_rope",
         {.near = "p * base^(-2*m/d) * (m < kept)", .definitions = {base, fraction, kept}},
         true,
         "only the fastest pairs turn",
         "barbero2024"},
        {"p_rope_linspace",
         {.near = "p * base^(-m/max(1, kept - 1)) * (m < kept)", .definitions = {base, fraction, kept}},
         true,
         "frequencies from 1 to 1/base over the pairs that turn",
         "barbero2024"},
        {"nope", {.near = "0"}, true, "nothing turns", "kazemnejad2023"},
        {"xpos",
         {.near = "p * base^(-2*m/d)",
          .growth = "p/span * log((2*m/d + gamma)/(1 + gamma))",
          .definitions = {base, {"span", "512"}, {"gamma", "0.4"}}},
         true,
         "rotary positions whose pairs also fade with distance, the fast ones first",
         "sun2022lex"},

        {"pi", {.near = "p * (theta/k)", .definitions = {k}}, false, "positions divided by k", "chen2023pi"},
        {"ntk",
         {.near = "p * (theta * k^(-m/max(1, R - 1)))", .definitions = {k}},
         false,
         "base * k^(d/(d-2)): the slowest rotation is divided by k",
         "peng2023yarn nor2025"},
        {"ntk_old",
         {.near = "p * (theta * k^(-m/R))", .definitions = {k}},
         false,
         "base * k (NTK-RoPE-old)",
         "su9706"},
        {"ntk_su",
         {.near = "p * (theta * k^(-(m + 1)/R))", .definitions = {k}},
         false,
         "theta_m / k^(2m/d), m from 1 (NTK-RoPE-fixed)",
         "su9706"},
        {"ntk_mixed",
         {.near = "p * (theta * k^(-((m + 1)/R)^exponent))", .definitions = {k, {"exponent", "0.625"}}},
         false,
         "theta_m / k^((2m/d)^exponent), m from 1 (NTK-RoPE-mixed)",
         "su9706"},
        {"ntk_dynamic",
         {.near = "p * (theta * (k*(T/L) - (k - 1))^(-m/max(1, R - 1)))", .definitions = {{"k", "1"}}},
         false,
         "base * (k L / L_train - (k - 1))^(d/(d-2))",
         "peng2023yarn"},
        {"yarn",
         {.near = "p * (theta*ramp/k + theta*(1 - ramp))",
          .definitions = {k,
                          {"fall", "0"},  // the model sets it: pairs over which theta falls by a factor of e
                          {"fast", "32"},
                          {"slow", "1"},
                          {"low", "max(floor(fall*log(L/(2*pi*fast))), 0)"},
                          {"high", "max(min(ceil(fall*log(L/(2*pi*slow))), 2*R - 1), low)"},
                          {"ramp", "clamp((m - low)/(where(low == high, high + 0.001, high) - low), 0, 1)"}}},
         false,
         "fast rotations as trained, slow ones divided by k, a ramp between; its temperature is the score "
         "law yarn_temp",
         "peng2023yarn"},
        {"llama3",
         {.near = "p * (theta * (1/k + (1 - 1/k)*clamp((L*theta/(2*pi) - slow)/(fast - slow), 0, 1)))",
          .definitions = {k, {"fast", "4"}, {"slow", "1"}}},
         false,
         "pairs that turn `fast` times over L or more as trained, those below `slow` divided by k, a ramp in "
         "turns between",
         "meta2024llama3"},
        {"rerope",
         {.near = "p*theta",
          .far_query = "w*theta",
          .far_key = "0",
          .far_from = "w",
          .definitions = {window}},
         false,
         "distances beyond a window count as the window",
         "su9708"},
        {"leaky_rerope",
         {.near = "p*theta",
          .far_query = "(w - w/k + p*(1/k))*theta",
          .far_key = "p*(1/k)*theta",
          .far_from = "w",
          .definitions = {window, leak}},
         false,
         "distances beyond a window grow slower",
         "su9708"},
    };
}

struct Binder {
    const AngleNumbers& numbers;
    std::vector<std::string> names{};
    std::vector<Formula> formulas{};  // of the names, in which no name is left

    bool change() const { return numbers.length > 0; }

    Formula parsed(const std::string& text) const {
        const std::span<const Variable> variables =
            change() ? std::span<const Variable>(changed_angle_variables) : angle_variables;
        const Formula f = parse_finite(text, variables, names);
        if (uses(f, Variable::theta) && numbers.theta.empty())
            throw FormulaError("theta: the trained angle is not proportional to p", 0, text.size());
        check_solvers(
            f,
            [&](const Formula& argument) -> std::optional<double> {
                const Formula of_model = known(argument);
                for (const Variable v : {Variable::p, Variable::m, Variable::theta})
                    if (uses(of_model, v)) return std::nullopt;
                return evaluate(of_model, {});
            },
            false);
        return known(f);
    }

    // Without names, and with numbers for what all pairs share, so that they share its value too.
    Formula known(const Formula& f) const {
        const Formula unnamed = rewrite(f, [&](const Formula& part) {
            return part->kind == Node::Kind::parameter ? formulas[part->parameter] : nullptr;
        });
        std::vector<std::pair<Variable, double>> values{{Variable::d, as_double(numbers.head_dim)},
                                                        {Variable::l, as_double(numbers.layer)},
                                                        {Variable::layers, as_double(numbers.layers)},
                                                        {Variable::L, as_double(numbers.train_context)}};
        if (change()) {
            values.emplace_back(Variable::T, as_double(numbers.length));
            values.emplace_back(Variable::R, static_cast<double>(numbers.pairs));
        }
        return resolve(unnamed, values);
    }

    Formula of_pair(const Formula& f, size_t pair) const {
        std::vector<std::pair<Variable, double>> values{{Variable::m, static_cast<double>(pair)}};
        if (change() && !numbers.theta.empty()) values.emplace_back(Variable::theta, numbers.theta[pair]);
        return resolve(f, values);
    }

    std::vector<Formula> of_pairs(const std::string& text) const {
        const Formula f = parsed(text);
        const size_t pairs = change() ? numbers.pairs : static_cast<size_t>(numbers.head_dim / 2);
        std::vector<Formula> all;
        for (size_t m = 0; m < pairs; ++m) all.push_back(of_pair(f, m));
        return all;
    }
};

// The factor of p; nothing if the formula is not proportional to p.
std::optional<double> slope(const Formula& f) {
    if (is_number(f, 0)) return 0.0;
    if (f->kind == Node::Kind::variable && f->variable == Variable::p) return 1.0;
    if (f->kind != Node::Kind::call) return std::nullopt;
    const auto number_of = [&](size_t i) -> std::optional<double> {
        if (f->arguments[i]->kind != Node::Kind::number) return std::nullopt;
        return f->arguments[i]->number;
    };
    const auto product = [](std::optional<double> a, std::optional<double> b) -> std::optional<double> {
        if (!a || !b) return std::nullopt;
        return *a * *b;
    };
    switch (f->function) {
        case Function::multiply:
            return number_of(0) ? product(number_of(0), slope(f->arguments[1]))
                                : product(slope(f->arguments[0]), number_of(1));
        case Function::divide:
            return number_of(1) ? product(slope(f->arguments[0]), 1 / *number_of(1)) : std::nullopt;
        case Function::negate:
            return product(slope(f->arguments[0]), -1.0);
        default:
            return std::nullopt;
    }
}

}  // namespace

const std::vector<NamedAngle>& angle_library() {
    static const std::vector<NamedAngle> angles = make_library();
    return angles;
}

const NamedAngle* find_angle(std::string_view name) {
    const auto& all = angle_library();
    const auto it = std::find_if(all.begin(), all.end(), [&](const NamedAngle& a) { return a.name == name; });
    return it == all.end() ? nullptr : &*it;
}

Angle bind_angle(const AngleText& text, const AngleNumbers& numbers, int64_t& blamed) {
    Binder binder{.numbers = numbers};
    blamed = 0;
    for (const Definition& d : text.definitions) {
        const Formula f = binder.parsed(d.formula);
        binder.names.push_back(d.name);
        binder.formulas.push_back(f);
        ++blamed;
    }
    blamed = -1;
    Angle angle{.near = binder.of_pairs(text.near)};
    if (!text.growth.empty()) {
        blamed = -5;
        angle.growth = binder.of_pairs(text.growth);
    }
    while (!binder.change() && !angle.near.empty() && is_number(angle.near.back(), 0) &&
           (angle.growth.empty() || is_number(angle.growth.back(), 0))) {
        angle.near.pop_back();
        if (!angle.growth.empty()) angle.growth.pop_back();
    }
    if (text.far_from.empty()) return angle;
    blamed = -2;
    angle.far_queries = binder.of_pairs(text.far_query);
    blamed = -3;
    angle.far_keys = binder.of_pairs(text.far_key);
    blamed = -4;
    const Formula f = binder.parsed(text.far_from);
    for (const Variable v : {Variable::p, Variable::m, Variable::theta})
        if (uses(f, v))
            throw FormulaError(fmt::format("far_from is one distance: it cannot depend on {}", name_of(v)), 0,
                               text.far_from.size());
    const double from = angle.near.empty() ? 1 : evaluate(binder.of_pair(f, 0), {});
    if (!(from >= 1 && from <= 0x1p53))
        throw FormulaError(fmt::format("far_from is {}: expected a distance of at least 1", from), 0,
                           text.far_from.size());
    angle.far_from = static_cast<int64_t>(from);
    return angle;
}

std::string Angle::first_not_finite(int64_t rows) const {
    constexpr int64_t every = 65536;  // beyond it, samples
    const std::array<std::pair<const char*, const std::vector<Formula>*>, 3> parts{
        {{"near", &near}, {"far_query", &far_queries}, {"far_key", &far_keys}}};
    for (const auto& [name, angles] : parts)
        for (size_t m = 0; m < angles->size(); ++m) {
            if (slope((*angles)[m]).value_or(INFINITY) <= 1e30) continue;
            Values v;
            for (int64_t p = 0; p < rows; p += p < every ? 1 : p / 4096) {
                v[Variable::p] = static_cast<double>(p);
                const double value = evaluate((*angles)[m], v);
                if (!std::isfinite(value)) return fmt::format("{}({}) of pair {} is {}", name, p, m, value);
            }
        }
    return "";
}

std::string Angle::unrepresentable_growth(int64_t length) const {
    for (size_t m = 0; m < growth.size(); ++m) {
        Values middle, v;
        const int64_t middle_position = length / 2;
        middle[Variable::p] = static_cast<double>(middle_position);
        const double at_middle = evaluate(growth[m], middle);
        for (int64_t p = 0; p < length; p += std::max<int64_t>(1, (length - 1) / 4096)) {
            v[Variable::p] = static_cast<double>(p);
            const double change = evaluate(growth[m], v) - at_middle;
            if (!(std::abs(change) <= most_growth))
                return fmt::format(
                    "the growth of pair {} changes by {:.4g} between the middle of {} positions and position "
                    "{}, by more than {}",
                    m, change, length, p, most_growth);
        }
    }
    return "";
}

std::string Angle::key() const {
    std::string all = fmt::format("{}", far_from);
    for (const std::vector<Formula>* angles : {&near, &far_queries, &far_keys, &growth}) {
        for (const Formula& f : *angles) all += ";" + write(f, {});
        all += "|";
    }
    return all;
}

std::optional<std::vector<double>> frequencies(const std::vector<Formula>& angles) {
    std::vector<double> theta;
    for (const Formula& f : angles) {
        const std::optional<double> s = slope(f);
        if (!s) return std::nullopt;
        theta.push_back(*s);
    }
    return theta;
}

}  // namespace longreach::law
