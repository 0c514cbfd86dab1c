// A formula over a few named numbers: the text of a law, as a tree.
//
//     z * sqrt(1 + 2*log1p(t/tau)) - c * 2*log1p(t/tau)
//
// Operators, weakest first: < <= > >= == != (1 or 0), + -, * /, unary -, ^ (right to left; -x^2 is -(x^2)).
// Trees are immutable and share their parts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <numbers>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/law_operations.h"

namespace longreach::law {

// What a formula may depend on besides its parameters.
enum class Variable {
    dot,     // <query, key> before any scaling
    z,       // s_base * dot, or the score of the stage before
    n,       // keys counted for the query, from 1
    t,       // distance from query to key, from 0
    h,       // head, from 0
    H,       // heads
    l,       // layer, from 0
    layers,  // layers of the model
    d,       // channels of a head
    L,       // context trained on
    T,       // length of the sequence
    p,       // angle: position
    m,       // angle: channel pair, from 0
    R,       // angle: rotated pairs
    theta,   // angle: frequency of the pair while training
    x,       // term: what the head reads of the token
};
inline constexpr size_t variable_count = 16;
const char* name_of(Variable variable);

// Variables of a score.
inline constexpr Variable score_variables[] = {Variable::z, Variable::dot, Variable::n, Variable::t,
                                               Variable::h, Variable::H,   Variable::l, Variable::layers,
                                               Variable::d, Variable::L,   Variable::T};
// Of a term.
inline constexpr Variable term_variables[] = {Variable::x, Variable::h,      Variable::H, Variable::l,
                                              Variable::d, Variable::layers, Variable::L};
// Of the first value of a parameter.
inline constexpr Variable init_variables[] = {Variable::h,      Variable::H, Variable::l,
                                              Variable::layers, Variable::d, Variable::L};
// Of an angle, and of a change to a trained one.
inline constexpr Variable angle_variables[] = {Variable::p, Variable::m,      Variable::d,
                                               Variable::l, Variable::layers, Variable::L};
inline constexpr Variable changed_angle_variables[] = {Variable::p,      Variable::m, Variable::d,
                                                       Variable::l,      Variable::L, Variable::theta,
                                                       Variable::layers, Variable::R, Variable::T};

struct Constant {
    const char* name;
    double value;
};
inline constexpr Constant named_constants[] = {
    {"pi", std::numbers::pi}, {"e", std::numbers::e}, {"egamma", std::numbers::egamma}};

inline constexpr size_t longest_formula = 4096;  // bytes
inline constexpr int deepest_nesting = 100;      // parentheses, calls, signs and powers
inline constexpr size_t longest_name = 40;       // of a parameter

// Each has a row in function_table.cpp; all but the last four are operations of the kernels.
// clang-format off
enum class Function {
#define LONGREACH_NAME(name, numbers, result) name,
    LONGREACH_LAW_OPERATIONS(LONGREACH_NAME)
#undef LONGREACH_NAME
    max_normal,
    gaussian_scale,
    cosine_scale,
    lookup,
};
// clang-format on
const char* name_of(Function function);  // of an operator, its symbol
size_t arguments_of(Function function);
bool is_solved(Function function);  // its value takes an integral, and its arguments cannot learn

struct Node;
using Formula = std::shared_ptr<const Node>;

struct Node {
    enum class Kind { number, variable, parameter, call } kind = Kind::number;
    double number = 0;
    Variable variable = Variable::z;
    size_t parameter = 0;  // index into the names given to parse()
    Function function = Function::add;
    std::vector<Formula> arguments{};
    size_t begin = 0, end = 0;  // in the text; begin == end: derived, not written
};

// A formula that cannot be used, and the part of its text that is to blame.
class FormulaError : public std::runtime_error {
  public:
    FormulaError(const std::string& message, size_t from, size_t to)
        : std::runtime_error(message), begin(from), end(to) {}
    size_t begin, end;  // bytes of the text
};
// The text with the blamed part underlined by carets: two lines, long texts cut around it.
std::string underlined(std::string_view text, const FormulaError& error);
// The text with the blamed part in brackets: one line, long texts cut around it.
std::string marked(std::string_view text, const FormulaError& error);

// variables: those that the formula may use. parameters: names that stand for numbers of their own; "between(f)" is one
// name, of the term f. Throws
// FormulaError if the text is not a valid formula.
Formula parse(std::string_view text, std::span<const Variable> variables,
              std::span<const std::string> parameters);

// The same, and refuses a part that is infinite or not a number whatever the names stand for, such as 0/0.
Formula parse_finite(std::string_view text, std::span<const Variable> variables,
                     std::span<const std::string> parameters);

// The name that stands for a term at the query, at the key, and summed over the tokens after the key up to the query.
inline std::string at_query(const std::string& term) {
    return term + "_q";
}
inline std::string at_key(const std::string& term) {
    return term + "_k";
}
inline std::string between(const std::string& term) {
    return "between(" + term + ")";
}

// The terms w of z_between(w) in a formula, in which every channel of z fades by the sum of its own w. To the formula it is z.
std::vector<std::string> faded_by(std::string_view formula);

// Why a parameter of a score, or a term, cannot have this name; "": it can.
std::string name_problem(std::string_view name);

// Whether a text uses `name`, as a whole word.
bool mentions(std::string_view formula, std::string_view name);

// Parts of formulas made by the program. They fold constants and drop 0 + x, 1 * x and the like.
Formula number(double value);
Formula call(Function function, std::vector<Formula> arguments);
inline Formula operator+(const Formula& a, const Formula& b) {
    return call(Function::add, {a, b});
}
inline Formula operator-(const Formula& a, const Formula& b) {
    return call(Function::subtract, {a, b});
}
inline Formula operator*(const Formula& a, const Formula& b) {
    return call(Function::multiply, {a, b});
}
inline Formula operator/(const Formula& a, const Formula& b) {
    return call(Function::divide, {a, b});
}
inline Formula operator-(const Formula& a) {
    return call(Function::negate, {a});
}
inline Formula where(const Formula& condition, const Formula& yes, const Formula& no) {
    return call(Function::where, {condition, yes, no});
}
bool is_number(const Formula& f, double value);
inline bool is_call(const Formula& f, Function function) {
    return f->kind == Node::Kind::call && f->function == function;
}

// A text that parses to the same tree, with as few parentheses as possible.
std::string write(const Formula& formula, std::span<const std::string> parameters);

bool uses(const Formula& formula, Variable variable);
bool uses_parameter(const Formula& formula, size_t parameter);
// Whether two trees are equal, wherever their text stands.
bool same(const Formula& a, const Formula& b);
// The tree in which every part for which `change` returns a formula is replaced by it; outermost parts first.
// The vector of a lookup is not offered, only the lookup. Constants are folded.
Formula rewrite(const Formula& formula, const std::function<Formula(const Formula&)>& change);
// With every occurrence of `variable` replaced.
Formula substitute(const Formula& formula, Variable variable, const Formula& by);

// The value in double. Vector parameters are read by lookup alone.
struct Values {
    double variables[variable_count] = {};
    std::vector<std::span<const double>> parameters{};  // numbers are spans of one
    double& operator[](Variable v) { return variables[static_cast<size_t>(v)]; }
    double operator[](Variable v) const { return variables[static_cast<size_t>(v)]; }
};
double evaluate(const Formula& formula, const Values& values);
// A count or an index as the value of a variable.
inline double as_double(int64_t n) {
    return static_cast<double>(n);
}

// d formula / d parameter: of a number, or of the element that a lookup of the vector reads. At kinks the
// derivative from the right, but for clamp: 1 on the closed range. d(x^y)/dy is 0 at x = 0.
// FormulaError where a solver's argument or an index depends on the parameter.
Formula derivative(const Formula& formula, size_t parameter);

}  // namespace longreach::law
