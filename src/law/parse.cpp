// Text to tree: a recursive descent with one function per strength of binding.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>

#include "base/text.h"
#include "law/function_table.h"

namespace longreach::law {

namespace {

bool starts_name(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}
bool is_digit(char c) {
    return c >= '0' && c <= '9';
}

bool begins_operand(char c) {
    return starts_name(c) || is_digit(c) || c == '(';
}

constexpr auto& constants = named_constants;

// ": did you mean a or b?", or nothing.
std::string suggestion(const std::string& word, const std::vector<std::string>& known) {
    const std::vector<std::string> near = nearest(word, known, 3);
    return near.empty() ? "" : fmt::format(": did you mean {}?", alternatives(near));
}

class Parser {
  public:
    Parser(std::string_view text, std::span<const Variable> variables,
           std::span<const std::string> parameters)
        : text_(text), variables_(variables), parameters_(parameters) {}

    Formula run() {
        if (text_.size() > longest_formula)
            throw FormulaError(
                fmt::format("a formula of {} bytes; the longest may have {}", text_.size(), longest_formula),
                0, 1);
        Formula f = comparison();
        if (at_ < text_.size())
            fail(text_[at_] == ')'            ? "')' without '('"
                 : begins_operand(text_[at_]) ? fmt::format("an operator is missing before {}", shown(at_))
                                              : fmt::format("unexpected {}", shown(at_)),
                 at_, at_ + 1);
        return f;
    }

  private:
    [[noreturn]] static void fail(const std::string& message, size_t begin, size_t end) {
        throw FormulaError(message, begin, end);
    }
    std::string shown(size_t at) const {
        const char c = text_[at];
        return c > ' ' && c < 127 ? fmt::format("'{}'", c)
                                  : fmt::format("byte 0x{:02x}", static_cast<unsigned char>(c));
    }
    void skip_blanks() {
        while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\t' || text_[at_] == '\n')) ++at_;
    }
    bool take(std::string_view token) {
        skip_blanks();
        if (!text_.substr(at_).starts_with(token)) return false;
        at_ += token.size();
        return true;
    }
    // The operator of this strength that stands here; of two, the longer. Null: there is none.
    const FunctionRow* take_operator(int strength) {
        skip_blanks();
        std::string_view longest;
        const FunctionRow* taken = nullptr;
        for (const FunctionRow& row : function_table()) {
            const std::string_view symbol = row.name;
            if (row.strength != strength || symbol.size() <= longest.size()) continue;
            if (!text_.substr(at_).starts_with(symbol)) continue;
            longest = symbol;
            taken = &row;
        }
        at_ += longest.size();
        return taken;
    }
    // A formula as it is written, for messages; nothing is folded.
    static Formula spanning(Node n, size_t begin, size_t end) {
        n.begin = begin;
        n.end = end;
        return std::make_shared<const Node>(std::move(n));
    }
    static Formula called(Function f, std::vector<Formula> arguments, size_t begin, size_t end) {
        Node n;
        n.kind = Node::Kind::call;
        n.function = f;
        n.arguments = std::move(arguments);
        return spanning(std::move(n), begin, end);
    }
    static Formula joined(Function f, const Formula& a, const Formula& b) {
        return called(f, {a, b}, a->begin, b->end);
    }

