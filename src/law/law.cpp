#include "law/law.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "law/function_table.h"

namespace longreach::law {

namespace {

using F = Function;

// The part of the text that a formula comes from; of a derived one, what its parts come from.
struct Span {
    size_t begin = std::string::npos, end = 0;
};
Span span_of(const Formula& f) {
    if (f->begin != f->end) return {f->begin, f->end};
    Span all;
    for (const Formula& a : f->arguments) {
        const Span part = span_of(a);
        all = {std::min(all.begin, part.begin), std::max(all.end, part.end)};
    }
    return all;
}

[[noreturn]] void refuse(const std::string& message, const Formula& at) {
    const Span span = span_of(at);
    throw FormulaError(message, span.end == 0 ? 0 : span.begin, span.end);
}

// a * z + b, where z is the given variable.
struct Linear {
    Formula a, b;
};

class Separator {
  public:
    Separator(Law& law, const TermPlaces& places) : law_(law), places_(places) {}

    Linear linear(const Formula& f, Variable z) {
        if (!uses(f, z)) return {number(0), f};
        if (f->kind == Node::Kind::variable) return {number(1), number(0)};
        if (const auto cap = softcap_of(f, z)) {
            law_.softcap = *cap;
            return {number(1), number(0)};
        }
        const auto& x = f->arguments;
        switch (f->function) {
            case F::add:
            case F::subtract: {
                const Linear l = linear(x[0], z), r = linear(x[1], z);
                return {call(f->function, {l.a, r.a}), call(f->function, {l.b, r.b})};
            }
            case F::negate: {
                const Linear l = linear(x[0], z);
                return {-l.a, -l.b};
            }
            case F::multiply: {
                const Linear l = linear(x[0], z), r = linear(x[1], z);
                if (uses(x[0], z) && uses(x[1], z))
                    refuse(fmt::format("the score must be linear in {0}: this is a product of two {0}",
                                       name_of(z)),
                           f);
                return uses(x[0], z) ? Linear{l.a * x[1], l.b * x[1]} : Linear{x[0] * r.a, x[0] * r.b};
            }
            case F::divide: {
                if (uses(x[1], z))
                    refuse(fmt::format("the score must be linear in {0}: {0} divides", name_of(z)), x[1]);
                const Linear l = linear(x[0], z);
                return {l.a / x[1], l.b / x[1]};
            }
            case F::where: {
                if (uses(x[0], z)) refuse(fmt::format("a condition cannot depend on {}", name_of(z)), x[0]);
                const Linear l = linear(x[1], z), r = linear(x[2], z);
                return {where(x[0], l.a, r.a), where(x[0], l.b, r.b)};
            }
            default:
                refuse(fmt::format(
                           "the score must be linear in {0}: '{1}' of {0} cannot be a table{2}", name_of(z),
                           name_of(f->function),
                           f->function == F::tanh ? "; a softcap is written c*tanh(z/c), c a number" : ""),
                       f);
        }
    }

    // Which of n and t a factor depends on.
    struct Product {
        Formula constant, row, gain;
    };
    // Nothing if f is not a product of a function of n and one of t.
    std::optional<Product> product(const Formula& f) const {
        const Formula one = number(1);
        const bool by_row = of_query(f), by_distance = uses(f, Variable::t);
        if (!by_row && !by_distance) return Product{f, one, one};
        if (!by_distance) return Product{one, f, one};
        if (!by_row) return Product{one, one, f};
        const auto& x = f->arguments;
        if (is_call(f, F::multiply) || is_call(f, F::divide)) {
            const auto l = product(x[0]), r = product(x[1]);
            if (!l || !r) return std::nullopt;
            const auto join = [&](const Formula& a, const Formula& b) { return call(f->function, {a, b}); };
            return Product{join(l->constant, r->constant), join(l->row, r->row), join(l->gain, r->gain)};
        }
        if (is_call(f, F::negate)) {
            auto p = product(x[0]);
            if (p) p->constant = -p->constant;
            return p;
        }
        if (is_call(f, F::where) && !of_query(x[0]) && !uses(x[0], Variable::t)) {
            const auto l = product(x[1]), r = product(x[2]);
            if (!l || !r) return std::nullopt;
            const auto join = [&](const Formula& a, const Formula& b) { return where(x[0], a, b); };
            return Product{join(l->constant, r->constant), join(l->row, r->row), join(l->gain, r->gain)};
        }
        return std::nullopt;
    }

