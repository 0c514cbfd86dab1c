#include "serve/template_parser.h"

#include <algorithm>
#include <initializer_list>

#include <fmt/format.h>

#include "base/text.h"
#include "serve/template_calls.h"
#include "serve/template_lexer.h"

namespace longreach::serve {

namespace {

using Kind = Expression::Kind;
using Word = TemplateToken::Kind;

constexpr int deepest_expression = 200, deepest_statement = 32;
constexpr size_t largest_template = size_t{1} << 20;

constexpr std::string_view loop_members[] = {"index",    "index0",    "first",    "last",    "length",
                                             "revindex", "revindex0", "previtem", "nextitem"};
// Attributes that are methods of Python's, and so no members of a dictionary.
constexpr std::string_view methods_of_dict[] = {"clear", "copy",    "fromkeys",   "get",    "items", "keys",
                                                "pop",   "popitem", "setdefault", "update", "values"};

template <class Names>
bool is_in(const Names& names, std::string_view name) {
    return std::find(std::begin(names), std::end(names), name) != std::end(names);
}
using Names = std::initializer_list<std::string_view>;

bool is_reserved(std::string_view name) {
    return is_in(Names{"true", "True", "false", "False", "none", "None", "and", "or", "not", "in", "is", "if",
                       "else", "self", "super", "caller", "varargs", "kwargs"},
                 name);
}

class Parser {
  public:
    explicit Parser(std::string_view source) : tokens_(template_tokens(source)) {}

    Statements run() { return statements({}); }

  private:
    // --- words

    const TemplateToken& now() const { return tokens_[at_]; }
    const TemplateToken& ahead() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
    const TemplateToken& take() { return tokens_[at_ + 1 < tokens_.size() ? at_++ : at_]; }
    [[noreturn]] void fail(const std::string& message) const { throw TemplateError(now().line, message); }
    std::string found() const {
        if (now().kind == Word::end || now().kind == Word::data) return "the end of the expression";
        return now().kind == Word::string ? quoted(now().text) : fmt::format("'{}'", one_line(now().text));
    }
    bool is_symbol(std::string_view text) const { return now().kind == Word::symbol && now().text == text; }
    bool is_name(std::string_view text) const { return now().kind == Word::name && now().text == text; }
    bool skip_symbol(std::string_view text) { return is_symbol(text) && (take(), true); }
    bool skip_name(std::string_view text) { return is_name(text) && (take(), true); }
    void expect(std::string_view symbol) {
        if (!skip_symbol(symbol)) fail(fmt::format("'{}' is expected instead of {}", symbol, found()));
    }
    std::string expect_name() {
        if (now().kind != Word::name) fail(fmt::format("a name is expected instead of {}", found()));
        return take().text;
    }
    void end_block() {
        if (now().kind != Word::block_end) fail(fmt::format("{} is not expected here", found()));
        take();
    }

    // --- statements

    // Up to one of these tags, whose name is then tag_, or to the end. The tag's name has been read.
    Statements statements(const std::vector<std::string_view>& until) {
        if (++depth_ > deepest_statement) fail("statements are nested too deeply");
        Statements all;
        while (now().kind != Word::end) {
            Statement next;
            next.line = now().line;
            if (now().kind == Word::data) {
                next.text = take().text;
                all.push_back(std::move(next));
                continue;
            }
            const bool prints = take().kind == Word::print_begin;
            if (prints) {
                next.kind = Statement::Kind::print;
                next.expression = expression();
                if (now().kind != Word::print_end) fail(fmt::format("{} is not expected here", found()));
                take();
                all.push_back(std::move(next));
                continue;
            }
            tag_ = expect_name();
            if (is_in(until, tag_)) break;
            statement(next);
            all.push_back(std::move(next));
        }
        if (!until.empty() && now().kind == Word::end) fail(fmt::format("'{}' is missing", until.back()));
        --depth_;
        return all;
    }

    void statement(Statement& to) {
        const std::string tag = tag_;
        if (tag == "if") return choose(to);
        if (tag == "for") return loop(to);
        if (tag == "set") return assign(to);
        if (tag == "generation") {  // marks what a training learns; writes nothing
            end_block();
            to.kind = Statement::Kind::group;
            to.bodies.push_back(statements({"endgeneration"}));
            return end_block();
        }
        if (tag != "break" && tag != "continue")
            throw TemplateError(to.line, fmt::format("the tag '{}' is not understood", one_line(tag)));
        if (loops_ == 0) fail(fmt::format("'{}' outside of a loop", tag));
        to.kind = tag == "break" ? Statement::Kind::leave : Statement::Kind::proceed;
        end_block();
    }

