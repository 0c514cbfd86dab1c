#include "config/help.h"

#include <algorithm>

#include "base/text.h"
#include "config/acts.h"

namespace longreach::config {
namespace {

using Kind = FieldInfo::Kind;

std::string default_text(const FieldInfo& info) {
    if (info.kind == Kind::choice) return info.value.as_string();
    return json::write(to_json(info), json::Style::compact);
}

std::string range_of(const FieldInfo& info) {
    if (info.kind == Kind::number) return range_text(info.number_range);
    if (info.kind == Kind::integer) return range_text(info.integer_range);
    if (info.kind == Kind::integers && !range_text(info.integer_range).empty())
        return "each " + range_text(info.integer_range);
    return "";
}

std::vector<std::string> choice_names(const FieldInfo& info) {
    std::vector<std::string> words;
    for (const auto& choice : info.choices) words.push_back(choice.name);
    return words;
}

// "integer, 1 to 64", "one of rms, layer", "section".
std::string type_of(const FieldInfo& info) {
    std::string out(type_name(info.kind));
    if (info.kind == Kind::choice) out += fmt::format(" {}", join(choice_names(info), ", "));
    if (const std::string range = range_of(info); !range.empty()) out += fmt::format(", {}", range);
    if (info.integer_range.tokens) out += ", like 4096 or \"4K\"";
    return out;
}

// Two columns of text, the first as wide as its longest entry.
std::string two_columns(const std::vector<std::pair<std::string, std::string>>& rows) {
    size_t width = 0;
    for (const auto& row : rows) width = std::max(width, row.first.size());
    std::string out;
    for (const auto& [left, right] : rows) {
        out += right.empty() ? fmt::format("    {}\n", left)
                             : fmt::format("    {:<{}}  {}\n", left, width, right);
    }
    return out;
}

// The help of a field and where it acts.
std::string help_of(const FieldInfo& info) {
    if (info.acts.field.empty()) return info.help;
    return fmt::format("{}; acts where {}", info.help, acts_text(info.acts));
}

[[noreturn]] void refuse_path(const FieldInfo& config, std::string_view path) {
    // The longest part of the path that exists, and the first name after it that does not.
    std::string_view known = path;
    std::string_view wrong;
    while (find_field(config, known) == nullptr) {
        const size_t dot = known.rfind('.');
        wrong = dot == std::string_view::npos ? known : known.substr(dot + 1);
        known = dot == std::string_view::npos ? "" : known.substr(0, dot);
    }
    std::vector<std::string> meant;
    for (const std::string& name : meant_names(*find_field(config, known), wrong))
        meant.push_back(field_path(known, name));
    for (std::string& other : paths_named(config, wrong, path, 3))
        if (meant.size() < 4) meant.push_back(std::move(other));
    throw Error(ExitCode::usage,
                fmt::format("there is no config key {}{}", shown(path),
                            meant.empty() ? "" : fmt::format(": did you mean {}?", alternatives(meant))),
                "longreach config explain");
}

// Text in a table cell, safe from Markdown.
std::string cell(std::string_view text) {
    std::string out;
    for (const char c : text) {
        if (c == '<') {
            out += "&lt;";
        } else {
            if (c == '|' || c == '*' || c == '_' || c == '\\' || c == '[') out += '\\';
            out += c;
        }
    }
    return out;
}

std::string sentence(std::string text) {
    if (text[0] >= 'a' && text[0] <= 'z') text[0] = static_cast<char>(text[0] - 'a' + 'A');
    return text;
}

std::string code(std::string_view text) {
    return text.empty() ? "" : fmt::format("`{}`", text);
}

void reference_section(const FieldInfo& section, std::string& out) {
    if (!section.path.empty()) {
        out += fmt::format("## {}\n\n", code(section.path));
        if (!section.help.empty()) out += cell(sentence(help_of(section))) + ".\n\n";
        if (section.kind == Kind::list)
            out += fmt::format("A list; `{}.0` is its first entry.\n\n", section.path);
        if (section.kind == Kind::variations)
            out += "An object of named entries, each an object that holds only what differs.\n\n";
    }
    const bool leaves =
        std::any_of(section.fields.begin(), section.fields.end(), [](auto& f) { return holds_value(f); });
    if (leaves) {
        out += "| key | type | default | on resume | meaning |\n|---|---|---|---|---|\n";
        for (const FieldInfo& field : section.fields) {
            if (!holds_value(field)) continue;
            out += fmt::format("| {} | {} | {} | {} | {} |\n", code(field.name), cell(type_of(field)),
                               code(default_text(field)), field.resumable ? "may change" : "fixed",
                               cell(help_of(field)));
        }
        out += '\n';
    }
    for (const FieldInfo& field : section.fields) {
        const auto& choices = field.choices;
        if (std::all_of(choices.begin(), choices.end(), [](auto& choice) { return choice.help.empty(); }))
            continue;
        out += code(field.name) + ":\n";
        for (const auto& choice : choices)
            out += fmt::format("- {}{}{}\n", code(choice.name), choice.help.empty() ? "" : ": ",
                               cell(choice.help));
        out += '\n';
    }
    for (const FieldInfo& field : section.fields)
        if (!holds_value(field)) reference_section(field, out);
}

}  // namespace

std::string explain(const FieldInfo& config, std::string_view path) {
    const FieldInfo* found = find_field(config, path);
    if (found == nullptr) refuse_path(config, path);
    const FieldInfo& info = *found;
    std::string out = info.path.empty() ? "" : info.path + "\n";
    if (!info.help.empty()) out += fmt::format("    {}\n", help_of(info));
    if (!holds_value(info)) {
        if (info.kind != Kind::section) out += fmt::format("    {}; each entry holds:\n", type_of(info));
        std::vector<std::pair<std::string, std::string>> rows;
        for (const FieldInfo& field : info.fields) rows.emplace_back(field.name, help_of(field));
        return out + two_columns(rows);
    }
    out += fmt::format("    {}; default {}\n", type_of(info), default_text(info));
    out += info.resumable ? "    may change when a run resumes\n" : "    fixed once a run has begun\n";
    std::vector<std::pair<std::string, std::string>> rows;
    for (const auto& choice : info.choices)
        if (!choice.help.empty()) rows.emplace_back(choice.name, choice.help);
    return out + two_columns(rows);
}

std::string reference_page(const FieldInfo& config, std::string_view title) {
    std::string out = fmt::format(
        "# {}\n\n"
        "Written by the program from its own field list. A config is one JSON object; it may hold `//` "
        "comments and a comma after a last element.\n"
        "Every key may be left out. `\"base\": \"other.json\"` (or a list) builds on other files: objects "
        "are merged,\n"
        "anything else is replaced. `--set a.b=c` overrides one key; `--set stages.0.steps=10` reaches into "
        "a list.\n"
        "`\"resolved\": true` marks a config the program wrote: its values do not count as chosen by hand, "
        "so a value\n"
        "without effect is not an error there.\n\n",
        title);
    reference_section(config, out);
    while (out.ends_with("\n\n")) out.pop_back();
    return out;
}

}  // namespace longreach::config
