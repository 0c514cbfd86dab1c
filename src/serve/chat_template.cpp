#include "serve/chat_template.h"

#include <algorithm>
#include <map>

#include <fmt/format.h>

#include "base/text.h"
#include "serve/template_calls.h"
#include "serve/template_parser.h"

namespace longreach::serve {

namespace {

using Kind = Expression::Kind;

constexpr size_t most_members = 256;  // of a dictionary, which is searched from its front

// Methods of Python's texts and lists, which a template that was meant for Python sees as attributes of them.
constexpr std::string_view methods_of_values =
    " append capitalize casefold center copy count encode endswith expandtabs extend find format format_map index insert "
    "isalnum isalpha isascii isdecimal isdigit isidentifier islower isnumeric isprintable isspace istitle isupper join ljust "
    "lower lstrip maketrans partition pop remove removeprefix removesuffix replace reverse rfind rindex rjust rpartition "
    "rsplit rstrip sort split splitlines startswith strip swapcase title translate upper zfill ";

class Renderer {
  public:
    Renderer(const TemplateDict& variables, std::time_t now) : now_(now) {
        frames_.emplace_back(variables.begin(), variables.end());
    }
    MarkedText run(const Statements& statements) {
        run_all(statements);
        return std::move(output_);
    }

  private:
    using Frame = std::map<std::string, TemplateValue, std::less<>>;
    enum class Flow { on, leave, proceed };
    // Names that are set while it exists are gone afterwards.
    class Scope {
      public:
        explicit Scope(Renderer& of) : of_(of) { of.frames_.emplace_back(); }
        ~Scope() { of_.frames_.pop_back(); }
        Scope(const Scope&) = delete;
        Scope& operator=(const Scope&) = delete;

      private:
        Renderer& of_;
    };

    [[noreturn]] static void fail(int line, const std::string& message) {
        throw TemplateError(line, message);
    }
    void set(const std::string& name, TemplateValue value) {
        frames_.back().insert_or_assign(name, std::move(value));
    }
    void put(const MarkedText& text, int line) {
        work_.spend(text.size(), line);
        output_.add(text);
    }

    // --- statements

    Flow run_all(const Statements& statements) {
        for (const Statement& statement : statements)
            if (const Flow flow = run_one(statement); flow != Flow::on) return flow;
        return Flow::on;
    }
    Flow run_one(const Statement& s) {
        work_.step(s.line);
        switch (s.kind) {
            case Statement::Kind::text:
                put(MarkedText(s.text, MarkedText::ours), s.line);
                break;
            case Statement::Kind::print:
                put(printed(value_of(*s.expression), s.line), s.line);
                break;
            case Statement::Kind::choose:
                for (size_t i = 0; i < s.bodies.size(); ++i)
                    if (!s.conditions[i] || value_of(*s.conditions[i]).truth()) return run_all(s.bodies[i]);
                break;
            case Statement::Kind::loop:
                return run_loop(s);
            case Statement::Kind::assign:
                set(s.names[0], s.expression ? value_of(*s.expression) : captured(s));
                break;
            case Statement::Kind::attribute:
                set_attribute(s);
                break;
            case Statement::Kind::group:
                return run_all(s.bodies[0]);
            case Statement::Kind::leave:
                return Flow::leave;
            case Statement::Kind::proceed:
                return Flow::proceed;
        }
        return Flow::on;
    }

    TemplateValue captured(const Statement& s) {
        MarkedText outer = std::move(output_);
        output_ = {};
        {
            const Scope scope(*this);
            run_all(s.bodies[0]);
        }
        return TemplateValue::text(std::exchange(output_, std::move(outer)));
    }

    void set_attribute(const Statement& s) {
        TemplateValue value = value_of(*s.expression);
        const TemplateValue* target = look_up(s.names[0]);
        const auto* members = target == nullptr ? nullptr : target->as<TemplateValue::Namespace>();
        if (members == nullptr) fail(s.line, fmt::format("'{}' is not a namespace", s.names[0]));
        if (value.nesting() >= TemplateValue::deepest) fail(s.line, "values are nested too deeply");
        TemplateDict& all = *members->members;
        const auto found = std::find_if(all.begin(), all.end(),
                                        [&](const auto& member) { return member.first == s.names[1]; });
        if (found != all.end()) {
            found->second = std::move(value);
        } else {
            if (all.size() == most_members) fail(s.line, "a namespace has too many members");
            all.emplace_back(s.names[1], std::move(value));
        }
    }

