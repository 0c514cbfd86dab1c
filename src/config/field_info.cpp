#include "config/field_info.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "base/text.h"
#include "base/units.h"

namespace longreach::config {
namespace {

using Kind = FieldInfo::Kind;

class Describer final : public Fields {
  public:
    explicit Describer(FieldInfo& into) : into_(into) {}

    void flag(std::string_view name, bool& value, Doc doc) override {
        add(Kind::flag, name, doc).value = json::Value(value);
    }

    void integer(std::string_view name, int64_t& value, IntegerRange range, Doc doc) override {
        FieldInfo& field = add(Kind::integer, name, doc);
        field.integer_range = range;
        check_value(field, contains(range, value), value);
        field.value = value;
    }

    void number(std::string_view name, double& value, NumberRange range, Doc doc) override {
        FieldInfo& field = add(Kind::number, name, doc);
        field.number_range = range;
        check_value(field, std::isfinite(value) && contains(range, value), value);
        field.value = value;
    }

    void text(std::string_view name, std::string& value, Doc doc) override {
        FieldInfo& field = add(Kind::text, name, doc);
        check_text(field, value);
        field.value = value;
    }

    void texts(std::string_view name, std::vector<std::string>& value, Doc doc) override {
        FieldInfo& field = add(Kind::texts, name, doc);
        field.value = json::Value::array();
        for (const std::string& element : value) {
            check_text(field, element);
            field.value.push(element);
        }
    }

    void integers(std::string_view name, std::vector<int64_t>& value, IntegerRange range, Doc doc) override {
        FieldInfo& field = add(Kind::integers, name, doc);
        field.integer_range = range;
        field.value = json::Value::array();
        for (const int64_t element : value) {
            check_value(field, contains(range, element), element);
            field.value.push(element);
        }
    }

    void any(std::string_view name, json::Value& value, Doc doc) override {
        add(Kind::any, name, doc).value = value;
    }

  protected:
    void choice_value(std::string_view name, int& value, const std::vector<Named<int>>& names,
                      Doc doc) override {
        FieldInfo& field = add(Kind::choice, name, doc);
        for (const Named<int>& choice : names) {
            field.choices.push_back(
                {std::string(choice.name), std::string(choice.help), choice.words, choice.sources});
            if (choice.value == value) field.value = choice.name;
        }
        check_value(field, field.value.is_string(), value);
    }

    void section_value(std::string_view name, const Body& body, Doc doc) override {
        visit(add(Kind::section, name, doc), body);
    }

    void list_value(std::string_view name, size_t size, const std::function<void(size_t)>&,
                    const std::function<void(size_t, Fields&)>& element, Doc doc) override {
        FieldInfo& list = add(Kind::list, name, doc);
        describe_entry(list, [&](Fields& f) { element(size, f); });
        for (size_t i = 0; i < size; ++i)
            visit(add_element(list, std::to_string(i)), [&](Fields& f) { element(i, f); });
    }

    void variations_value(std::string_view name, const std::vector<std::string>& present,
                          const std::function<void(const std::string&, Fields&)>& element,
                          const std::function<void(const std::string&)>&, Doc doc) override {
        FieldInfo& variations = add(Kind::variations, name, doc);
        describe_entry(variations, [&](Fields& f) { element("", f); });
        for (const std::string& key : present)
            visit(add_element(variations, key), [&](Fields& f) { element(key, f); });
    }

  private:
    FieldInfo& add(Kind kind, std::string_view name, Doc doc) {
        if (!is_plain_name(name)) check(false, "config field name {} is not plain", quoted(name));
        for (const FieldInfo& field : into_.fields)
            check(field.name != name, "config field {} is listed twice", field.path);
        FieldInfo& field = into_.fields.emplace_back();
        field.kind = kind;
        field.name = name;
        field.path = field_path(into_.path, name);
        field.help = doc.help;
        field.resumable = doc.resumable || into_.resumable;
        field.acts = doc.acts;
        field.words = doc.words;
        field.sources = doc.sources;
        field.of_library = doc.of_library;
        field.also = doc.also;
        field.main = doc.main;
        return field;
    }

    static FieldInfo& add_element(FieldInfo& parent, std::string name) {
        FieldInfo& element = parent.elements.emplace_back();
        element.path = field_path(parent.path, name);
        element.name = std::move(name);
        element.help = parent.help;
        element.resumable = parent.resumable;
        return element;
    }

