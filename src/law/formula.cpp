#include "law/formula.h"

#include <algorithm>
#include <array>
#include <cmath>

#include <fmt/format.h>

#include "law/function_table.h"

namespace longreach::law {

namespace {

constexpr std::array<const char*, variable_count> variable_names = {
    "dot", "z", "n", "t", "h", "H", "l", "layers", "d", "L", "T", "p", "m", "R", "theta", "x"};

Formula make(Node node) {
    return std::make_shared<const Node>(std::move(node));
}

// Of the outermost operator.
int strength(const Node& n) {
    if (n.kind == Node::Kind::call) return row_of(n.function).strength;
    return n.kind == Node::Kind::number && std::signbit(n.number) ? Strength::sign : Strength::call;
}

}  // namespace

const char* name_of(Variable variable) {
    return variable_names[static_cast<size_t>(variable)];
}

std::string underlined(std::string_view text, const FormulaError& error) {
    constexpr size_t widest = 76;
    const size_t begin = std::min(error.begin, text.size());
    const size_t end = std::clamp(error.end, begin, text.size());
    const size_t from = begin > widest / 2 ? begin - widest / 2 : 0;
    std::string line(text.substr(from, widest));
    for (char& c : line)
        if (static_cast<unsigned char>(c) < ' ') c = ' ';
    const size_t carets =
        std::max<size_t>(1, std::min(end, from + line.size()) - std::min(begin, from + line.size()));
    return line + "\n" + std::string(begin - from, ' ') + std::string(carets, '^');
}

std::string marked(std::string_view text, const FormulaError& error) {
    constexpr size_t around = 40;
    const size_t begin = std::min(error.begin, text.size()), end = std::clamp(error.end, begin, text.size());
    const size_t from = begin > around ? begin - around : 0, to = std::min(text.size(), end + around);
    std::string line = from > 0 ? "..." : "";
    line += text.substr(from, begin - from);
    line += fmt::format("[{}]", end - begin > 2 * around ? std::string(text.substr(begin, 2 * around)) + "..."
                                                         : std::string(text.substr(begin, end - begin)));
    line += text.substr(end, to - end);
    return line + (to < text.size() ? "..." : "");
}

Formula number(double value) {
    Node n;
    n.number = value;
    return make(n);
}

bool is_number(const Formula& f, double value) {
    return f->kind == Node::Kind::number && f->number == value;
}

namespace {

// The simpler form of a call that has one, or null. The value is the same for all finite arguments, except that
// 0/x, with an x that is not known, is 0 also where x is.
Formula simpler(Function f, const std::vector<Formula>& a) {
    const auto is_zero_of = [&](size_t zero, size_t other) {
        const Node& n = *a[other];
        const double product = n.kind != Node::Kind::number ? 0
                               : f == Function::divide      ? 0 / n.number
                                                            : 0 * n.number;
        return is_number(a[zero], 0) && !std::isnan(product);
    };
    switch (f) {
        case Function::add:
            if (is_number(a[0], 0)) return a[1];
            if (is_number(a[1], 0)) return a[0];
            break;
        case Function::subtract:
            if (is_number(a[1], 0)) return a[0];
            if (is_number(a[0], 0)) return -a[1];
            break;
        case Function::multiply:
            if (is_zero_of(0, 1) || is_zero_of(1, 0)) return number(0);
            if (is_number(a[0], 1)) return a[1];
            if (is_number(a[1], 1)) return a[0];
            break;
        case Function::divide:
            if (is_zero_of(0, 1)) return number(0);
            if (is_number(a[1], 1)) return a[0];
            break;
        case Function::power:
            if (is_number(a[1], 1)) return a[0];
            break;
        case Function::negate:
            if (is_call(a[0], Function::negate)) return a[0]->arguments[0];
            break;
        case Function::where:
            if (a[0]->kind == Node::Kind::number) return a[0]->number != 0 ? a[1] : a[2];
            break;
        default:
            break;
    }
    return nullptr;
}

}  // namespace

Formula call(Function function, std::vector<Formula> arguments) {
    if (Formula s = simpler(function, arguments)) return s;
    Node n;
    n.kind = Node::Kind::call;
    n.function = function;
    n.arguments = std::move(arguments);
    const bool constant = std::all_of(n.arguments.begin(), n.arguments.end(),
                                      [](const Formula& a) { return a->kind == Node::Kind::number; });
    const Formula made = make(std::move(n));
    return constant ? number(evaluate(made, {})) : made;
}

bool uses(const Formula& f, Variable variable) {
    if (f->kind == Node::Kind::variable) return f->variable == variable;
    return std::any_of(f->arguments.begin(), f->arguments.end(),
                       [&](const Formula& a) { return uses(a, variable); });
}

bool uses_parameter(const Formula& f, size_t parameter) {
    if (f->kind == Node::Kind::parameter) return f->parameter == parameter;
    return std::any_of(f->arguments.begin(), f->arguments.end(),
                       [&](const Formula& a) { return uses_parameter(a, parameter); });
}

bool same(const Formula& a, const Formula& b) {
    if (a == b) return true;
    const bool alike = a->kind == b->kind && a->number == b->number && a->variable == b->variable &&
                       a->parameter == b->parameter && a->function == b->function;
    return alike && std::equal(a->arguments.begin(), a->arguments.end(), b->arguments.begin(),
                               b->arguments.end(), same);
}

Formula rewrite(const Formula& f, const std::function<Formula(const Formula&)>& change) {
    if (Formula changed = change(f)) return changed;
    if (f->kind != Node::Kind::call) return f;
    std::vector<Formula> arguments = f->arguments;
    for (size_t i = is_call(f, Function::lookup) ? 1 : 0; i < arguments.size(); ++i)
        arguments[i] = rewrite(arguments[i], change);
    return call(f->function, std::move(arguments));
}

Formula substitute(const Formula& f, Variable variable, const Formula& by) {
    if (f->kind == Node::Kind::variable) return f->variable == variable ? by : f;
    if (f->kind != Node::Kind::call || !uses(f, variable)) return f;
    Node n = *f;
    for (Formula& a : n.arguments) a = substitute(a, variable, by);
    return make(std::move(n));
}

std::string write(const Formula& f, std::span<const std::string> parameters) {
    const Node& n = *f;
    switch (n.kind) {
        case Node::Kind::number:
            return fmt::format("{}", n.number);
        case Node::Kind::variable:
            return name_of(n.variable);
        case Node::Kind::parameter:
            return parameters[n.parameter];
        case Node::Kind::call:
            break;
    }
    const auto part = [&](size_t i, int least) {
        const std::string text = write(n.arguments[i], parameters);
        return strength(*n.arguments[i]) < least ? "(" + text + ")" : text;
    };
    const int own = strength(n);
    const char* name = name_of(n.function);
    // No parentheses between signs: what is written nests no deeper than what was read.
    if (own == Strength::sign) return fmt::format("{}{}", name, part(0, own));
    if (own == Strength::power) return fmt::format("{}{}{}", part(0, own + 1), name, part(1, own - 1));
    if (own == Strength::comparison) return fmt::format("{} {} {}", part(0, own + 1), name, part(1, own + 1));
    if (own == Strength::sum) return fmt::format("{} {} {}", part(0, own), name, part(1, own + 1));
    if (own == Strength::product) return fmt::format("{}{}{}", part(0, own), name, part(1, own + 1));
    std::string out = name;
    for (size_t i = 0; i < n.arguments.size(); ++i) out += (i == 0 ? "(" : ", ") + part(i, 0);
    return out + ")";
}

}  // namespace longreach::law
