#include "law/language.h"

#include <array>

namespace longreach::law {

namespace {

constexpr std::array<std::string_view, variable_count> variables = {
    "<query, key> before any scaling; in the first formula of a score only",
    "the scaled score, or the result of the formula before",
    "keys counted for the query, from 1",
    "distance from query to key, from 0",
    "head, from 0",
    "heads of the layer",
    "layer, from 0",
    "layers of the model",
    "channels of a head",
    "context trained on",
    "length of the sequence; in a generation, the positions that it has room for",
    "position, from 0",
    "channel pair, from 0",
    "pairs that turn",
    "frequency of the pair in training"};

// In the order of Function.
constexpr Meaning functions[] = {
    {"a + b", "sum"},
    {"a - b", "difference"},
    {"a * b", "product"},
    {"a / b", "quotient"},
    {"a ^ b", "power, from right to left: 2^3^2 is 2^9"},
    {"-a", "negative; -a^2 is -(a^2)"},
    {"a < b", "1 if it holds, else 0; comparisons do not chain"},
    {"a <= b", "the same"},
    {"a > b", "the same"},
    {"a >= b", "the same"},
    {"a == b", "the same"},
    {"a != b", "the same"},
    {"where(c, a, b)", "a if c is not 0, else b; the other of the two need not be finite"},
    {"min(a, b)", "the smaller"},
    {"max(a, b)", "the larger"},
    {"clamp(x, a, b)", "x, held between a and b"},
    {"floor(x)", "the largest whole number up to x"},
    {"ceil(x)", "the smallest whole number from x on"},
    {"abs(x)", "absolute value"},
    {"exp(x)", "e^x"},
    {"expm1(x)", "e^x - 1, exact near 0"},
    {"log(x)", "natural logarithm"},
    {"log1p(x)", "log(1 + x), exact near 0"},
    {"log2(x)", "logarithm to base 2"},
    {"sqrt(x)", "square root"},
    {"tanh(x)", "hyperbolic tangent"},
    {"sigmoid(x)", "1 / (1 + e^-x)"},
    {"softplus(x)", "log(1 + e^x)"},
    {"erf(x)", "error function"},
    {"sin(x)", "sine of x in radians"},
    {"cos(x)", "cosine of x in radians"},
    {"max_normal(n)", "expected largest of n independent standard normal numbers"},
    {"gaussian_scale(n, c)",
     "factor of n standard normal scores with E[1 / largest weight] = c; 0 up to n = c"},
    {"cosine_scale(n, d, c)", "the same for scores sqrt(d) cos(q, k), directions random in d dimensions"},
    {"lookup(w, i)", "element floor(i) of the vector parameter w, i held inside the vector"},
};
static_assert(std::size(functions) == static_cast<size_t>(Function::lookup) + 1);

}  // namespace

Meaning meaning_of(Variable variable) {
    return {name_of(variable), variables[static_cast<size_t>(variable)]};
}
Meaning meaning_of(Function function) {
    return functions[static_cast<size_t>(function)];
}

}  // namespace longreach::law