    void set_factor(const Formula& a) {
        const Formula one = number(1);
        refuse_in_factor(a);
        if (const auto p = product(a)) {
            law_.row = p->row;
            law_.gain = p->gain;
            // A constant joins the table that exists anyway.
            if (is_number(p->row, 1) && !is_number(p->gain, 1))
                law_.gain = p->constant * p->gain;
            else
                law_.row = p->constant * p->row;
            return;
        }
        // Functions of n alone times one root of a sum of both.
        Formula row = one, root;
        std::vector<Formula> factors{a};
        for (size_t i = 0; i < factors.size(); ++i) {
            const Formula f = factors[i];
            if (!uses(f, Variable::t))
                row = row * f;
            else if (is_call(f, F::multiply))
                factors.insert(factors.end(), f->arguments.begin(), f->arguments.end());
            else if (is_call(f, F::sqrt) && !root)
                root = f;
            else
                break;
            if (i + 1 < factors.size()) continue;
            Formula of_row = number(0), of_distance = number(0);
            if (!root || places_.reads(root, TermPlaces::query) ||
                !sums(root->arguments[0], number(1), of_row, of_distance))
                break;
            law_.row = row;
            law_.gain = of_distance;
            law_.row_square = of_row;
            return;
        }
        refuse(
            "the factor of z must be a product of a function of n and a function of t, or sqrt of a sum of "
            "two such functions; this mixes them",
            a);
    }

    // sign * f as a sum of a function of n and one of t.
    static bool sums(const Formula& f, const Formula& sign, Formula& of_row, Formula& of_distance) {
        if (!uses(f, Variable::n)) {
            of_distance = of_distance + sign * f;
            return true;
        }
        if (!uses(f, Variable::t)) {
            of_row = of_row + sign * f;
            return true;
        }
        const auto& x = f->arguments;
        if (is_call(f, F::add))
            return sums(x[0], sign, of_row, of_distance) && sums(x[1], sign, of_row, of_distance);
        if (is_call(f, F::subtract))
            return sums(x[0], sign, of_row, of_distance) && sums(x[1], -sign, of_row, of_distance);
        if (is_call(f, F::negate)) return sums(x[0], -sign, of_row, of_distance);
        return false;
    }

    // What is added to z * factor: a function of t, one of the key, and sums between both.
    struct Sum {
        Formula bias = number(0), between = number(0), key = number(0);
        // Of the parts of two sums.
        template <class Join>
        static Sum of(const Sum& a, const Sum& b, Join join) {
            return {join(a.bias, b.bias), join(a.between, b.between), join(a.key, b.key)};
        }
        template <class Change>
        Sum changed(Change change) const {
            return {change(bias), change(between), change(key)};
        }
    };
    Sum sum(const Formula& f) {
        const bool by_distance = uses(f, Variable::t), by_row = of_query(f),
                   by_key = places_.reads(f, TermPlaces::key),
                   between = places_.reads(f, TermPlaces::between);
        if (!by_distance && !by_key && !between) {
            if (!is_number(f, 0)) law_.cancelled.push_back(f);
            return {};
        }
        const int kinds = by_distance + by_row + by_key + between;
        if (kinds == 1 && !between && !separable_sum(f)) return by_key ? Sum{.key = f} : Sum{.bias = f};
        if (f->kind == Node::Kind::parameter) return {.between = f};
        const auto& x = f->arguments;
        const auto fixed = [&](const Formula& g) {
            return !uses(g, Variable::t) && !of_query(g) && !places_.reads(g, TermPlaces::key) &&
                   !places_.reads(g, TermPlaces::between);
        };
        const auto joined = [&](const Sum& l, const Sum& r) {
            return Sum::of(l, r, [&](const Formula& a, const Formula& b) {
                return call(f->function, {a, b});
            });
        };
        if (is_call(f, F::add) || is_call(f, F::subtract)) {
            const Sum l = sum(x[0]);
            return joined(l, sum(x[1]));
        }
        if (is_call(f, F::negate)) return sum(x[0]).changed([](const Formula& a) { return -a; });
        if (is_call(f, F::multiply) && fixed(x[0]))
            return sum(x[1]).changed([&](const Formula& a) { return x[0] * a; });
        if (is_call(f, F::multiply) && fixed(x[1]))
            return sum(x[0]).changed([&](const Formula& a) { return a * x[1]; });
        if (is_call(f, F::divide) && fixed(x[1]))
            return sum(x[0]).changed([&](const Formula& a) { return a / x[1]; });
        if (is_call(f, F::where) && fixed(x[0])) {
            const Sum l = sum(x[1]);
            return Sum::of(l, sum(x[2]),
                           [&](const Formula& a, const Formula& b) { return where(x[0], a, b); });
        }
        if (kinds == 1 && !between) return by_key ? Sum{.key = f} : Sum{.bias = f};
        if (between)
            refuse(
                "a sum between key and query may be multiplied by what is equal for all tokens alone; write "
                "the rest into the term",
                f);
        if (by_key)
            refuse("a summand may depend on the key alone, on t alone or on n alone: this mixes them", f);
        refuse("a summand without z may depend on t or on n, not on both: this mixes them", f);
    }