    Formula comparison() {
        const Formula left = sum();
        if (const FunctionRow* compared = take_operator(Strength::comparison)) {
            const Formula f = joined(compared->function, left, sum());
            skip_blanks();
            if (at_ < text_.size() && std::string_view("<>=!").find(text_[at_]) != std::string_view::npos)
                fail("comparisons do not chain: use parentheses", at_, at_ + 1);
            return f;
        }
        skip_blanks();
        if (at_ < text_.size() && text_[at_] == '=')
            fail("'=' assigns nothing here; to compare, use '=='", at_, at_ + 1);
        return left;
    }
    Formula sum() {
        Formula left = product();
        while (const FunctionRow* taken = take_operator(Strength::sum))
            left = joined(taken->function, left, product());
        return left;
    }
    Formula product() {
        Formula left = sign();
        for (;;) {
            skip_blanks();
            if (text_.substr(at_).starts_with("**")) fail("a power is written '^'", at_, at_ + 2);
            const FunctionRow* taken = take_operator(Strength::product);
            if (taken == nullptr) return left;
            left = joined(taken->function, left, sign());
        }
    }
    Formula sign() {
        skip_blanks();
        const size_t begin = at_;
        const Nested nested(*this, begin);
        if (const FunctionRow* taken = take_operator(Strength::sign)) {
            const Formula operand = sign();
            return called(taken->function, {operand}, begin, operand->end);
        }
        const Formula base = operand();
        const FunctionRow* taken = take_operator(Strength::power);
        return taken == nullptr ? base : joined(taken->function, base, sign());
    }
    Formula operand() {
        skip_blanks();
        const size_t begin = at_;
        if (at_ >= text_.size())
            fail(begin == 0 ? "the formula is empty" : "the formula ends where an operand is expected", begin,
                 begin + 1);
        if (take("(")) {
            const Formula inner = comparison();
            if (!take(")")) fail(missing("')'"), begin, begin + 1);
            Node n = *inner;
            return spanning(std::move(n), begin, at_);
        }
        if (is_digit(text_[at_]) || text_[at_] == '.') return numeral();
        if (starts_name(text_[at_])) return name();
        fail(fmt::format("an operand is expected, not {}", shown(at_)), at_, at_ + 1);
    }
    std::string missing(const char* what) const {
        return at_ >= text_.size() ? fmt::format("{} is missing at the end", what)
                                   : fmt::format("{} is expected before {}", what, shown(at_));
    }
    Formula numeral() {
        const size_t begin = at_;
        double value = 0;
        const auto [end, error] = std::from_chars(text_.data() + at_, text_.data() + text_.size(), value);
        const size_t length = static_cast<size_t>(end - text_.data()) - begin;
        if (error == std::errc::result_out_of_range)
            fail("this number does not fit into a double", begin, begin + length);
        if (error != std::errc() || length == 0) fail("not a number", begin, begin + 1);
        at_ = begin + length;
        if (at_ < text_.size() && starts_name(text_[at_]))
            fail("a number and a name without an operator between them: use '*'", begin, at_ + 1);
        Node n;
        n.number = value;
        return spanning(std::move(n), begin, at_);
    }
    Formula name() {
        const size_t begin = at_;
        while (at_ < text_.size() && (starts_name(text_[at_]) || is_digit(text_[at_]))) ++at_;
        const std::string word(text_.substr(begin, at_ - begin));
        skip_blanks();
        if (at_ < text_.size() && text_[at_] == '(') return function(word, begin);
        const size_t end = begin + word.size();
        Node n;
        for (size_t i = 0; i < parameters_.size(); ++i)
            if (parameters_[i] == word) {
                n.kind = Node::Kind::parameter;
                n.parameter = i;
                return spanning(std::move(n), begin, end);
            }
        for (const Variable v : variables_)
            if (word == name_of(v)) {
                n.kind = Node::Kind::variable;
                n.variable = v;
                return spanning(std::move(n), begin, end);
            }
        for (const Constant& c : constants)
            if (word == c.name) {
                n.number = c.value;
                return spanning(std::move(n), begin, end);
            }
        unknown(word, begin);
    }
    [[noreturn]] void unknown(const std::string& word, size_t begin) const {
        const size_t end = begin + word.size();
        if (find_function(word) != nullptr || word == "between" || word == "z_between")
            fail(fmt::format("the function '{}' has no arguments here", word), begin, end);
        std::vector<std::string> known(parameters_.begin(), parameters_.end());
        for (const Variable v : variables_) known.push_back(name_of(v));
        for (const Constant& c : constants) known.push_back(c.name);
        const std::string meant = suggestion(word, known);
        fail(fmt::format("unknown name '{}'{}", word,
                         meant.empty() ? "; known are " + join(known, ", ") : meant),
             begin, end);
    }
    // A term summed between key and query is one name.
    Formula between(size_t begin) {
        take("(");
        skip_blanks();
        const size_t from = at_;
        while (at_ < text_.size() && (starts_name(text_[at_]) || is_digit(text_[at_]))) ++at_;
        const std::string term(text_.substr(from, at_ - from));
        skip_blanks();
        if (at_ >= text_.size() || text_[at_] != ')')
            fail("between takes the name of a term alone; write what is summed into the term", from,
                 std::max(at_, from + 1));
        Node n;
        n.kind = Node::Kind::parameter;
        const auto known = std::find(parameters_.begin(), parameters_.end(), law::between(term));
        if (known == parameters_.end()) {
            std::vector<std::string> terms;
            for (const std::string& p : parameters_)
                if (const std::string_view name = term_of(p); !name.empty()) terms.emplace_back(name);
            fail(terms.empty() ? "between takes the name of a term, and there are no terms"
                               : "between takes the name of a term: " + alternatives(terms),
                 begin, std::max(at_, from + 1));
        }
        take(")");
        n.parameter = static_cast<size_t>(known - parameters_.begin());
        return spanning(std::move(n), begin, at_);
    }
    // The score before the law, by channels that a term fades: faded_by() says which.
    Formula faded(size_t begin) {
        take("(");
        skip_blanks();
        const size_t from = at_;
        while (at_ < text_.size() && (starts_name(text_[at_]) || is_digit(text_[at_]))) ++at_;
        const size_t end = at_;
        if (end == from || !take(")"))
            fail("z_between takes the name of a term alone; write what is summed into the term", from,
                 std::max(at_, from + 1));
        if (std::find(variables_.begin(), variables_.end(), Variable::z) == variables_.end())
            fail("z_between belongs into a score", begin, at_);
        Node n;
        n.kind = Node::Kind::variable;
        n.variable = Variable::z;
        return spanning(std::move(n), begin, at_);
    }
    // The term that a name sums; "": it is the name of something else.
    static std::string_view term_of(std::string_view name) {
        if (!name.starts_with("between(")) return "";
        name.remove_prefix(std::string_view("between(").size());
        name.remove_suffix(1);
        return name;
    }