    void choose(Statement& to) {
        to.kind = Statement::Kind::choose;
        while (true) {
            const bool otherwise = tag_ == "else";
            to.conditions.push_back(otherwise ? nullptr : alternatives_of());
            end_block();
            to.bodies.push_back(otherwise ? statements({"endif"}) : statements({"elif", "else", "endif"}));
            if (tag_ == "endif") return end_block();
        }
    }

    std::string target() {
        std::string name = expect_name();
        if (is_template_function(name) || is_reserved(name)) fail(fmt::format("'{}' cannot be set", name));
        return name;
    }

    void loop(Statement& to) {
        to.kind = Statement::Kind::loop;
        const bool bracket = skip_symbol("(");
        do to.names.push_back(target());
        while (skip_symbol(","));
        if (bracket) expect(")");
        if (is_in(to.names, "loop")) fail("'loop' cannot be set");
        if (!skip_name("in")) fail(fmt::format("'in' is expected instead of {}", found()));
        to.expression = alternatives_of();
        to.conditions.push_back(skip_name("if") ? expression() : nullptr);
        if (is_name("recursive")) fail("recursive loops are not understood");
        end_block();
        ++loops_;
        to.bodies.push_back(statements({"else", "endfor"}));
        --loops_;
        if (tag_ == "else") {
            end_block();
            to.bodies.push_back(statements({"endfor"}));
        }
        end_block();
    }

    void assign(Statement& to) {
        to.kind = Statement::Kind::assign;
        to.names.push_back(target());
        if (skip_symbol(".")) {
            to.kind = Statement::Kind::attribute;
            to.names.push_back(expect_name());
        }
        if (is_symbol(",")) fail("setting several names at once is not understood");
        if (skip_symbol("=")) {
            to.expression = expression();
            return end_block();
        }
        if (to.kind == Statement::Kind::attribute)
            fail(fmt::format("'=' is expected instead of {}", found()));
        if (is_symbol("|")) fail("a filter of a block that is set is not understood");
        end_block();
        const int outer = std::exchange(loops_, 0);  // a break would leave the block's text undecided
        to.bodies.push_back(statements({"endset"}));
        loops_ = outer;
        end_block();
    }

    // --- expressions, from the loosest to the tightest

    ExpressionTree make(Kind kind, int line, std::string name = {}) const {
        auto tree = std::make_unique<Expression>();
        tree->kind = kind;
        tree->line = line;
        tree->name = std::move(name);
        return tree;
    }
    void deepen(Expression& to, const Expression& operand) const {
        to.depth = std::max(to.depth, operand.depth + 1);
        if (to.depth > deepest_expression) fail("an expression is nested too deeply");
    }
    void add(Expression& to, ExpressionTree operand) const {
        deepen(to, *operand);
        to.operands.push_back(std::move(operand));
    }
    template <class... Operands>
    ExpressionTree node(Kind kind, int line, std::string name, Operands... operands) const {
        ExpressionTree tree = make(kind, line, std::move(name));
        (add(*tree, std::move(operands)), ...);
        return tree;
    }
    ExpressionTree literal(TemplateValue value, int line) const {
        ExpressionTree tree = make(Kind::literal, line);
        tree->value = std::move(value);
        return tree;
    }

