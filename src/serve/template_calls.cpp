#include "serve/template_calls.h"

#include <algorithm>

#include <fmt/format.h>

#include "base/text.h"

namespace longreach::serve {

namespace {

constexpr size_t element_bytes = 128;  // of a list, about
constexpr size_t longest_message = 400;

struct Signature {
    std::string_view name;
    size_t least;  // arguments
    std::vector<std::string_view> parameters;
};
using Signatures = std::vector<Signature>;

const Signatures& filters() {
    static const Signatures all = {{"trim", 0, {"chars"}},
                                   {"length", 0, {}},
                                   {"count", 0, {}},
                                   {"upper", 0, {}},
                                   {"lower", 0, {}},
                                   {"capitalize", 0, {}},
                                   {"title", 0, {}},
                                   {"string", 0, {}},
                                   {"tojson", 0, {"indent"}},
                                   {"first", 0, {}},
                                   {"last", 0, {}},
                                   {"join", 0, {"d"}},
                                   {"list", 0, {}},
                                   {"items", 0, {}},
                                   {"replace", 2, {"old", "new"}},
                                   {"default", 0, {"default_value", "boolean"}},
                                   {"d", 0, {"default_value", "boolean"}},
                                   {"map", 1, {"attribute"}},
                                   {"select", 0, {"test", "argument"}},
                                   {"reject", 0, {"test", "argument"}},
                                   {"selectattr", 1, {"attribute", "test", "argument"}},
                                   {"rejectattr", 1, {"attribute", "test", "argument"}}};
    return all;
}

const Signatures& tests() {
    static const Signatures all = {
        {"defined", 0, {}},   {"undefined", 0, {}}, {"none", 0, {}},           {"string", 0, {}},
        {"number", 0, {}},    {"integer", 0, {}},   {"boolean", 0, {}},        {"true", 0, {}},
        {"false", 0, {}},     {"mapping", 0, {}},   {"sequence", 0, {}},       {"iterable", 0, {}},
        {"odd", 0, {}},       {"even", 0, {}},      {"equalto", 1, {"other"}}, {"eq", 1, {"other"}},
        {"==", 1, {"other"}}, {"ne", 1, {"other"}}, {"!=", 1, {"other"}},      {"in", 1, {"seq"}}};
    return all;
}

const Signatures& methods() {
    static const Signatures all = {{"strip", 0, {"chars"}},
                                   {"lstrip", 0, {"chars"}},
                                   {"rstrip", 0, {"chars"}},
                                   {"split", 0, {"sep", "maxsplit"}},
                                   {"upper", 0, {}},
                                   {"lower", 0, {}},
                                   {"capitalize", 0, {}},
                                   {"title", 0, {}},
                                   {"startswith", 1, {"prefix"}},
                                   {"endswith", 1, {"suffix"}},
                                   {"replace", 2, {"old", "new"}},
                                   {"items", 0, {}},
                                   {"keys", 0, {}},
                                   {"values", 0, {}},
                                   {"get", 1, {"key", "default"}}};
    return all;
}

const Signatures& functions() {
    static const Signatures all = {{"raise_exception", 1, {"message"}},
                                   {"namespace", 0, {}},
                                   {"range", 1, {"start", "stop", "step"}},
                                   {"strftime_now", 1, {"format"}}};
    return all;
}

const Signature* find(const Signatures& all, std::string_view name) {
    const auto found =
        std::find_if(all.begin(), all.end(), [&](const Signature& s) { return s.name == name; });
    return found == all.end() ? nullptr : &*found;
}

// first: the place of the first argument among the operands.
void settle(Expression& call, const Signatures& all, const char* what, size_t first) {
    const Signature* signature = find(all, call.name);
    const std::string named = fmt::format("the {} '{}'", what, one_line(call.name));
    if (signature == nullptr) throw TemplateError(call.line, named + " is not understood");
    const std::vector<std::string_view>& parameters = signature->parameters;
    if (call.operands.size() - first > parameters.size())
        throw TemplateError(call.line,
                            fmt::format("{} has more than {} arguments", named, parameters.size()));
    const size_t given = call.operands.size();
    call.operands.resize(first + parameters.size());
    for (auto& [name, value] : call.named) {
        const auto found = std::find(parameters.begin(), parameters.end(), name);
        const size_t place = first + static_cast<size_t>(found - parameters.begin());
        if (found == parameters.end() || place < given || call.operands[place])
            throw TemplateError(
                call.line, fmt::format("the argument '{}' of {} is not understood", one_line(name), named));
        call.operands[place] = std::move(value);
    }
    call.named.clear();
    for (size_t i = 0; i < signature->least; ++i)
        if (!call.operands[first + i])
            throw TemplateError(call.line,
                                fmt::format("the argument '{}' of {} is missing", parameters[i], named));
}

[[noreturn]] void fail(const TemplateCall& c, const std::string& message) {
    throw TemplateError(c.call.line, message);
}

TemplateValue ours(std::string_view text) {
    return TemplateValue::text(MarkedText(text, MarkedText::ours));
}

// The text of an argument, which must be one.
const MarkedText& text_argument(const TemplateCall& c, size_t i) {
    const MarkedText* text = c.arguments[i]->as_text();
    if (text == nullptr)
        fail(c, fmt::format("'{}' is given {} in place of a text", c.call.name, c.arguments[i]->kind()));
    return *text;
}
int64_t integer_argument(const TemplateCall& c, size_t i, int64_t otherwise) {
    int64_t number = otherwise;
    if (c.arguments.size() > i && c.arguments[i] && integer_of(*c.arguments[i], number) == nullptr)
        fail(c, fmt::format("'{}' is given {} in place of a number", c.call.name, c.arguments[i]->kind()));
    return number;
}
bool has_argument(const TemplateCall& c, size_t i) {
    return c.arguments.size() > i && c.arguments[i] && !c.arguments[i]->as<TemplateValue::None>();
}

void spend_reading(const TemplateCall& c) {
    if (const MarkedText* text = c.arguments[0]->as_text()) c.work.spend(text->size(), c.call.line);
}

// --- texts

MarkedText stripped(const TemplateCall& c, const MarkedText& text, bool left, bool right) {
    if (!has_argument(c, 1)) {
        const auto [begin, end] = without_space(text.bytes, left, right);
        return text.part(begin, end);
    }
    const std::string& set = text_argument(c, 1).bytes;
    const std::vector<size_t> begins = characters_of(text.bytes), members = characters_of(set);
    if (members.size() > 64) fail(c, fmt::format("'{}' of too many characters", c.call.name));
    const auto in_set = [&](size_t character) {
        const std::string_view one =
            std::string_view(text.bytes).substr(begins[character], begins[character + 1] - begins[character]);
        for (size_t i = 0; i + 1 < members.size(); ++i)
            if (one == std::string_view(set).substr(members[i], members[i + 1] - members[i])) return true;
        return false;
    };
    size_t first = 0, last = begins.size() - 1;
    while (left && first < last && in_set(first)) ++first;
    while (right && last > first && in_set(last - 1)) --last;
    return text.part(begins[first], begins[last]);
}

// Python's for letters of ASCII; others are refused, since their cases need Unicode's tables. In a title a letter is large
// that follows no letter, for the filter one that begins a word by Jinja's rule.
MarkedText in_case(const TemplateCall& c, MarkedText text) {
    const std::string_view name = c.call.name;
    const bool by_words = c.call.kind == Expression::Kind::filter;
    bool begins = true;
    for (char& letter : text.bytes) {
        if (static_cast<unsigned char>(letter) >= 0x80)
            fail(c, fmt::format("'{}' of letters beyond ASCII", name));
        const bool is_lower = letter >= 'a' && letter <= 'z', is_upper = letter >= 'A' && letter <= 'Z';
        const bool upper = name == "upper" || (name != "lower" && begins);
        const bool ends_word =
            std::string_view("-({[< \t\n\v\f\r\x1c\x1d\x1e\x1f").find(letter) != std::string_view::npos;
        begins = name == "title" && (by_words ? ends_word : !is_lower && !is_upper);
        if (upper && is_lower) letter = static_cast<char>(letter - 'a' + 'A');
        if (!upper && is_upper) letter = static_cast<char>(letter - 'A' + 'a');
    }
    return text;
}

// Finding a text in another takes the product of their lengths at worst.
void spend_search(const TemplateCall& c, const std::string& in, const std::string& what) {
    c.work.spend(in.size() * what.size() / 64, c.call.line);
}

MarkedText replaced(const TemplateCall& c, const MarkedText& text) {
    const MarkedText &from = text_argument(c, 1), &to = text_argument(c, 2);
    if (from.size() == 0) fail(c, "'replace' of an empty text");
    spend_search(c, text.bytes, from.bytes);
    MarkedText out;
    size_t done = 0;
    for (size_t at; (at = text.bytes.find(from.bytes, done)) != std::string::npos; done = at + from.size()) {
        c.work.spend(at - done + to.size(), c.call.line);
        out.add(text.part(done, at));
        out.add(to);
    }
    out.add(text.part(done, text.size()));
    return out;
}

TemplateValue split(const TemplateCall& c, const MarkedText& text) {
    const int64_t most = integer_argument(c, 2, -1);
    TemplateList parts;
    const auto add = [&](size_t begin, size_t end) {
        c.work.spend(end - begin + element_bytes, c.call.line);
        parts.push_back(TemplateValue::text(text.part(begin, end)));
    };
    const auto full = [&] { return most >= 0 && static_cast<int64_t>(parts.size()) >= most; };
    size_t done = 0;
    if (has_argument(c, 1)) {
        const std::string& separator = text_argument(c, 1).bytes;
        if (separator.empty()) fail(c, "'split' at an empty text");
        spend_search(c, text.bytes, separator);
        for (size_t at; !full() && (at = text.bytes.find(separator, done)) != std::string::npos;
             done = at + separator.size())
            add(done, at);
        add(done, text.size());
        return TemplateValue::list(std::move(parts));
    }
    const std::string_view all = text.bytes;
    const std::vector<size_t> begins = characters_of(all);
    const auto skip_space = [&] { done += without_space(all.substr(done), true, false).first; };
    skip_space();
    while (done < all.size()) {
        size_t end = done;
        for (auto next = std::upper_bound(begins.begin(), begins.end(), done); next != begins.end(); ++next) {
            end = *next;
            const std::string_view rest = all.substr(end);
            if (rest.empty() ||
                without_space(rest.substr(0, std::max<size_t>(utf8_sequence(rest), 1)), true, false).first >
                    0)
                break;
        }
        if (full()) {
            add(done, all.size());
            break;
        }
        add(done, end);
        done = end;
        skip_space();
    }
    return TemplateValue::list(std::move(parts));
}

// --- lists

int64_t length_of(const TemplateCall& c) {
    const TemplateValue& value = *c.arguments[0];
    if (value.is_undefined()) return 0;
    if (const MarkedText* text = value.as_text()) return static_cast<int64_t>(utf8_length(text->bytes));
    if (const TemplateList* list = value.as_list()) return static_cast<int64_t>(list->size());
    if (value.as<TemplateValue::Dict>()) return static_cast<int64_t>(value.as_dict()->size());
    fail(c, fmt::format("{} has no length", value.kind()));
}

TemplateValue joined(const TemplateCall& c) {
    const MarkedText between = has_argument(c, 1) ? text_argument(c, 1) : MarkedText();
    MarkedText out;
    bool first = true;
    for (const TemplateValue& element : elements_of(*c.arguments[0], c.work, c.call.line)) {
        const MarkedText text = printed(element, c.call.line);
        c.work.spend(text.size() + between.size(), c.call.line);
        if (!first) out.add(between);
        first = false;
        out.add(text);
    }
    return TemplateValue::text(std::move(out));
}

// [key, value] of each member, or one of the two.
TemplateValue members_of(const TemplateCall& c, bool keys, bool values) {
    const TemplateValue& value = *c.arguments[0];
    if (value.is_undefined()) return TemplateValue::list({});
    if (!value.as<TemplateValue::Dict>()) fail(c, fmt::format("'{}' of {}", c.call.name, value.kind()));
    TemplateList out;
    for (const auto& [key, member] : *value.as_dict()) {
        c.work.spend(2 * element_bytes + key.size(), c.call.line);
        if (keys && values) {
            out.push_back(TemplateValue::list({ours(key), member}));
        } else {
            out.push_back(keys ? ours(key) : member);
        }
    }
    return TemplateValue::list(std::move(out));
}

TemplateValue attribute_of(const TemplateCall& c, const TemplateValue& element) {
    const std::string& name = text_argument(c, 1).bytes;
    if (name.find('.') != std::string::npos)
        fail(c, fmt::format("'{}' of an attribute's attribute", c.call.name));
    const TemplateValue* found = element.find(name);
    return found != nullptr ? *found : TemplateValue::undefined(name);
}

// select, reject and those by an attribute.
TemplateValue chosen(const TemplateCall& c) {
    const std::string_view name = c.call.name;
    const size_t test = name.ends_with("attr") ? 2 : 1;
    const bool wanted = name.starts_with("select");
    TemplateList out;
    for (const TemplateValue& element : elements_of(*c.arguments[0], c.work, c.call.line)) {
        c.work.step(c.call.line);
        const TemplateValue tested = test == 2 ? attribute_of(c, element) : element;
        bool holds = tested.truth();
        if (c.arguments[test]) {
            Expression call;
            call.line = c.call.line;
            call.name = text_argument(c, test).bytes;
            holds = apply_test({call, {tested, c.arguments[test + 1]}, c.work, c.now});
        }
        if (holds == wanted) out.push_back(element);
    }
    return TemplateValue::list(std::move(out));
}

TemplateValue mapped(const TemplateCall& c) {
    TemplateList out;
    for (const TemplateValue& element : elements_of(*c.arguments[0], c.work, c.call.line))
        out.push_back(attribute_of(c, element));
    return TemplateValue::list(std::move(out));
}

TemplateValue at_end(const TemplateCall& c, bool first) {
    const TemplateList all = elements_of(*c.arguments[0], c.work, c.call.line);
    if (all.empty()) return TemplateValue::undefined(c.call.name);
    return first ? all.front() : all.back();
}

TemplateValue numbers(const TemplateCall& c) {
    int64_t start = integer_argument(c, 0, 0), step = integer_argument(c, 2, 1), stop = start;
    if (c.arguments[1]) {
        stop = integer_argument(c, 1, 0);
    } else {
        start = 0;
    }
    if (step == 0) fail(c, "'range' with a step of 0");
    TemplateList out;
    for (int64_t i = start; step > 0 ? i < stop : i > stop;) {
        c.work.spend(element_bytes, c.call.line);
        out.push_back(TemplateValue::integer(i));
        if (__builtin_add_overflow(i, step, &i)) break;
    }
    return TemplateValue::list(std::move(out));
}

TemplateValue date(const TemplateCall& c) {
    const std::string& format = text_argument(c, 0).bytes;
    for (size_t at = 0; (at = format.find('%', at)) != std::string::npos; at += 2)
        if (at + 1 == format.size() ||
            std::string_view("aAbBdHIjmMpSyY%").find(format[at + 1]) == std::string_view::npos)
            fail(c, fmt::format("the date {} is not understood", quoted(format)));
    std::tm parts{};
    ::localtime_r(&c.now, &parts);
    char text[256];
    return ours({text, std::strftime(text, sizeof text, format.c_str(), &parts)});
}

}  // namespace

bool is_template_function(std::string_view name) {
    return find(functions(), name) != nullptr;
}

bool test_takes_argument(std::string_view name) {
    const Signature* signature = find(tests(), name);
    return signature != nullptr && signature->least > 0;
}

void settle_filter(Expression& call) {
    if (call.name == "map" && call.operands.size() > 1)
        throw TemplateError(call.line, "the filter 'map' is understood with 'attribute' alone");
    settle(call, filters(), "filter", 1);
    const size_t test = call.name.ends_with("attr")                      ? 2
                        : call.name == "select" || call.name == "reject" ? 1
                                                                         : 0;
    if (test == 0 || !call.operands[test]) return;
    const MarkedText* name = call.operands[test]->value.as_text();
    const Signature* signature = name == nullptr ? nullptr : find(tests(), name->bytes);
    if (signature == nullptr || (signature->least > 0) != (call.operands[test + 1] != nullptr))
        throw TemplateError(call.line,
                            fmt::format("the test that the filter '{}' makes is not understood", call.name));
}
void settle_test(Expression& call) {
    settle(call, tests(), "test", 1);
}
void settle_method(Expression& call) {
    settle(call, methods(), "method", 1);
}
void settle_function(Expression& call) {
    if (call.name == "namespace" && call.operands.empty()) return;
    settle(call, functions(), "function", 0);
}

TemplateList elements_of(const TemplateValue& value, TemplateWork& work, int line) {
    TemplateList out;
    if (value.is_undefined()) return out;
    if (const TemplateList* list = value.as_list()) {
        work.spend(list->size() * sizeof(TemplateValue), line);
        out = *list;
    } else if (const MarkedText* text = value.as_text()) {
        work.spend(utf8_length(text->bytes) * element_bytes, line);
        const std::vector<size_t> begins = characters_of(text->bytes);
        for (size_t i = 0; i + 1 < begins.size(); ++i)
            out.push_back(TemplateValue::text(text->part(begins[i], begins[i + 1])));
    } else if (value.as<TemplateValue::Dict>()) {
        for (const auto& [key, member] : *value.as_dict()) out.push_back(ours(key));
        work.spend(out.size() * element_bytes, line);
    } else {
        throw TemplateError(line, fmt::format("{} has no elements", value.kind()));
    }
    return out;
}

TemplateValue apply_filter(const TemplateCall& c) {
    const std::string_view name = c.call.name;
    const TemplateValue& value = *c.arguments[0];
    spend_reading(c);
    const auto text = [&] { return printed(value, c.call.line); };
    if (name == "trim") return TemplateValue::text(stripped(c, text(), true, true));
    if (name == "length" || name == "count") return TemplateValue::integer(length_of(c));
    if (name == "upper" || name == "lower" || name == "capitalize" || name == "title")
        return TemplateValue::text(in_case(c, text()));
    if (name == "string") return TemplateValue::text(text());
    if (name == "tojson")
        return TemplateValue::text(
            json_text(value, std::min<int64_t>(integer_argument(c, 1, -1), 16), c.work, c.call.line));
    if (name == "first" || name == "last") return at_end(c, name == "first");
    if (name == "join") return joined(c);
    if (name == "list") return TemplateValue::list(elements_of(value, c.work, c.call.line));
    if (name == "items") return members_of(c, true, true);
    if (name == "replace") return TemplateValue::text(replaced(c, text()));
    if (name == "map") return mapped(c);
    if (name != "default" && name != "d") return chosen(c);
    const bool falls_back =
        value.is_undefined() || (c.arguments[2] && c.arguments[2]->truth() && !value.truth());
    if (!falls_back) return value;
    return c.arguments[1] ? *c.arguments[1] : ours("");
}

bool is_contained(const TemplateCall& c) {
    const TemplateValue &value = *c.arguments[0], &all = *c.arguments[1];
    if (all.is_undefined()) return false;
    if (const MarkedText* text = all.as_text()) {
        spend_search(c, text->bytes, text_argument(c, 0).bytes);
        return text->bytes.find(text_argument(c, 0).bytes) != std::string::npos;
    }
    if (all.as<TemplateValue::Dict>())
        return value.as_text() != nullptr && all.find(value.as_text()->bytes) != nullptr;
    if (all.as_list() == nullptr) fail(c, fmt::format("'in' {}", all.kind()));
    return std::any_of(all.as_list()->begin(), all.as_list()->end(), [&](const TemplateValue& element) {
        return same(element, value, c.work, c.call.line);
    });
}

bool apply_test(const TemplateCall& c) {
    const std::string_view name = c.call.name;
    const TemplateValue& value = *c.arguments[0];
    const bool* flag = value.as<bool>();
    const bool list = value.as_list() != nullptr, text = value.as_text() != nullptr,
               dict = value.as<TemplateValue::Dict>();
    if (name == "defined") return !value.is_undefined();
    if (name == "undefined") return value.is_undefined();
    if (name == "none") return value.as<TemplateValue::None>() != nullptr;
    if (name == "string") return text;
    if (name == "integer") return value.as<int64_t>() != nullptr;
    if (name == "number") return value.as<int64_t>() != nullptr || flag != nullptr;
    if (name == "boolean") return flag != nullptr;
    if (name == "true") return flag != nullptr && *flag;
    if (name == "false") return flag != nullptr && !*flag;
    if (name == "mapping") return dict;
    if (name == "sequence" || name == "iterable") return list || text || dict || value.is_undefined();
    if (name == "odd" || name == "even") return (integer_argument(c, 0, 0) % 2 == 0) == (name == "even");
    if (name == "in") return is_contained(c);
    return same(value, *c.arguments[1], c.work, c.call.line) ==
           (name == "equalto" || name == "eq" || name == "==");
}

TemplateValue call_method(const TemplateCall& c) {
    const std::string_view name = c.call.name;
    if (name == "items") return members_of(c, true, true);
    if (name == "keys") return members_of(c, true, false);
    if (name == "values") return members_of(c, false, true);
    if (name == "get") {
        if (!c.arguments[0]->as<TemplateValue::Dict>())
            fail(c, fmt::format("'get' of {}", c.arguments[0]->kind()));
        const TemplateValue* found = c.arguments[0]->find(text_argument(c, 1).bytes);
        return found != nullptr ? *found : c.arguments[2].value_or(TemplateValue());
    }
    const MarkedText& text = text_argument(c, 0);
    spend_reading(c);
    if (name == "strip") return TemplateValue::text(stripped(c, text, true, true));
    if (name == "lstrip") return TemplateValue::text(stripped(c, text, true, false));
    if (name == "rstrip") return TemplateValue::text(stripped(c, text, false, true));
    if (name == "split") return split(c, text);
    if (name == "startswith")
        return TemplateValue::boolean(text.bytes.starts_with(text_argument(c, 1).bytes));
    if (name == "endswith") return TemplateValue::boolean(text.bytes.ends_with(text_argument(c, 1).bytes));
    if (name == "replace") return TemplateValue::text(replaced(c, text));
    return TemplateValue::text(in_case(c, text));
}

TemplateValue call_function(const TemplateCall& c) {
    const std::string_view name = c.call.name;
    if (name == "range") return numbers(c);
    if (name == "strftime_now") return date(c);
    std::string message = printed(*c.arguments[0], c.call.line).bytes;  // raise_exception
    if (message.size() > longest_message) {
        const std::vector<size_t> begins = characters_of(message);
        message.resize(*std::prev(std::upper_bound(begins.begin(), begins.end(), longest_message)));
    }
    throw TemplateError(0, message);
}

}  // namespace longreach::serve
