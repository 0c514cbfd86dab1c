#include "config/reader.h"

#include <algorithm>
#include <cmath>

#include "base/text.h"
#include "base/units.h"

namespace longreach::config {
namespace {

// A value as a message shows it: "the string "1"", "true", "a list".
std::string in_words(const json::Value& value) {
    switch (value.kind()) {
        case json::Kind::integer:
            return "the integer " + json::write(value, json::Style::compact);
        case json::Kind::real:
            return "the real number " + json::write(value, json::Style::compact);
        case json::Kind::string:
            return "the string " + quoted(value.as_string(), 40);
        case json::Kind::array:
            return "a list";
        case json::Kind::object:
            return "an object";
        default:
            return json::write(value, json::Style::compact);
    }
}

}  // namespace

json::Array split_list(const json::Value& value) {
    const std::string* text = value.to_string();
    if (text == nullptr) return {value};
    std::string_view rest = *text;
    if (rest.starts_with('[') && rest.ends_with(']')) rest = rest.substr(1, rest.size() - 2);
    json::Array out;
    while (true) {
        const size_t comma = rest.find(',');
        json::Value part(std::string(rest.substr(0, comma)));
        part.set_position(value.at());
        out.push_back(std::move(part));
        if (comma == std::string_view::npos) return out;
        rest.remove_prefix(comma + 1);
        rest.remove_prefix(std::min(rest.find_first_not_of(' '), rest.size()));
    }
}

Reader::Reader(const Document& document, const FieldInfo& table, ProblemList& problems)
    : document_(document), table_(table), problems_(problems), frame_{nullptr, "", {}} {}

void Reader::read(const Body& body) {
    read_object(document_.root(), "", body);
}

const json::Value* Reader::take(std::string_view name) {
    frame_.known.emplace_back(name);
    return frame_.object->find(name);
}

void Reader::refuse(const std::string& path, const json::Value& value, std::string message) {
    problems_.add({path, value.at(), std::move(message)});
}

void Reader::wrong_type(const std::string& path, const json::Value& value, std::string_view expected) {
    std::string message = fmt::format("expected {}, got {}", expected, in_words(value));
    const auto number = value.to_number();
    const bool whole =
        value.kind() == json::Kind::real && *number == std::floor(*number) && std::abs(*number) < 0x1p53;
    if (expected == "an integer" && whole)
        message += fmt::format(": write {}", static_cast<int64_t>(*number));
    if (expected == "a string" && document_.from_command_line(value.at()) && !value.is_array() &&
        !value.is_object())
        message += fmt::format(": write --set '{}=\"{}\"'", path, json::write(value, json::Style::compact));
    refuse(path, value, std::move(message));
}

void Reader::flag(std::string_view name, bool& value, Doc) {
    const json::Value* written = take(name);
    if (written == nullptr) return;
    if (const auto b = written->to_bool()) {
        value = *b;
    } else {
        wrong_type(path_of(name), *written, "true or false");
    }
}

bool Reader::read_integer(const std::string& path, const json::Value& value, const IntegerRange& range,
                          int64_t& into) {
    std::optional<int64_t> i = value.to_int64();
    if (const std::string* text = value.to_string(); text != nullptr && range.tokens) {
        // Digits alone are a quoted integer, except from a command line, which cannot write them otherwise.
        const bool digits = text->find_first_not_of("0123456789") == std::string::npos;
        if (!digits || document_.from_command_line(value.at())) i = parse_token_count(*text);
    }
    if (value.kind() != json::Kind::integer && !i) {
        wrong_type(path, value,
                   range.tokens && value.is_string() ? "an integer or a count like \"2K\"" : "an integer");
        return false;
    }
    if (!i || !contains(range, *i)) {
        const std::string bounds = range.max == std::numeric_limits<int64_t>::max() && !i
                                       ? fmt::format("at most {}", range.max)
                                       : range_text(range);
        refuse(path, value,
               fmt::format("must be {}, got {}", bounds, json::write(value, json::Style::compact)));
        return false;
    }
    into = *i;
    return true;
}

void Reader::integer(std::string_view name, int64_t& value, IntegerRange range, Doc) {
    if (const json::Value* written = take(name)) read_integer(path_of(name), *written, range, value);
}

void Reader::number(std::string_view name, double& value, NumberRange range, Doc) {
    const json::Value* written = take(name);
    if (written == nullptr) return;
    const auto number = written->to_number();
    if (!number) {
        wrong_type(path_of(name), *written, "a number");
    } else if (!contains(range, *number)) {
        refuse(path_of(name), *written, fmt::format("must be {}, got {}", range_text(range), *number));
    } else {
        value = *number;
    }
}

void Reader::text(std::string_view name, std::string& value, Doc) {
    const json::Value* written = take(name);
    if (written == nullptr) return;
    if (const std::string* string = written->to_string()) {
        value = *string;
    } else {
        wrong_type(path_of(name), *written, "a string");
    }
}

void Reader::texts(std::string_view name, std::vector<std::string>& value, Doc) {
    const json::Value* written = take(name);
    if (written == nullptr) return;
    const std::string path = path_of(name);
    if (const std::string* one = written->to_string()) {
        value = {*one};
        return;
    }
    if (!written->is_array()) return wrong_type(path, *written, "a list of strings");
    std::vector<std::string> read;
    for (const json::Value& element : written->as_array()) {
        if (const std::string* string = element.to_string()) {
            read.push_back(*string);
        } else {
            wrong_type(field_path(path, std::to_string(read.size())), element, "a string");
            return;
        }
    }
    value = std::move(read);
}

void Reader::integers(std::string_view name, std::vector<int64_t>& value, IntegerRange range, Doc) {
    const json::Value* written = take(name);
    if (written == nullptr) return;
    const std::string path = path_of(name);
    const bool split = !written->is_array() && !written->is_object() && range.tokens &&
                       document_.from_command_line(written->at());
    if (!written->is_array() && !split) return wrong_type(path, *written, "a list of integers");
    const json::Array elements = split ? split_list(*written) : written->as_array();
    std::vector<int64_t> read(elements.size());
    bool ok = true;
    for (size_t i = 0; i < elements.size(); ++i)
        ok = read_integer(field_path(path, std::to_string(i)), elements[i], range, read[i]) && ok;
    if (ok) value = std::move(read);
}

void Reader::any(std::string_view name, json::Value& value, Doc) {
    if (const json::Value* written = take(name)) value = *written;
}

void Reader::choice_value(std::string_view name, int& value, const std::vector<Named<int>>& names, Doc) {
    const json::Value* written = take(name);
    if (written == nullptr) return;
    const std::string* word = written->to_string();
    for (const Named<int>& choice : names)
        if (word != nullptr && *word == choice.name) {
            value = choice.value;
            return;
        }
    std::vector<std::string> allowed;
    for (const Named<int>& choice : names) allowed.emplace_back(choice.name);
    if (word != nullptr) {
        // Nearest first, the rest in the order of the list.
        std::vector<std::string> ordered = nearest(*word, allowed, allowed.size());
        for (const std::string& one : allowed)
            if (std::find(ordered.begin(), ordered.end(), one) == ordered.end()) ordered.push_back(one);
        allowed = std::move(ordered);
    }
    const std::vector<std::string> meant =
        word != nullptr ? nearest(*word, allowed, 1) : std::vector<std::string>();
    refuse(path_of(name), *written,
           fmt::format("expected {}, got {}{}", alternatives(allowed), in_words(*written),
                       meant.empty() ? "" : fmt::format(": did you mean {}?", meant.front())));
}

void Reader::section_value(std::string_view name, const Body& body, Doc) {
    const json::Value* written = take(name);
    if (written == nullptr) return;
    if (!written->is_object()) return wrong_type(path_of(name), *written, "an object");
    read_object(*written, path_of(name), body);
}

void Reader::list_value(std::string_view name, size_t, const std::function<void(size_t)>& resize,
                        const std::function<void(size_t, Fields&)>& element, Doc) {
    const json::Value* written = take(name);
    if (written == nullptr) return;
    const std::string path = path_of(name);
    if (!written->is_array()) return wrong_type(path, *written, "a list of objects");
    const json::Array& elements = written->as_array();
    resize(0);  // so that no element starts from what the default list holds
    resize(elements.size());
    for (size_t i = 0; i < elements.size(); ++i) {
        const std::string at = field_path(path, std::to_string(i));
        if (elements[i].is_object()) {
            read_object(elements[i], at, [&](Fields& f) { element(i, f); });
        } else {
            wrong_type(at, elements[i], "an object");
        }
    }
}

void Reader::variations_value(std::string_view name, const std::vector<std::string>& present,
                              const std::function<void(const std::string&, Fields&)>& element,
                              const std::function<void(const std::string&)>& add, Doc doc) {
    // Entries present before reading come with the variation that these are part of,
    // and what is written of one of them changes it.
    const json::Value* written = take(name);
    if (written == nullptr) return;
    const std::string path = path_of(name);
    if (!written->is_object()) return wrong_type(path, *written, "an object of named variations");
    for (const json::Member& member : written->as_object()) {
        const std::string at = field_path(path, member.key);
        if (!is_plain_name(member.key)) {
            problems_.add({at, member.at, "a name is made of letters, digits, '_' and '-'"});
        } else if (!member.value.is_object() && doc.main.empty()) {
            wrong_type(at, member.value, "an object");
        } else {
            if (std::find(present.begin(), present.end(), member.key) == present.end()) add(member.key);
            const json::Value alone =
                member.value.is_object()
                    ? json::Value()
                    : json::Value::object({{std::string(doc.main), member.value, member.at}});
            read_object(member.value.is_object() ? member.value : alone, at,
                        [&](Fields& f) { element(member.key, f); });
        }
    }
}

void Reader::read_object(const json::Value& object, std::string path, const Body& body) {
    Frame outer = std::exchange(frame_, {&object, std::move(path), {}});
    body(*this);
    for (const json::Member& member : object.as_object())
        if (std::find(frame_.known.begin(), frame_.known.end(), member.key) == frame_.known.end())
            report_unknown(member);
    frame_ = std::move(outer);
}

void Reader::report_unknown(const json::Member& member) {
    std::string message = "unknown key";
    const std::string full = frame_.path.empty() ? member.key : frame_.path + "." + member.key;
    std::vector<std::string> meant;
    for (const std::string& name : meant_names(*find_field(table_, frame_.path), member.key))
        meant.push_back(field_path(frame_.path, name));
    for (std::string& other : paths_named(table_, member.key, full, 3)) meant.push_back(std::move(other));
    if (member.key.find('.') != std::string::npos && find_field(table_, full) != nullptr) {
        message += ": dotted paths are for --set; in a file, write one object inside the other";
    } else if (!meant.empty()) {
        message += fmt::format(": did you mean {}?", alternatives(meant));
    } else if (frame_.known.size() <= 12) {
        message += fmt::format(": known here are {}", join(frame_.known, ", "));
    }
    problems_.add({field_path(frame_.path, member.key), member.at, std::move(message)});
}

}  // namespace longreach::config