    static void visit(FieldInfo& section, const Body& body) {
        Describer inner(section);
        body(inner);
    }

    // The fields of one entry, under the path "parent.*".
    static void describe_entry(FieldInfo& parent, const Body& body) {
        FieldInfo entry;
        entry.path = parent.path + ".*";
        entry.resumable = parent.resumable;
        visit(entry, body);
        parent.fields = std::move(entry.fields);
    }

    template <class T>
    static void check_value(const FieldInfo& field, bool ok, const T& value) {
        check(ok, "config field {} holds {}, which its own field list refuses", field.path, value);
    }

    static void check_text(const FieldInfo& field, const std::string& value) {
        if (!is_utf8(value)) check_value(field, false, longreach::quoted(value));
    }

    FieldInfo& into_;
};

// "[low] and [high]" from the two halves that are not empty.
std::string both(std::string low, const std::string& high) {
    if (!low.empty() && !high.empty()) low += " and ";
    return low + high;
}

void collect_named(const FieldInfo& info, std::string_view name, std::vector<std::string>& out) {
    for (const FieldInfo& field : info.fields) {
        if (field.name == name) out.push_back(field.path);
        collect_named(field, name, out);
    }
}

void collect_paths(const FieldInfo& info, std::vector<std::string>& out) {
    for (const FieldInfo& field : info.fields) {
        if (holds_value(field)) {
            out.push_back(field.path);
        } else {
            collect_paths(field, out);
        }
    }
}

}  // namespace

FieldInfo describe_fields(const Fields::Body& body) {
    FieldInfo root;
    Describer describer(root);
    body(describer);
    return root;
}

json::Value to_json(const FieldInfo& info) {
    switch (info.kind) {
        case Kind::section: {
            json::Object object;
            for (const FieldInfo& field : info.fields) object.push_back({field.name, to_json(field)});
            return object;
        }
        case Kind::list: {
            json::Array array;
            for (const FieldInfo& element : info.elements) array.push_back(to_json(element));
            return array;
        }
        case Kind::variations: {
            json::Object object;
            for (const FieldInfo& element : info.elements) object.push_back({element.name, to_json(element)});
            return object;
        }
        default:
            return info.value;
    }
}

bool is_off(const FieldInfo& field) {
    const json::Value& value = field.value;
    if (value.is_null() || value == json::Value(false)) return true;
    if (const std::string* text = value.to_string()) return text->empty() || *text == "none";
    const std::optional<double> number = value.to_number();
    if (!number || *number > 0) return false;
    return *number == (field.kind == Kind::integer ? static_cast<double>(field.integer_range.min)
                                                   : field.number_range.min);
}

namespace {
const FieldInfo::Choice* chosen(const FieldInfo& field) {
    for (const FieldInfo::Choice& choice : field.choices)
        if (field.value == json::Value(choice.name)) return &choice;
    return nullptr;
}
}  // namespace

std::string words_of(const FieldInfo& field) {
    if (const FieldInfo::Choice* choice = chosen(field); choice != nullptr && !choice->words.empty())
        return std::string(choice->words);
    if (field.words.empty() || is_off(field)) return {};
    const std::optional<int64_t> whole = field.value.to_int64();
    const std::string value = whole ? grouped(*whole) : json::write(field.value, json::Style::compact);
    return fmt::format(fmt::runtime(field.words), value);
}

std::string sources_of(const FieldInfo& field) {
    const FieldInfo::Choice* choice = chosen(field);
    std::string out(choice != nullptr ? choice->sources : "");
    if (field.sources.empty() || is_off(field)) return out;
    return out.empty() ? std::string(field.sources) : out + " " + std::string(field.sources);
}

const FieldInfo* held_field(const FieldInfo& root, std::string_view path) {
    const FieldInfo* at = &root;
    for (const std::string_view part : split_path(path)) {
        const auto& below = at->kind == Kind::section ? at->fields : at->elements;
        const auto next =
            std::find_if(below.begin(), below.end(), [&](auto& field) { return field.name == part; });
        if (next == below.end()) return nullptr;
        at = &*next;
    }
    return at;
}

const FieldInfo* find_field(const FieldInfo& root, std::string_view path) {
    const FieldInfo* at = &root;
    if (path.empty()) return at;
    bool entry = false;  // `at` is an entry of a list or of variations
    for (const std::string_view part : split_path(path)) {
        const bool container = at->kind == Kind::list || at->kind == Kind::variations;
        if (container && !entry) {
            const bool index =
                std::all_of(part.begin(), part.end(), [](char c) { return c >= '0' && c <= '9'; });
            if (part != "*" && !(at->kind == Kind::list ? index && !part.empty() : is_plain_name(part)))
                return nullptr;
            entry = true;
            continue;
        }
        const FieldInfo* next = nullptr;
        for (const FieldInfo& field : at->fields)
            if (field.name == part) next = &field;
        if (next == nullptr) return nullptr;
        at = next;
        entry = false;
    }
    return at;
}

bool holds_value(const FieldInfo& info) {
    return info.kind != Kind::section && info.kind != Kind::list && info.kind != Kind::variations;
}

std::vector<std::string> paths_named(const FieldInfo& root, std::string_view name, std::string_view from,
                                     size_t count) {
    std::vector<std::string> out;
    collect_named(root, name, out);
    const auto shared_sections = [&](std::string_view path) {
        const auto end = std::mismatch(path.begin(), path.end(), from.begin(), from.end()).first;
        return std::count(path.begin(), end, '.');
    };
    const auto rank = [&](const std::string& path) {
        return std::pair(-shared_sections(path), std::count(path.begin(), path.end(), '.'));
    };
    std::stable_sort(out.begin(), out.end(),
                     [&](const std::string& a, const std::string& b) { return rank(a) < rank(b); });
    out.resize(std::min(out.size(), count));
    return out;
}

std::vector<std::string> meant_names(const FieldInfo& section, std::string_view name) {
    std::vector<std::string> out, all;
    for (const FieldInfo& field : section.fields) {
        all.push_back(field.name);
        if (!name.empty() &&
            fmt::format(" {} ", field.also).find(fmt::format(" {} ", name)) != std::string::npos)
            out.push_back(field.name);
    }
    for (const std::string& near : nearest(name, all, 2))
        if (std::find(out.begin(), out.end(), near) == out.end()) out.push_back(near);
    return out;
}

std::vector<std::string> all_paths(const FieldInfo& root) {
    std::vector<std::string> out;
    collect_paths(root, out);
    return out;
}

std::string range_text(const IntegerRange& range) {
    const bool low = range.min != std::numeric_limits<int64_t>::min();
    const bool high = range.max != std::numeric_limits<int64_t>::max();
    if (low && high) return fmt::format("{} to {}", range.min, range.max);
    if (low) return fmt::format("at least {}", range.min);
    return high ? fmt::format("at most {}", range.max) : "";
}

std::string range_text(const NumberRange& range) {
    const bool low = std::isfinite(range.min), high = std::isfinite(range.max);
    if (low && high && !range.open_min && !range.open_max)
        return fmt::format("{} to {}", range.min, range.max);
    return both(low ? fmt::format("{} {}", range.open_min ? "above" : "at least", range.min) : "",
                high ? fmt::format("{} {}", range.open_max ? "below" : "at most", range.max) : "");
}

bool contains(const IntegerRange& range, int64_t value) {
    return value >= range.min && value <= range.max;
}

bool contains(const NumberRange& range, double value) {
    return (range.open_min ? value > range.min : value >= range.min) &&
           (range.open_max ? value < range.max : value <= range.max);
}

std::string_view type_name(Kind kind) {
    switch (kind) {
        case Kind::flag:
            return "true or false";
        case Kind::integer:
            return "integer";
        case Kind::number:
            return "number";
        case Kind::text:
            return "string";
        case Kind::texts:
            return "list of strings";
        case Kind::integers:
            return "list of integers";
        case Kind::choice:
            return "one of";
        case Kind::any:
            return "any value";
        case Kind::section:
            return "section";
        case Kind::list:
            return "list of sections";
        case Kind::variations:
            return "named variations";
    }
    return "";
}

bool is_plain_name(std::string_view name) {
    return !name.empty() && std::all_of(name.begin(), name.end(), [](char c) {
        return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
               c == '-';
    });
}

std::string field_path(std::string_view path, std::string_view name) {
    const std::string last = is_plain_name(name) ? std::string(name) : quoted(name, 40);
    return path.empty() ? last : fmt::format("{}.{}", path, last);
}

std::vector<std::string_view> split_path(std::string_view path) {
    std::vector<std::string_view> parts;
    while (true) {
        const size_t dot = path.find('.');
        parts.push_back(path.substr(0, dot));
        if (dot == std::string_view::npos) return parts;
        path.remove_prefix(dot + 1);
    }
}

}  // namespace longreach::config