    void set_targets(const Statement& s, const TemplateValue& element) {
        if (s.names.size() == 1) return set(s.names[0], element);
        const TemplateList parts = elements_of(element, work_, s.line);
        if (parts.size() != s.names.size())
            fail(s.line, fmt::format("{} names for {} values", s.names.size(), parts.size()));
        for (size_t i = 0; i < parts.size(); ++i) set(s.names[i], parts[i]);
    }

    Flow run_loop(const Statement& s) {
        TemplateList all = elements_of(value_of(*s.expression), work_, s.line), kept;
        for (const TemplateValue& element : all) {
            if (!s.conditions[0]) break;
            const Scope scope(*this);
            set_targets(s, element);
            if (value_of(*s.conditions[0]).truth()) kept.push_back(element);
        }
        if (s.conditions[0]) all = std::move(kept);
        const auto number = [](size_t n) { return TemplateValue::integer(static_cast<int64_t>(n)); };
        const auto neighbour = [&](size_t i) {
            return i < all.size() ? all[i] : TemplateValue::undefined("loop");
        };
        for (size_t i = 0; i < all.size(); ++i) {
            work_.step(s.line);
            const Scope scope(*this);
            set_targets(s, all[i]);
            set("loop", TemplateValue::dict({{"index", number(i + 1)},
                                             {"index0", number(i)},
                                             {"first", TemplateValue::boolean(i == 0)},
                                             {"last", TemplateValue::boolean(i + 1 == all.size())},
                                             {"length", number(all.size())},
                                             {"revindex", number(all.size() - i)},
                                             {"revindex0", number(all.size() - i - 1)},
                                             {"previtem", neighbour(i - 1)},
                                             {"nextitem", neighbour(i + 1)}}));
            if (run_all(s.bodies[0]) == Flow::leave) return Flow::on;
        }
        if (!all.empty() || s.bodies.size() < 2) return Flow::on;
        const Scope scope(*this);
        return run_all(s.bodies[1]);
    }

    // --- expressions

    const TemplateValue* look_up(std::string_view name) const {
        for (auto frame = frames_.rbegin(); frame != frames_.rend(); ++frame)
            if (const auto found = frame->find(name); found != frame->end()) return &found->second;
        return nullptr;
    }

    TemplateValue value_of(const Expression& e) {
        work_.step(e.line);
        TemplateValue value = computed(e);
        if (value.nesting() > TemplateValue::deepest) fail(e.line, "values are nested too deeply");
        return value;
    }
    TemplateValue operand(const Expression& e, size_t i) { return value_of(*e.operands[i]); }

    TemplateValue computed(const Expression& e) {
        switch (e.kind) {
            case Kind::literal:
                return e.value;
            case Kind::variable:
                if (const TemplateValue* value = look_up(e.name)) return *value;
                return is_template_function(e.name) ? TemplateValue(TemplateValue::Function())
                                                    : TemplateValue::undefined(e.name);
            case Kind::list:
                return list_of(e);
            case Kind::dict:
                return dict_of(e);
            case Kind::attribute:
                return attribute(e);
            case Kind::item:
                return item(e);
            case Kind::slice:
                return slice(e);
            case Kind::negative:
                return arithmetic(e, '-', TemplateValue::integer(0), operand(e, 0));
            case Kind::opposite:
                return TemplateValue::boolean(!operand(e, 0).truth());
            case Kind::binary:
                return binary(e);
            case Kind::conjunction:
            case Kind::disjunction: {
                TemplateValue first = operand(e, 0);
                return first.truth() == (e.kind == Kind::disjunction) ? first : operand(e, 1);
            }
            case Kind::condition:
                return operand(e, 1).truth() ? operand(e, 0) : operand(e, 2);
            case Kind::filter:
                return apply_filter(call_of(e));
            case Kind::test:
                return TemplateValue::boolean(apply_test(call_of(e)));
            case Kind::function:
                return e.name == "namespace" ? new_namespace(e) : call_function(call_of(e));
            case Kind::method:
                return call_method(call_of(e));
        }
        return {};
    }

    TemplateCall call_of(const Expression& e) {
        TemplateCall call{e, {}, work_, now_};
        for (const ExpressionTree& argument : e.operands) {
            call.arguments.emplace_back();
            if (argument) call.arguments.back() = value_of(*argument);
        }
        return call;
    }

