// The operations of score laws that the kernels compute, one a line: OPERATION(name, numbers it takes, its result from
// the numbers x, y and z). LawOp (law_program.h) has their names and law_value.h their results; each is a function of
// the formula language with a row in src/law/function_table.cpp.
#pragma once

#define LONGREACH_LAW_OPERATIONS(OPERATION)                                                    \
    OPERATION(add, 2, x + y)                                                                   \
    OPERATION(subtract, 2, x - y)                                                              \
    OPERATION(multiply, 2, (x * y))                                                            \
    OPERATION(divide, 2, x / y)                                                                \
    OPERATION(power, 2, x == 2 ? std::exp2(y) : std::pow(x, y))                                \
    OPERATION(negate, 1, -x)                                                                   \
    OPERATION(less, 2, x < y)                                                                  \
    OPERATION(less_equal, 2, x <= y)                                                           \
    OPERATION(greater, 2, x > y)                                                               \
    OPERATION(greater_equal, 2, x >= y)                                                        \
    OPERATION(equal, 2, x == y)                                                                \
    OPERATION(not_equal, 2, x != y)                                                            \
    OPERATION(where, 3, x != 0 ? y : z)                                                        \
    OPERATION(min, 2, y < x ? y : x)                                                           \
    OPERATION(max, 2, y > x ? y : x)                                                           \
    OPERATION(clamp, 3, (x < y ? y : x > z ? z : x))                                           \
    OPERATION(floor, 1, std::floor(x))                                                         \
    OPERATION(ceil, 1, std::ceil(x))                                                           \
    OPERATION(abs, 1, std::fabs(x))                                                            \
    OPERATION(exp, 1, std::exp(x))                                                             \
    OPERATION(expm1, 1, std::expm1(x))                                                         \
    OPERATION(log, 1, std::log(x))                                                             \
    OPERATION(log1p, 1, std::log1p(x))                                                         \
    OPERATION(log2, 1, std::log2(x))                                                           \
    OPERATION(sqrt, 1, std::sqrt(x))                                                           \
    OPERATION(tanh, 1, std::tanh(x))                                                           \
    OPERATION(sigmoid, 1, 1 / (1 + std::exp(-x)))                                              \
    OPERATION(softplus, 1, x > 0 ? x + std::log1p(std::exp(-x)) : std::log1p(std::exp(x)))     \
    OPERATION(log_sigmoid, 1, x < 0 ? x - std::log1p(std::exp(x)) : -std::log1p(std::exp(-x))) \
    OPERATION(erf, 1, std::erf(x))                                                             \
    OPERATION(sin, 1, std::sin(x))                                                             \
    OPERATION(cos, 1, std::cos(x))
