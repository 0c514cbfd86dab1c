// Values and derivatives of formulas.
#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "law/extreme_values.h"
#include "law/formula.h"

namespace longreach::law {

namespace {

double apply(Function function, const double* x) {
    switch (function) {
        case Function::add:
            return x[0] + x[1];
        case Function::subtract:
            return x[0] - x[1];
        case Function::multiply:
            return x[0] * x[1];
        case Function::divide:
            return x[0] / x[1];
        case Function::power:
            return x[0] == 2 ? std::exp2(x[1]) : std::pow(x[0], x[1]);
        case Function::negate:
            return -x[0];
        case Function::less:
            return x[0] < x[1];
        case Function::less_equal:
            return x[0] <= x[1];
        case Function::greater:
            return x[0] > x[1];
        case Function::greater_equal:
            return x[0] >= x[1];
        case Function::equal:
            return x[0] == x[1];
        case Function::not_equal:
            return x[0] != x[1];
        case Function::where:
            return x[0] != 0 ? x[1] : x[2];
        case Function::min:
            return x[1] < x[0] ? x[1] : x[0];
        case Function::max:
            return x[1] > x[0] ? x[1] : x[0];
        case Function::clamp:
            return x[0] < x[1] ? x[1] : x[0] > x[2] ? x[2] : x[0];
        case Function::floor:
            return std::floor(x[0]);
        case Function::ceil:
            return std::ceil(x[0]);
        case Function::abs:
            return std::abs(x[0]);
        case Function::exp:
            return std::exp(x[0]);
        case Function::expm1:
            return std::expm1(x[0]);
        case Function::log:
            return std::log(x[0]);
        case Function::log1p:
            return std::log1p(x[0]);
        case Function::log2:
            return std::log2(x[0]);
        case Function::sqrt:
            return std::sqrt(x[0]);
        case Function::tanh:
            return std::tanh(x[0]);
        case Function::sigmoid:
            return 1 / (1 + std::exp(-x[0]));
        case Function::softplus:
            return x[0] > 0 ? x[0] + std::log1p(std::exp(-x[0])) : std::log1p(std::exp(x[0]));
        case Function::erf:
            return std::erf(x[0]);
        case Function::sin:
            return std::sin(x[0]);
        case Function::cos:
            return std::cos(x[0]);
        case Function::max_normal:
            return expected_largest_normal(x[0]);
        case Function::gaussian_scale:
            return solve_gaussian_scale(x[0], x[1]);
        case Function::cosine_scale:
            return CosineScores(static_cast<int64_t>(x[1])).solve_scale(x[0], x[2]);
        case Function::lookup:
            break;
    }
    check(false, "a function that is not applied to numbers");
    return 0;
}

}  // namespace

double evaluate(const Formula& formula, const Values& values) {
    const Node& n = *formula;
    switch (n.kind) {
        case Node::Kind::number:
            return n.number;
        case Node::Kind::variable:
            return values[n.variable];
        case Node::Kind::parameter:
            return values.parameters[n.parameter][0];
        case Node::Kind::call:
            break;
    }
    if (n.function == Function::lookup) {
        const std::span<const double> vector = values.parameters[n.arguments[0]->parameter];
        const double index = std::floor(evaluate(n.arguments[1], values));
        const auto last = static_cast<double>(vector.size() - 1);
        return vector[static_cast<size_t>(index > 0 ? std::min(index, last) : 0)];
    }
    // Only the side that is taken, as in any language: the other may not be finite.
    if (n.function == Function::where)
        return evaluate(n.arguments[evaluate(n.arguments[0], values) != 0 ? 1 : 2], values);
    double x[3] = {};
    for (size_t i = 0; i < n.arguments.size(); ++i) x[i] = evaluate(n.arguments[i], values);
    return apply(n.function, x);
}

Formula derivative(const Formula& formula, size_t parameter) {
    using F = Function;
    const Node& n = *formula;
    if (!uses_parameter(formula, parameter)) return number(0);
    if (n.kind == Node::Kind::parameter) return number(1);
    const auto constant = [&](const char* what) {
        for (const Formula& a : n.arguments)
            if (uses_parameter(a, parameter)) throw FormulaError(what, a->begin, a->end);
    };
    const auto x = [&](size_t i) { return n.arguments[i]; };
    const auto dx = [&](size_t i) { return derivative(n.arguments[i], parameter); };
    const auto of = [](F f, const Formula& a) { return call(f, {a}); };
    switch (n.function) {
        case F::add:
            return dx(0) + dx(1);
        case F::subtract:
            return dx(0) - dx(1);
        case F::multiply:
            return dx(0) * x(1) + x(0) * dx(1);
        case F::divide:
            return dx(0) / x(1) - x(0) * dx(1) / (x(1) * x(1));
        case F::power: {
            // Where x is 0, x^y does not move with y, and 0 * log 0 must not become NaN.
            const Formula by_base = x(1) * call(F::power, {x(0), x(1) - number(1)}) * dx(0);
            if (is_number(dx(1), 0)) return by_base;
            const Formula by_exponent =
                call(F::where, {call(F::equal, {x(0), number(0)}), number(0), formula * of(F::log, x(0))});
            return by_base + by_exponent * dx(1);
        }
        case F::negate:
            return -dx(0);
        case F::where:
            return call(F::where, {x(0), dx(1), dx(2)});
        case F::min:
            return call(F::where, {call(F::less, {x(1), x(0)}), dx(1), dx(0)});
        case F::max:
            return call(F::where, {call(F::greater, {x(1), x(0)}), dx(1), dx(0)});
        case F::clamp:
            return call(F::where, {call(F::less, {x(0), x(1)}), dx(1),
                                   call(F::where, {call(F::greater, {x(0), x(2)}), dx(2), dx(0)})});
        case F::abs:
            return call(F::where, {call(F::less, {x(0), number(0)}), -dx(0), dx(0)});
        case F::exp:
            return formula * dx(0);
        case F::expm1:
            return of(F::exp, x(0)) * dx(0);
        case F::log:
            return dx(0) / x(0);
        case F::log1p:
            return dx(0) / (number(1) + x(0));
        case F::log2:
            return dx(0) / (x(0) * number(std::log(2.0)));
        case F::sqrt:
            return dx(0) / (number(2) * formula);
        case F::tanh:
            return (number(1) - formula * formula) * dx(0);
        case F::sigmoid:
            return formula * of(F::sigmoid, -x(0)) * dx(0);
        case F::softplus:
            return of(F::sigmoid, x(0)) * dx(0);
        case F::erf:
            return number(2 / std::sqrt(std::acos(-1.0))) * of(F::exp, -(x(0) * x(0))) * dx(0);
        case F::sin:
            return of(F::cos, x(0)) * dx(0);
        case F::cos:
            return -(of(F::sin, x(0)) * dx(0));
        case F::lookup:
            if (uses_parameter(x(1), parameter))
                throw FormulaError("an index cannot learn: it jumps from one element to the next",
                                   x(1)->begin, x(1)->end);
            return number(1);
        case F::floor:
        case F::ceil:
        case F::less:
        case F::less_equal:
        case F::greater:
        case F::greater_equal:
        case F::equal:
        case F::not_equal:
            return number(0);
        case F::max_normal:
        case F::gaussian_scale:
        case F::cosine_scale:
            constant("what a solver is given cannot learn");
            return number(0);
    }
    check(false, "a function without a derivative");
    return nullptr;
}

}  // namespace longreach::law