    TemplateValue list_of(const Expression& e) {
        TemplateList list;
        for (size_t i = 0; i < e.operands.size(); ++i) list.push_back(operand(e, i));
        return TemplateValue::list(std::move(list));
    }
    TemplateValue dict_of(const Expression& e) {
        TemplateDict dict;
        if (e.operands.size() > 2 * most_members) fail(e.line, "a dictionary has too many members");
        for (size_t i = 0; i < e.operands.size(); i += 2) {
            const TemplateValue key = operand(e, i);
            if (key.as_text() == nullptr) fail(e.line, fmt::format("{} as a key", key.kind()));
            const std::string& name = key.as_text()->bytes;
            const auto found =
                std::find_if(dict.begin(), dict.end(), [&](const auto& m) { return m.first == name; });
            if (found != dict.end()) {
                found->second = operand(e, i + 1);
            } else {
                dict.emplace_back(name, operand(e, i + 1));
            }
        }
        return TemplateValue::dict(std::move(dict));
    }
    TemplateValue new_namespace(const Expression& e) {
        auto members = std::make_shared<TemplateDict>();
        if (e.named.size() > most_members) fail(e.line, "a namespace has too many members");
        for (const auto& [name, tree] : e.named) {
            TemplateValue value = value_of(*tree);
            if (value.nesting() >= TemplateValue::deepest) fail(e.line, "values are nested too deeply");
            members->emplace_back(name, std::move(value));
        }
        return TemplateValue::Data(TemplateValue::Namespace{std::move(members)});
    }

    static std::string name_of(const TemplateValue& undefined) {
        return fmt::format("'{}' is not defined", one_line(undefined.as<TemplateValue::Undefined>()->name));
    }

    TemplateValue attribute(const Expression& e) {
        const TemplateValue from = operand(e, 0);
        if (const TemplateValue* found = from.find(e.name)) return *found;
        if (from.is_undefined()) fail(e.line, name_of(from));
        const bool method = methods_of_values.find(fmt::format(" {} ", e.name)) != std::string_view::npos;
        if (method && (from.as_text() != nullptr || from.as_list() != nullptr))
            fail(e.line, fmt::format("the method '{}' without a call is not understood", e.name));
        return TemplateValue::undefined(e.name);
    }

    TemplateValue item(const Expression& e) {
        const TemplateValue from = operand(e, 0), key = operand(e, 1);
        if (from.is_undefined()) fail(e.line, name_of(from));
        int64_t index = 0;
        if (const MarkedText* name = key.as_text()) {
            const TemplateValue* found = from.find(name->bytes);
            return found != nullptr ? *found : TemplateValue::undefined(name->bytes);
        }
        if (integer_of(key, index) == nullptr) fail(e.line, fmt::format("{} as an index", key.kind()));
        const auto none = [&] { return TemplateValue::undefined(fmt::format("[{}]", index)); };
        const auto place = [&](size_t count) {
            const int64_t size = static_cast<int64_t>(count), at = index < 0 ? index + size : index;
            return at < 0 || at >= size ? count : static_cast<size_t>(at);
        };
        if (const TemplateList* list = from.as_list()) {
            const size_t at = place(list->size());
            return at < list->size() ? (*list)[at] : none();
        }
        if (const MarkedText* text = from.as_text()) {
            work_.spend(text->size(), e.line);
            const std::vector<size_t> begins = characters_of(text->bytes);
            const size_t at = place(begins.size() - 1);
            return at + 1 < begins.size() ? TemplateValue::text(text->part(begins[at], begins[at + 1]))
                                          : none();
        }
        return none();
    }

    // The places that a Python slice takes in a list of `count` elements, in their order.
    std::vector<size_t> places(const Expression& e, size_t count) {
        const int64_t size = static_cast<int64_t>(count);
        std::optional<int64_t> bounds[3];
        for (size_t i = 0; i < 3; ++i) {
            const TemplateValue value = operand(e, i + 1);
            int64_t number = 0;
            if (value.as<TemplateValue::None>()) continue;
            if (integer_of(value, number) == nullptr)
                fail(e.line, fmt::format("{} as an index", value.kind()));
            bounds[i] = number;
        }
        const int64_t step = bounds[2].value_or(1);
        if (step == 0) fail(e.line, "a slice with a step of 0");
        const int64_t least = step > 0 ? 0 : -1, most = step > 0 ? size : size - 1;
        const auto bound = [&](std::optional<int64_t> given, int64_t otherwise) {
            return given ? std::clamp(*given < 0 ? *given + size : *given, least, most) : otherwise;
        };
        const int64_t start = bound(bounds[0], step > 0 ? least : most),
                      stop = bound(bounds[1], step > 0 ? most : least);
        std::vector<size_t> out;
        for (int64_t i = start; step > 0 ? i < stop : i > stop;) {
            out.push_back(static_cast<size_t>(i));
            if (__builtin_add_overflow(i, step, &i)) break;
        }
        return out;
    }

