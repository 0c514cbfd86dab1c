// Values and derivatives of formulas.
#include <algorithm>
#include <cmath>

#include "law/function_table.h"

namespace longreach::law {

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
    return value_of(n.function, x);
}

Formula derivative(const Formula& formula, size_t parameter) {
    if (!uses_parameter(formula, parameter)) return number(0);
    if (formula->kind == Node::Kind::parameter) return number(1);
    return row_of(formula->function).derivative({formula, parameter});
}

}  // namespace longreach::law
