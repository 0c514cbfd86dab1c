// The operators and functions of formulas. The parser, the derivatives, the compiler and the checks read a function's
// row. Its value is the result of its kernel operation (kernels/law_operations.h), or of its solver.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "kernels/law_program.h"
#include "law/formula.h"

namespace longreach::law {

// How strongly the outermost part of a formula binds. Names and positive numbers bind as calls.
struct Strength {
    static constexpr int comparison = 1, sum = 2, product = 3, sign = 4, power = 5, call = 6;
};

// A call, and the parameter by which its derivative is taken.
struct Chain {
    const Formula& whole;
    size_t parameter;
    const Formula& x(size_t i) const { return whole->arguments[i]; }
    Formula dx(size_t i) const { return derivative(x(i), parameter); }
};

// A function whose value takes an integral. Its first argument is n, or a number in its place.
struct Solver {
    double (*value)(const double* x);
    // Index of the argument C: the value is 0 up to n = C. 0: there is none, and the value is 0 up to n = 1.
    size_t target = 0;
    // An argument that must be a number in any table.
    struct Number {
        size_t argument;
        bool (*accepts)(double value);
        const char* message;  // "needs ..."
    };
    std::span<const Number> numbers{};
    // Entry n - 1 is the value at n = 1 .. count as solved_table() has it. Null: a table takes value() at each entry.
    std::vector<double> (*table)(const double* x, int64_t count) = nullptr;
};

struct FunctionRow {
    Function function;
    const char* name;  // of an operator, its symbol
    int strength;
    const char* arguments;  // "x, y"
    const char* help;       // its value
    Formula (*derivative)(const Chain&);
    const Solver* solver = nullptr;
};
std::span<const FunctionRow> function_table();  // in the order of Function
const FunctionRow& row_of(Function function);
const FunctionRow* find_function(std::string_view name);  // null: no function that is called by name

LawOp operation_of(Function function);  // of one that is not solved
// Of a call whose arguments are numbers; `where` and `lookup`, which choose what they read, are evaluate()'s.
double value_of(Function function, const double* x);

}  // namespace longreach::law