    TemplateValue slice(const Expression& e) {
        const TemplateValue from = operand(e, 0);
        if (from.is_undefined()) fail(e.line, name_of(from));
        if (const TemplateList* list = from.as_list()) {
            work_.spend(list->size() * sizeof(TemplateValue), e.line);
            TemplateList out;
            for (const size_t i : places(e, list->size())) out.push_back((*list)[i]);
            return TemplateValue::list(std::move(out));
        }
        const MarkedText* text = from.as_text();
        if (text == nullptr) fail(e.line, fmt::format("a slice of {}", from.kind()));
        work_.spend(text->size(), e.line);
        const std::vector<size_t> begins = characters_of(text->bytes);
        MarkedText out;
        for (const size_t i : places(e, begins.size() - 1)) out.add(text->part(begins[i], begins[i + 1]));
        return TemplateValue::text(std::move(out));
    }

    TemplateValue binary(const Expression& e) {
        const std::string_view symbol = e.name;
        if (symbol == "in" || symbol == "not in")
            return TemplateValue::boolean(is_contained(call_of(e)) == (symbol == "in"));
        const TemplateValue a = operand(e, 0), b = operand(e, 1);
        if (symbol == "==" || symbol == "!=")
            return TemplateValue::boolean(same(a, b, work_, e.line) == (symbol == "=="));
        if (symbol == "<" || symbol == "<=" || symbol == ">" || symbol == ">=") return ordered(e, a, b);
        const MarkedText *left = a.as_text(), *right = b.as_text();
        if (symbol == "~" || (symbol == "+" && left != nullptr && right != nullptr)) {
            MarkedText text = printed(a, e.line);
            text.add(printed(b, e.line));
            work_.spend(text.size(), e.line);
            return TemplateValue::text(std::move(text));
        }
        if (symbol == "+" && a.as_list() != nullptr && b.as_list() != nullptr) {
            TemplateList both = *a.as_list();
            both.insert(both.end(), b.as_list()->begin(), b.as_list()->end());
            work_.spend(both.size() * sizeof(TemplateValue), e.line);
            return TemplateValue::list(std::move(both));
        }
        return arithmetic(e, symbol[0], a, b);
    }

    TemplateValue ordered(const Expression& e, const TemplateValue& a, const TemplateValue& b) {
        int64_t x = 0, y = 0;
        if (integer_of(a, x) == nullptr || integer_of(b, y) == nullptr) {
            const MarkedText *left = a.as_text(), *right = b.as_text();
            if (left == nullptr || right == nullptr)
                fail(e.line, fmt::format("'{}' of {} and {}", e.name, a.kind(), b.kind()));
            work_.spend(std::min(left->size(), right->size()), e.line);
            x = left->bytes.compare(right->bytes);  // by bytes, as by code points
        }
        if (e.name == "<") return TemplateValue::boolean(x < y);
        if (e.name == "<=") return TemplateValue::boolean(x <= y);
        return TemplateValue::boolean(e.name == ">" ? x > y : x >= y);
    }

    TemplateValue arithmetic(const Expression& e, char symbol, const TemplateValue& a,
                             const TemplateValue& b) {
        int64_t x = 0, y = 0, result = 0;
        if (a.is_undefined() || b.is_undefined()) fail(e.line, name_of(a.is_undefined() ? a : b));
        if (integer_of(a, x) == nullptr || integer_of(b, y) == nullptr)
            fail(e.line, fmt::format("'{}' of {} and {}", e.kind == Kind::negative ? "-" : e.name, a.kind(),
                                     b.kind()));
        bool overflow = false;
        if (symbol == '+') overflow = __builtin_add_overflow(x, y, &result);
        if (symbol == '-') overflow = __builtin_sub_overflow(x, y, &result);
        if (symbol == '*') overflow = __builtin_mul_overflow(x, y, &result);
        if (symbol == '/' || symbol == '%') {
            if (y == 0) fail(e.line, "a division by 0");
            overflow = y == -1 && x == INT64_MIN;
            const int64_t quotient = overflow ? 0 : x / y, rest = overflow ? 0 : x % y;
            const bool below = rest != 0 && (rest < 0) != (y < 0);  // Python rounds down
            result = symbol == '/' ? quotient - (below ? 1 : 0) : rest + (below ? y : 0);
        }
        if (overflow) fail(e.line, "a number is too large");
        return TemplateValue::integer(result);
    }

    const std::time_t now_;
    TemplateWork work_;
    std::vector<Frame> frames_;
    MarkedText output_;
};

}  // namespace

ChatTemplate::ChatTemplate(std::string_view source) : statements_(parse_template(source)) {}

MarkedText ChatTemplate::render(const TemplateDict& variables, std::time_t now) const {
    return Renderer(variables, now).run(statements_);
}

}  // namespace longreach::serve