  private:
    bool of_query(const Formula& f) const {
        return uses(f, Variable::n) || places_.reads(f, TermPlaces::query);
    }
    void refuse_in_factor(const Formula& f) const {
        for (const Formula& a : f->arguments) refuse_in_factor(a);
        if (f->kind != Node::Kind::parameter) return;
        if (places_.holds(f->parameter, TermPlaces::key))
            refuse("a factor of z may depend on the query, not on the key", f);
        if (places_.holds(f->parameter, TermPlaces::between))
            refuse("a sum between key and query can be added to z, but not multiply it", f);
    }
    static bool separable_sum(const Formula& f) { return is_call(f, F::add) || is_call(f, F::subtract); }

    // c*tanh(z/c) with the same number twice.
    static std::optional<double> softcap_of(const Formula& f, Variable z) {
        if (!is_call(f, F::multiply)) return std::nullopt;
        for (const size_t i : {0, 1}) {
            const Formula &cap = f->arguments[i], &inner = f->arguments[1 - i];
            if (cap->kind != Node::Kind::number || !is_call(inner, F::tanh)) continue;
            const Formula& ratio = inner->arguments[0];
            if (is_call(ratio, F::divide) && ratio->arguments[0]->kind == Node::Kind::variable &&
                ratio->arguments[0]->variable == z && is_number(ratio->arguments[1], cap->number) &&
                cap->number > 0)
                return cap->number;
        }
        return std::nullopt;
    }