    ExpressionTree expression() {
        // Brackets, `not` and signs call this again for what they hold.
        if (++nesting_ > deepest_expression / 4) fail("an expression is nested too deeply");
        ExpressionTree tree = alternatives_of();
        while (is_name("if")) {
            const int line = take().line;
            ExpressionTree holds = alternatives_of();
            ExpressionTree otherwise =
                skip_name("else") ? expression() : literal(TemplateValue::undefined("else"), line);
            tree = node(Kind::condition, line, {}, std::move(tree), std::move(holds), std::move(otherwise));
        }
        --nesting_;
        return tree;
    }
    ExpressionTree alternatives_of() {
        ExpressionTree tree = both();
        while (is_name("or")) {
            const int line = take().line;
            tree = node(Kind::disjunction, line, {}, std::move(tree), both());
        }
        return tree;
    }
    ExpressionTree both() {
        ExpressionTree tree = opposite();
        while (is_name("and")) {
            const int line = take().line;
            tree = node(Kind::conjunction, line, {}, std::move(tree), opposite());
        }
        return tree;
    }
    ExpressionTree opposite() {
        if (!is_name("not")) return comparison();
        const int line = take().line;
        if (++nesting_ > deepest_expression / 4) fail("an expression is nested too deeply");
        ExpressionTree tree = node(Kind::opposite, line, {}, opposite());
        --nesting_;
        return tree;
    }
    std::string comparing() {
        for (const std::string_view symbol : {"==", "!=", "<", "<=", ">", ">="})
            if (is_symbol(symbol)) return std::string(symbol);
        if (is_name("in")) return "in";
        return is_name("not") && ahead().kind == Word::name && ahead().text == "in" ? "not in" : "";
    }
    ExpressionTree comparison() {
        ExpressionTree tree = sum();
        std::string symbol = comparing();
        if (symbol.empty()) return tree;
        const int line = take().line;
        if (symbol == "not in") take();
        tree = node(Kind::binary, line, symbol, std::move(tree), sum());
        if (!comparing().empty()) fail("comparisons in a row are not understood: write them with 'and'");
        return tree;
    }
    // Operands of `next` that these symbols join, from the left.
    template <class Next>
    ExpressionTree joined(Names symbols, Next next) {
        ExpressionTree tree = next();
        while (now().kind == Word::symbol && is_in(symbols, now().text)) {
            const TemplateToken& symbol = take();
            tree = node(Kind::binary, symbol.line, symbol.text, std::move(tree), next());
        }
        return tree;
    }
    ExpressionTree sum() {
        return joined({"+", "-"}, [&] { return joined({"~"}, [&] { return product(); }); });
    }
    ExpressionTree product() {
        ExpressionTree tree = joined({"*", "//", "%"}, [&] { return sign(); });
        if (is_symbol("/") || is_symbol("**"))
            fail(fmt::format("the operator '{}' is not understood", now().text));
        return tree;
    }
    ExpressionTree sign() {
        ExpressionTree tree;
        if (is_symbol("-") || is_symbol("+")) {
            const TemplateToken& symbol = take();
            if (symbol.text == "+") fail("a sign '+' is not understood");
            if (++nesting_ > deepest_expression / 4) fail("an expression is nested too deeply");
            tree = node(Kind::negative, symbol.line, {}, members(primary()));
            --nesting_;
        } else {
            tree = members(primary());
        }
        return filters(std::move(tree));
    }

    ExpressionTree primary() {
        const int line = now().line;
        if (now().kind == Word::string) {
            std::string text = take().text;
            while (now().kind == Word::string) text += take().text;
            return literal(TemplateValue::text(MarkedText(text, MarkedText::ours)), line);
        }
        if (now().kind == Word::integer) return literal(TemplateValue::integer(take().number), line);
        if (now().kind == Word::name) return named_value();
        if (skip_symbol("(")) {
            ExpressionTree tree = expression();
            if (is_symbol(",")) fail("tuples are not understood");
            expect(")");
            return tree;
        }
        if (skip_symbol("[")) {
            ExpressionTree tree = make(Kind::list, line);
            while (!is_symbol("]")) {
                add(*tree, expression());
                if (!skip_symbol(",")) break;
            }
            expect("]");
            return tree;
        }
        if (!skip_symbol("{")) fail(fmt::format("{} is not expected here", found()));
        ExpressionTree tree = make(Kind::dict, line);
        while (!is_symbol("}")) {
            add(*tree, expression());
            expect(":");
            add(*tree, expression());
            if (!skip_symbol(",")) break;
        }
        expect("}");
        return tree;
    }
    ExpressionTree named_value() {
        const TemplateToken& word = take();
        const std::string& name = word.text;
        if (name == "true" || name == "True") return literal(TemplateValue::boolean(true), word.line);
        if (name == "false" || name == "False") return literal(TemplateValue::boolean(false), word.line);
        if (name == "none" || name == "None") return literal(TemplateValue(), word.line);
        if (is_reserved(name)) throw TemplateError(word.line, fmt::format("'{}' is not expected here", name));
        if (!is_symbol("(")) return make(Kind::variable, word.line, name);
        ExpressionTree tree = make(Kind::function, word.line, name);
        arguments(*tree);
        settle_function(*tree);
        return tree;
    }

