// A config struct's field list as plain data: what every printer (show, schema, explain,
// reference, diff) works on.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "config/fields.h"

namespace longreach::config {

struct FieldInfo {
    enum class Kind { flag, integer, number, text, texts, integers, choice, any, section, list, variations };
    struct Choice {
        std::string name, help;
        std::string_view words = {}, sources = {};
    };

    Kind kind = Kind::section;
    std::string name;  // last part of the path; "" for the whole config
    std::string path;  // "model.attention.window"; "*" matches any list index or variation name
    std::string help;
    bool resumable = false;  // the field, or a section around it, may differ when a run resumes
    Acts acts;
    std::string_view words, sources, also, main;  // as in Doc
    bool of_library = false;

    json::Value value;            // the value, unless the field is a section, list or variations
    IntegerRange integer_range;   // integer, integers
    NumberRange number_range;     // number
    std::vector<Choice> choices;  // choice
    std::vector<FieldInfo>
        fields;  // section: its fields; list, variations: the fields of one entry at its defaults
    std::vector<FieldInfo> elements;  // list, variations: the entries held, each a section
};

// The field list of what `body` visits, with the values it holds. A field list that breaks the contract of
// fields.h (a name twice, a default outside its range) is a bug and throws ExitCode::internal.
FieldInfo describe_fields(const Fields::Body& body);

template <class S>
FieldInfo describe(S config = {}) {
    return describe_fields([&](Fields& f) { config.fields(f); });
}

// The values held, every field, in the order of the list.
json::Value to_json(const FieldInfo& info);

// True if the value leaves out what the field stands for: false, null, "", none, or a least value of 0 or -1.
bool is_off(const FieldInfo& field);

// Of the value held: its words for a methods paragraph, and keys of configs/references.bib with spaces between.
std::string words_of(const FieldInfo& field);
std::string sources_of(const FieldInfo& field);

// The field at `path` among the values held, or null.
const FieldInfo* held_field(const FieldInfo& root, std::string_view path);

// The entry at `path` ("" is the whole config), or null. Under a list or variations, "*", any index and any
// variation name find the description of one entry.
const FieldInfo* find_field(const FieldInfo& root, std::string_view path);

// True for a field with a value of its own: not a section, list or variations.
bool holds_value(const FieldInfo& info);

// Paths of everything whose last name is `name`, at most `count`: those in the same sections as `from` first, then
// those in fewer sections.
std::vector<std::string> paths_named(const FieldInfo& root, std::string_view name, std::string_view from,
                                     size_t count);

// Names of the fields of `section` that an unknown `name` may stand for: those that say so in `also`, then the nearest.
std::vector<std::string> meant_names(const FieldInfo& section, std::string_view name);

// Paths of all fields that hold a value, in order; "stages.*.steps" for the entries of lists and variations.
std::vector<std::string> all_paths(const FieldInfo& root);

// "at least 1", "0 to 1", "above 0 and at most 8"; "" if unbounded.
std::string range_text(const IntegerRange& range);
std::string range_text(const NumberRange& range);
bool contains(const IntegerRange& range, int64_t value);
bool contains(const NumberRange& range, double value);

// "integer", "list of strings", ...
std::string_view type_name(FieldInfo::Kind kind);

// True for a name that is allowed in a dotted path: letters, digits, '_' and '-'.
bool is_plain_name(std::string_view name);

// "a.b" and "c" make "a.b.c"; a name that is not plain is quoted.
std::string field_path(std::string_view path, std::string_view name);
std::vector<std::string_view> split_path(std::string_view path);

}  // namespace longreach::config
