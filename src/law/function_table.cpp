#include "law/function_table.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>

#include "base/error.h"
#include "kernels/law_value.h"
#include "law/extreme_values.h"

namespace longreach::law {

namespace {

using F = Function;
using S = Strength;

Formula of(F f, const Formula& x) {
    return call(f, {x});
}
Formula less(const Formula& x, const Formula& y) {
    return call(F::less, {x, y});
}
Formula greater(const Formula& x, const Formula& y) {
    return call(F::greater, {x, y});
}

// Of functions that are constant between jumps.
Formula flat(const Chain&) {
    return number(0);
}

// Where x is 0, x^y does not move with y, and 0 * log 0 must not become NaN.
Formula derivative_of_power(const Chain& c) {
    const Formula by_base = c.x(1) * call(F::power, {c.x(0), c.x(1) - number(1)}) * c.dx(0);
    const Formula dy = c.dx(1);
    if (is_number(dy, 0)) return by_base;
    const Formula by_exponent =
        where(call(F::equal, {c.x(0), number(0)}), number(0), c.whole * of(F::log, c.x(0)));
    return by_base + by_exponent * dy;
}

Formula derivative_of_lookup(const Chain& c) {
    const Formula& index = c.x(1);
    if (uses_parameter(index, c.parameter))
        throw FormulaError("an index cannot learn: it jumps from one element to the next", index->begin,
                           index->end);
    return number(1);
}

// A call is asked for its derivative only if an argument depends on the parameter.
Formula refused(const Chain& c) {
    const std::vector<Formula>& x = c.whole->arguments;
    const auto learns = [&](const Formula& argument) { return uses_parameter(argument, c.parameter); };
    const Formula& blamed = *std::find_if(x.begin(), x.end() - 1, learns);
    throw FormulaError("what a solver is given cannot learn", blamed->begin, blamed->end);
}

constexpr Solver max_normal{.value = [](const double* x) { return expected_largest_normal(x[0]); }};

constexpr const char* needs_target = "needs a number above 1 for C, the keys that attention spreads over";
constexpr bool is_target(double value) {
    return value > 1 && value <= std::numeric_limits<double>::max();
}
constexpr Solver::Number target_of_gaussian[] = {{1, is_target, needs_target}};
constexpr Solver gaussian_scale{
    .value = [](const double* x) { return solve_gaussian_scale(x[0], x[1]); },
    .target = 1,
    .numbers = target_of_gaussian,
    .table =
        [](const double* x, int64_t count) {
            return solved_table(count, x[1], [&](double n) { return solve_gaussian_scale(n, x[1]); });
        }};

constexpr bool is_dimension(double value) {
    return value >= 2 && value <= 65536;
}
constexpr Solver::Number numbers_of_cosine[] = {
    {2, is_target, needs_target}, {1, is_dimension, "needs a number of dimensions from 2 to 65536"}};
constexpr Solver cosine_scale{
    .value = [](const double* x) { return CosineScores(static_cast<int64_t>(x[1])).solve_scale(x[0], x[2]); },
    .target = 2,
    .numbers = numbers_of_cosine,
    .table =
        [](const double* x, int64_t count) {
            const CosineScores scores(static_cast<int64_t>(x[1]));
            return solved_table(count, x[2], [&](double n) { return scores.solve_scale(n, x[2]); });
        }};

constexpr FunctionRow rows_of_functions[] = {
    {F::add, "+", S::sum, "x, y", "the sum", [](const Chain& c) { return c.dx(0) + c.dx(1); }},
    {F::subtract, "-", S::sum, "x, y", "the difference", [](const Chain& c) { return c.dx(0) - c.dx(1); }},
    {F::multiply, "*", S::product, "x, y", "the product",
     [](const Chain& c) { return c.dx(0) * c.x(1) + c.x(0) * c.dx(1); }},
    {F::divide, "/", S::product, "x, y", "the quotient",
     [](const Chain& c) { return c.dx(0) / c.x(1) - c.x(0) * c.dx(1) / (c.x(1) * c.x(1)); }},
    {F::power, "^", S::power, "x, y", "x to the power of y, from right to left: 2^3^2 is 2^9",
     derivative_of_power},
    {F::negate, "-", S::sign, "x", "the negative of x; -x^2 is -(x^2)",
     [](const Chain& c) { return -c.dx(0); }},
    {F::less, "<", S::comparison, "x, y", "1 if x < y, else 0; comparisons do not chain", flat},
    {F::less_equal, "<=", S::comparison, "x, y", "1 if x <= y, else 0", flat},
    {F::greater, ">", S::comparison, "x, y", "1 if x > y, else 0", flat},
    {F::greater_equal, ">=", S::comparison, "x, y", "1 if x >= y, else 0", flat},
    {F::equal, "==", S::comparison, "x, y", "1 if x equals y, else 0", flat},
    {F::not_equal, "!=", S::comparison, "x, y", "1 if x does not equal y, else 0", flat},
    {F::where, "where", S::call, "c, x, y", "x if c is not 0, else y; the other is not computed",
     [](const Chain& c) { return where(c.x(0), c.dx(1), c.dx(2)); }},
    {F::min, "min", S::call, "x, y", "the smaller of x and y",
     [](const Chain& c) { return where(less(c.x(1), c.x(0)), c.dx(1), c.dx(0)); }},
    {F::max, "max", S::call, "x, y", "the larger of x and y",
     [](const Chain& c) { return where(greater(c.x(1), c.x(0)), c.dx(1), c.dx(0)); }},
    {F::clamp, "clamp", S::call, "x, a, b", "a if x < a, b if x > b, else x",
     [](const Chain& c) {
         return where(less(c.x(0), c.x(1)), c.dx(1), where(greater(c.x(0), c.x(2)), c.dx(2), c.dx(0)));
     }},
    {F::floor, "floor", S::call, "x", "the largest whole number <= x", flat},
    {F::ceil, "ceil", S::call, "x", "the smallest whole number >= x", flat},
    {F::abs, "abs", S::call, "x", "the absolute value of x",
     [](const Chain& c) { return where(less(c.x(0), number(0)), -c.dx(0), c.dx(0)); }},
    {F::exp, "exp", S::call, "x", "e^x", [](const Chain& c) { return c.whole * c.dx(0); }},
    {F::expm1, "expm1", S::call, "x", "e^x - 1, accurate where x is near 0",
     [](const Chain& c) { return of(F::exp, c.x(0)) * c.dx(0); }},
    {F::log, "log", S::call, "x", "the natural logarithm of x",
     [](const Chain& c) { return c.dx(0) / c.x(0); }},
    {F::log1p, "log1p", S::call, "x", "log(1 + x), accurate where x is near 0",
     [](const Chain& c) { return c.dx(0) / (number(1) + c.x(0)); }},
    {F::log2, "log2", S::call, "x", "log(x)/log(2)",
     [](const Chain& c) { return c.dx(0) / (c.x(0) * number(std::log(2.0))); }},
    {F::sqrt, "sqrt", S::call, "x", "the square root of x",
     [](const Chain& c) { return c.dx(0) / (number(2) * c.whole); }},
    {F::tanh, "tanh", S::call, "x", "(e^x - e^-x)/(e^x + e^-x)",
     [](const Chain& c) { return (number(1) - c.whole * c.whole) * c.dx(0); }},
    {F::sigmoid, "sigmoid", S::call, "x", "1/(1 + e^-x)",
     [](const Chain& c) { return c.whole * of(F::sigmoid, -c.x(0)) * c.dx(0); }},
    {F::softplus, "softplus", S::call, "x", "log(1 + e^x)",
     [](const Chain& c) { return of(F::sigmoid, c.x(0)) * c.dx(0); }},
    {F::log_sigmoid, "log_sigmoid", S::call, "x", "-log(1 + e^-x)",
     [](const Chain& c) { return of(F::sigmoid, -c.x(0)) * c.dx(0); }},
    {F::erf, "erf", S::call, "x", "2/sqrt(pi) times the integral of e^(-u^2) from u = 0 to x",
     [](const Chain& c) {
         return number(2 / std::sqrt(std::acos(-1.0))) * of(F::exp, -(c.x(0) * c.x(0))) * c.dx(0);
     }},
    {F::sin, "sin", S::call, "x", "the sine of x radians",
     [](const Chain& c) { return of(F::cos, c.x(0)) * c.dx(0); }},
    {F::cos, "cos", S::call, "x", "the cosine of x radians",
     [](const Chain& c) { return -(of(F::sin, c.x(0)) * c.dx(0)); }},
    {F::max_normal, "max_normal", S::call, "n", "the expected largest of n standard normal numbers", refused,
     &max_normal},
    {F::gaussian_scale, "gaussian_scale", S::call, "n, C",
     "the factor of n standard normal scores with E[1 / largest weight] = C; 0 up to n = C", refused,
     &gaussian_scale},
    {F::cosine_scale, "cosine_scale", S::call, "n, d, C",
     "the same for cosines in d dimensions, times sqrt(d)", refused, &cosine_scale},
    {F::lookup, "lookup", S::call, "w, x", "element floor(x), from 0, of the vector w; held inside it",
     derivative_of_lookup},
};

constexpr bool in_order() {
    for (size_t i = 0; i < std::size(rows_of_functions); ++i)
        if (static_cast<size_t>(rows_of_functions[i].function) != i) return false;
    return std::size(rows_of_functions) == static_cast<size_t>(F::lookup) + 1;
}
static_assert(in_order(), "a row for every Function, in their order");

}  // namespace

std::span<const FunctionRow> function_table() {
    return rows_of_functions;
}

const FunctionRow& row_of(Function function) {
    return rows_of_functions[static_cast<size_t>(function)];
}

const FunctionRow* find_function(std::string_view name) {
    const auto named = [&](const FunctionRow& row) { return row.strength == S::call && name == row.name; };
    const std::span<const FunctionRow> rows = function_table();
    const auto it = std::find_if(rows.begin(), rows.end(), named);
    return it == rows.end() ? nullptr : &*it;
}

const char* name_of(Function function) {
    return row_of(function).name;
}

size_t arguments_of(Function function) {
    const std::string_view arguments = row_of(function).arguments;
    return 1 + static_cast<size_t>(std::count(arguments.begin(), arguments.end(), ','));
}

bool is_solved(Function function) {
    return row_of(function).solver != nullptr;
}

LawOp operation_of(Function function) {
    switch (function) {
#define LONGREACH_OPERATION(name, numbers, result) \
    case F::name:                                  \
        return LawOp::name;
        LONGREACH_LAW_OPERATIONS(LONGREACH_OPERATION)
#undef LONGREACH_OPERATION
        case F::lookup:
            return LawOp::element;
        default:
            check(false, "the kernels do not compute {}", name_of(function));
            return LawOp::number;
    }
}

double value_of(Function function, const double* x) {
    if (const Solver* solver = row_of(function).solver) return solver->value(x);
    return law_result(operation_of(function), x[0], x[1], x[2]);
}

}  // namespace longreach::law