    ExpressionTree members(ExpressionTree tree) {
        while (true) {
            const int line = now().line;
            if (skip_symbol(".")) {
                tree = attribute(std::move(tree), line);
            } else if (skip_symbol("[")) {
                tree = item(std::move(tree), line);
            } else if (is_symbol("(")) {
                fail("a call of what has no name is not understood");
            } else {
                return tree;
            }
        }
    }
    ExpressionTree attribute(ExpressionTree tree, int line) {
        if (now().kind == Word::integer)
            return node(Kind::item, line, {}, std::move(tree),
                        literal(TemplateValue::integer(take().number), line));
        const std::string name = expect_name();
        if (is_symbol("(")) {
            ExpressionTree call = node(Kind::method, line, name, std::move(tree));
            arguments(*call);
            settle_method(*call);
            return call;
        }
        const bool of_loop = tree->kind == Kind::variable && tree->name == "loop";
        if (of_loop ? !is_in(loop_members, name) : is_in(methods_of_dict, name))
            throw TemplateError(line, fmt::format("'.{}' is not understood", name));
        return node(Kind::attribute, line, name, std::move(tree));
    }
    ExpressionTree item(ExpressionTree tree, int line) {
        ExpressionTree parts[3];
        size_t colons = 0;
        const auto bound = [&] { return is_symbol(":") || is_symbol("]") ? nullptr : expression(); };
        parts[0] = bound();
        while (colons < 2 && skip_symbol(":")) parts[++colons] = bound();
        if (is_symbol(",")) fail("several indices are not understood");
        if (colons == 0 && !parts[0]) fail("an index is missing");
        expect("]");
        if (colons == 0) return node(Kind::item, line, {}, std::move(tree), std::move(parts[0]));
        for (ExpressionTree& part : parts)
            if (!part) part = literal(TemplateValue(), line);
        return node(Kind::slice, line, {}, std::move(tree), std::move(parts[0]), std::move(parts[1]),
                    std::move(parts[2]));
    }

    ExpressionTree filters(ExpressionTree tree) {
        while (true) {
            const int line = now().line;
            if (skip_symbol("|")) {
                tree = node(Kind::filter, line, expect_name(), std::move(tree));
                if (is_symbol("(")) arguments(*tree);
                settle_filter(*tree);
            } else if (skip_name("is")) {
                tree = test(std::move(tree), line);
            } else if (is_symbol("(")) {
                fail("a call of what has no name is not understood");
            } else {
                return tree;
            }
        }
    }
    ExpressionTree test(ExpressionTree tree, int line) {
        const bool no = skip_name("not");
        tree = node(Kind::test, line, expect_name(), std::move(tree));
        if (is_symbol("(")) {
            arguments(*tree);
        } else if (test_takes_argument(tree->name)) {
            add(*tree, members(primary()));
        }
        settle_test(*tree);
        return no ? node(Kind::opposite, line, {}, std::move(tree)) : std::move(tree);
    }

    void arguments(Expression& to) {
        expect("(");
        while (!is_symbol(")")) {
            if (is_symbol("*") || is_symbol("**")) fail("arguments out of a list are not understood");
            if (now().kind == Word::name && ahead().kind == Word::symbol && ahead().text == "=") {
                std::string name = take().text;
                take();
                ExpressionTree value = expression();
                deepen(to, *value);
                to.named.emplace_back(std::move(name), std::move(value));
            } else {
                if (!to.named.empty()) fail("an argument without a name follows one with a name");
                add(to, expression());
            }
            if (!skip_symbol(",")) break;
        }
        expect(")");
    }

    const std::vector<TemplateToken> tokens_;
    size_t at_ = 0;
    std::string tag_;
    int depth_ = 0, loops_ = 0, nesting_ = 0;
};

}  // namespace

Statements parse_template(std::string_view source) {
    if (source.size() > largest_template)
        throw TemplateError(1, fmt::format("the template has more than {} bytes", largest_template));
    return Parser(source).run();
}

}  // namespace longreach::serve
