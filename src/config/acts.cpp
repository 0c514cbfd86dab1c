#include "config/acts.h"

#include <algorithm>

#include <fmt/format.h>

#include "base/text.h"

namespace longreach::config {
namespace {

using Kind = FieldInfo::Kind;

std::vector<std::string> split(std::string_view words) {
    std::vector<std::string> out;
    while (true) {
        const size_t space = words.find(' ');
        out.emplace_back(words.substr(0, space));
        if (space == std::string_view::npos) return out;
        words.remove_prefix(space + 1);
    }
}

std::string value_text(const json::Value& value) {
    const std::string* text = value.to_string();
    return text != nullptr ? *text : json::write(value, json::Style::compact);
}

const FieldInfo* other_field(const FieldInfo& root, const FieldInfo& section, std::string_view name) {
    if (name.find('.') != std::string_view::npos) return find_field(root, name);
    for (const FieldInfo& field : section.fields)
        if (field.name == name) return &field;
    return nullptr;
}

// The last two names of a path.
std::string_view short_path(std::string_view path) {
    const size_t last = path.rfind('.');
    if (last == std::string_view::npos || last == 0) return path;
    const size_t before = path.rfind('.', last - 1);
    return before == std::string_view::npos ? path : path.substr(before + 1);
}

std::string reason(const FieldInfo& other, const Acts& acts) {
    const std::string value = value_text(other.value);
    const bool absent = value == "none" || value == "0";
    if (acts.among && !absent)
        return fmt::format("{} is not {}", short_path(other.path), alternatives(split(acts.words)));
    return fmt::format("{} is {}", short_path(other.path), value.empty() ? "empty" : value);
}

void report(const FieldInfo& field, const std::string& why, const FieldInfo& other, Problems& problems) {
    if (holds_value(field)) return problems.no_effect(field.path, why, other.path);
    for (const FieldInfo& inner : field.fields) report(inner, why, other, problems);
}

void walk(const FieldInfo& root, const FieldInfo& section, Problems& problems) {
    for (const FieldInfo& field : section.fields) {
        if (const FieldInfo* other = silencer(root, section, field))
            report(field, reason(*other, field.acts), *other, problems);
        else if (field.kind == Kind::section)
            walk(root, field, problems);
        for (const FieldInfo& element : field.elements) walk(root, element, problems);
    }
}

using Skipped = std::function<bool(const std::string& path)>;
using Visit = std::function<void(const FieldInfo& field, const std::string& path)>;

void visit_acting(const FieldInfo& root, const FieldInfo& section, const std::string& path,
                  const Skipped& skipped, const Visit& visit) {
    for (const FieldInfo& field : section.fields) {
        const std::string own = path + "." + field.name;
        if (skipped(own) || silencer(root, section, field) != nullptr) continue;
        if (holds_value(field)) visit(field, own);
        if (field.kind == Kind::section) visit_acting(root, field, own, skipped, visit);
    }
}

}  // namespace

void for_each_acting(const FieldInfo& root, const FieldInfo& section, const Skipped& skipped,
                     const Visit& visit) {
    visit_acting(root, section, "", skipped, visit);
}

const FieldInfo* silencer(const FieldInfo& root, const FieldInfo& section, const FieldInfo& field) {
    if (field.acts.field.empty()) return nullptr;
    const FieldInfo* other = other_field(root, section, field.acts.field);
    if (other == nullptr) return nullptr;  // a part of the config is looked at alone
    const std::vector<std::string> words = split(field.acts.words);
    const bool holds = std::find(words.begin(), words.end(), value_text(other->value)) != words.end();
    return holds == field.acts.among ? nullptr : other;
}

void check_acts(const FieldInfo& root, Problems& problems) {
    walk(root, root, problems);
}

std::string acts_text(const Acts& acts) {
    const std::string words = alternatives(split(acts.words));
    return fmt::format("{} is {}{}", acts.field, acts.among ? "" : "not ", words.empty() ? "empty" : words);
}

}  // namespace longreach::config