    Law& law_;
    const TermPlaces& places_;
};

}  // namespace

bool TermPlaces::reads(const Formula& f, Place place) const {
    if (terms == 0) return false;
    if (f->kind == Node::Kind::parameter) return holds(f->parameter, place);
    return std::any_of(f->arguments.begin(), f->arguments.end(),
                       [&](const Formula& a) { return reads(a, place); });
}

Law separate(const std::vector<Formula>& stages, size_t& stage, const std::vector<bool>& of_factor,
             const TermPlaces& places) {
    Law law;
    Separator separator(law, places);
    Linear whole{number(1), number(0)};
    for (stage = 0; stage < stages.size(); ++stage) {
        const Formula& f = stages[stage];
        const bool dot = uses(f, Variable::dot);
        if (dot && uses(f, Variable::z))
            refuse("a score is a function of z or of dot, not of both: z = s_base*dot", f);
        if (dot && stage > 0)
            refuse("only the first stage may use dot; z is the score of the stage before", f);
        if (!dot && !uses(f, Variable::z)) refuse("the score does not depend on z", f);
        law.of_dot = law.of_dot || dot;
        const double before = law.softcap;
        const Linear l = separator.linear(f, dot ? Variable::dot : Variable::z);
        if (law.softcap != before && stage > 0)
            refuse("a softcap belongs to the first stage: it comes before all factors", f);
        const bool alone = stage < of_factor.size() && of_factor[stage];
        whole = {l.a * whole.a, alone ? whole.b : l.a * whole.b + l.b};
        // Checked stage by stage, so that a message points into the formula that is to blame.
        separator.set_factor(l.a);
        separator.sum(l.b);
    }
    law.cancelled.clear();
    law.row_square = nullptr;
    stage = stages.size() - 1;
    separator.set_factor(whole.a);
    const Separator::Sum added = separator.sum(whole.b);
    law.bias = added.bias;
    law.between = added.between;
    law.key = added.key;
    law.row_of_token = places.reads(law.row, TermPlaces::query);
    return law;
}

void check_solvers(const Formula& f, const std::function<std::optional<double>(const Formula&)>& number_of,
                   bool of_n) {
    for (const Formula& a : f->arguments) check_solvers(a, number_of, of_n);
    if (f->kind != Node::Kind::call) return;
    const Solver* solver = row_of(f->function).solver;
    if (solver == nullptr || (of_n && solver->table == nullptr)) return;
    const auto wrong = [&](const char* message, const Formula& at) {
        throw FormulaError(fmt::format("{} {}", name_of(f->function), message), at->begin, at->end);
    };
    const auto& x = f->arguments;
    const bool is_n = of_n && x[0]->kind == Node::Kind::variable && x[0]->variable == Variable::n;
    if (!is_n && !number_of(x[0]))
        wrong(of_n ? "takes n, or a number in its place" : "takes a number here", x[0]);
    for (const Solver::Number& needed : solver->numbers) {
        const std::optional<double> value = number_of(x[needed.argument]);
        if (!value || !needed.accepts(*value)) wrong(needed.message, x[needed.argument]);
    }
}

Formula resolve(const Formula& formula, const std::vector<std::pair<Variable, double>>& values,
                const std::vector<std::optional<double>>& parameters) {
    return rewrite(formula, [&](const Formula& f) -> Formula {
        if (f->kind == Node::Kind::variable)
            for (const auto& [variable, value] : values)
                if (variable == f->variable) return number(value);
        if (f->kind == Node::Kind::parameter && f->parameter < parameters.size())
            if (const std::optional<double> value = parameters[f->parameter]) return number(*value);
        return nullptr;
    });
}

namespace {

// Solvers whose first argument is n itself, replaced by a lookup of a table: an index into `tables`.
Formula without_solvers(const Formula& f, size_t known, int64_t count,
                        std::vector<std::vector<double>>& tables) {
    if (f->kind != Node::Kind::call) return f;
    const auto& x = f->arguments;
    const Solver* solver = row_of(f->function).solver;
    const bool tabulated =
        solver != nullptr && solver->table != nullptr && x[0]->kind == Node::Kind::variable &&
        x[0]->variable == Variable::n &&
        std::all_of(x.begin() + 1, x.end(), [](const Formula& a) { return a->kind == Node::Kind::number; });
    if (!tabulated) {
        Node n = *f;
        for (Formula& a : n.arguments) a = without_solvers(a, known, count, tables);
        return std::make_shared<const Node>(std::move(n));
    }
    std::vector<double> numbers;
    for (const Formula& a : x) numbers.push_back(a->number);
    tables.push_back(solver->table(numbers.data(), count));
    Node vector;
    vector.kind = Node::Kind::parameter;
    vector.parameter = known + tables.size() - 1;
    return call(F::lookup, {std::make_shared<const Node>(std::move(vector)), x[0] - number(1)});
}

}  // namespace

std::vector<double> tabulate(const Formula& formula, Variable over, int64_t first, int64_t count,
                             const Values& values) {
    std::vector<std::vector<double>> tables;
    Values v = values;
    Formula f = formula;
    if (over == Variable::n && first == 1)
        f = without_solvers(formula, values.parameters.size(), count, tables);
    for (const std::vector<double>& table : tables) v.parameters.emplace_back(table);
    std::vector<double> out(static_cast<size_t>(count));
    for (int64_t i = 0; i < count; ++i) {
        v[over] = static_cast<double>(first + i);
        out[static_cast<size_t>(i)] = evaluate(f, v);
    }
    return out;
}

}  // namespace longreach::law