    Formula function(const std::string& word, size_t begin) {
        if (word == "between") return between(begin);
        if (word == "z_between") return faded(begin);
        const FunctionRow* row = find_function(word);
        if (row == nullptr) {
            std::vector<std::string> known;
            for (const FunctionRow& other : function_table())
                if (other.strength == Strength::call) known.push_back(other.name);
            const std::string meant = word == "ln" ? ": did you mean log?" : suggestion(word, known);
            fail(fmt::format("unknown function '{}'{}", word, meant), begin, begin + word.size());
        }
        take("(");
        std::vector<Formula> arguments;
        do arguments.push_back(comparison());
        while (take(","));
        if (!take(")")) fail(missing("')'"), begin, begin + word.size());
        const size_t wanted = arguments_of(row->function);
        if (arguments.size() != wanted)
            fail(fmt::format("{} takes {}, not {}", word, counted(wanted, "argument"), arguments.size()),
                 begin, at_);
        if (row->function == Function::lookup && arguments[0]->kind != Node::Kind::parameter)
            fail("the first argument of lookup is the name of a vector parameter", arguments[0]->begin,
                 arguments[0]->end);
        return called(row->function, std::move(arguments), begin, at_);
    }

    struct Nested {
        Nested(Parser& parser, size_t begin) : parser_(parser) {
            if (++parser_.depth_ > deepest_nesting)
                fail(fmt::format("nested more than {} deep", deepest_nesting), begin, begin + 1);
        }
        ~Nested() { --parser_.depth_; }
        Parser& parser_;
    };

    std::string_view text_;
    std::span<const Variable> variables_;
    std::span<const std::string> parameters_;
    size_t at_ = 0;
    int depth_ = 0;
};

}  // namespace

Formula parse(std::string_view text, std::span<const Variable> variables,
              std::span<const std::string> parameters) {
    return Parser(text, variables, parameters).run();
}

namespace {

// The value of a part in which no name is left. Throws FormulaError where it, or a part of it, is not finite. Integrals
// are not computed here, for they take time; check_solvers() looks at the arguments of those that have a target.
std::optional<double> finite_constant(const Formula& f) {
    if (f->kind == Node::Kind::number) return f->number;
    if (f->kind != Node::Kind::call) return std::nullopt;
    const Solver* solver = row_of(f->function).solver;
    if (solver != nullptr && solver->target > 0) return std::nullopt;
    bool known = solver == nullptr && f->function != Function::lookup;
    std::vector<Formula> numbers;
    for (const Formula& argument : f->arguments) {
        const std::optional<double> value = finite_constant(argument);
        known = known && value;
        if (known) numbers.push_back(number(*value));
    }
    if (!known) return std::nullopt;
    const double value = evaluate(call(f->function, std::move(numbers)), {});
    if (!std::isfinite(value))
        throw FormulaError(fmt::format("this is {} everywhere",
                                       std::isnan(value) ? "not a number" : fmt::format("{}", value)),
                           f->begin, f->end);
    return value;
}

}  // namespace

Formula parse_finite(std::string_view text, std::span<const Variable> variables,
                     std::span<const std::string> parameters) {
    const Formula f = parse(text, variables, parameters);
    finite_constant(f);
    return f;
}

std::string name_problem(std::string_view name) {
    const bool word =
        !name.empty() && starts_name(name[0]) && name.size() <= longest_name &&
        std::all_of(name.begin(), name.end(), [](char c) { return starts_name(c) || is_digit(c); });
    if (!word)
        return fmt::format(
            "a name has letters, digits and _, does not begin with a digit, and is at most {} long",
            longest_name);
    if (name == name_of(Variable::x) || std::any_of(std::begin(score_variables), std::end(score_variables),
                                                    [&](Variable v) { return name == name_of(v); }))
        return "this is the name of a variable: choose another";
    if (std::any_of(std::begin(constants), std::end(constants),
                    [&](const Constant& c) { return name == c.name; }))
        return "this is the name of a constant: choose another";
    if (find_function(name) != nullptr || name == "between" || name == "z_between")
        return "this is the name of a function: choose another";
    return "";
}

std::vector<std::string> faded_by(std::string_view formula) {
    constexpr std::string_view word = "z_between";
    std::string text(formula);
    std::erase(text, ' ');
    std::vector<std::string> terms;
    for (size_t at = 0; (at = text.find(word, at)) != std::string::npos;) {
        const bool whole = at == 0 || !(starts_name(text[at - 1]) || is_digit(text[at - 1]));
        at += word.size();
        const size_t end = text.find(')', at);
        if (whole && at < text.size() && text[at] == '(' && end != std::string::npos)
            terms.push_back(text.substr(at + 1, end - at - 1));
    }
    return terms;
}

bool mentions(std::string_view formula, std::string_view name) {
    const auto in_name = [&](size_t i) {
        return i < formula.size() && (starts_name(formula[i]) || is_digit(formula[i]));
    };
    for (size_t at = 0; (at = formula.find(name, at)) != std::string_view::npos; at += name.size())
        if ((at == 0 || !in_name(at - 1)) && !in_name(at + name.size())) return true;
    return false;
}

}  // namespace longreach::law
