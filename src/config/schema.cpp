#include "config/schema.h"

#include <algorithm>
#include <cmath>

namespace longreach::config {
namespace {

using Kind = FieldInfo::Kind;

json::Value type(std::string_view name) {
    return json::Value::object({{"type", name}});
}

json::Value integer_schema(const IntegerRange& range) {
    json::Value out = type("integer");
    if (range.tokens) {
        out.set("type", json::Value::array({"integer", "string"}));
        out.set("pattern", "^[0-9]+[KMGkmg]$");
    }
    if (range.min != std::numeric_limits<int64_t>::min()) out.set("minimum", range.min);
    if (range.max != std::numeric_limits<int64_t>::max()) out.set("maximum", range.max);
    return out;
}

json::Value number_schema(const NumberRange& range) {
    json::Value out = type("number");
    if (std::isfinite(range.min)) out.set(range.open_min ? "exclusiveMinimum" : "minimum", range.min);
    if (std::isfinite(range.max)) out.set(range.open_max ? "exclusiveMaximum" : "maximum", range.max);
    return out;
}

json::Value choice_schema(const std::vector<FieldInfo::Choice>& choices) {
    json::Value words = json::Value::array(), help = json::Value::array();
    bool any_help = false;
    for (const auto& choice : choices) {
        words.push(choice.name);
        help.push(choice.help);
        any_help = any_help || !choice.help.empty();
    }
    json::Value out = type("string");
    out.set("enum", std::move(words));
    if (any_help)
        out.set("enumDescriptions", std::move(help));  // an annotation that editors show next to each word
    return out;
}

json::Value field_schema(const FieldInfo& info);

json::Value object_schema(const std::vector<FieldInfo>& fields) {
    json::Value properties = json::Value::object();
    for (const FieldInfo& field : fields) properties.set(field.name, field_schema(field));
    json::Value out = type("object");
    out.set("properties", std::move(properties)).set("additionalProperties", false);
    return out;
}

// An entry of variations: an object, or the value of the field that stands for it.
json::Value entry_schema(const FieldInfo& variations) {
    const json::Value object = object_schema(variations.fields);
    for (const FieldInfo& field : variations.fields)
        if (field.name == variations.main)
            return json::Value::object({{"anyOf", json::Value::array({field_schema(field), object})}});
    return object;
}

json::Value bare_schema(const FieldInfo& info) {
    switch (info.kind) {
        case Kind::flag:
            return type("boolean");
        case Kind::integer:
            return integer_schema(info.integer_range);
        case Kind::number:
            return number_schema(info.number_range);
        case Kind::text:
            return type("string");
        case Kind::texts:
            // One string is a list of it.
            return json::Value::object(
                {{"type", json::Value::array({"array", "string"})}, {"items", type("string")}});
        case Kind::integers:
            return type("array").set("items", integer_schema(info.integer_range));
        case Kind::choice:
            return choice_schema(info.choices);
        case Kind::any:
            return json::Value::object();
        case Kind::section:
            return object_schema(info.fields);
        case Kind::list:
            return type("array").set("items", object_schema(info.fields));
        case Kind::variations:
            return type("object")
                .set("propertyNames", json::Value::object({{"pattern", "^[A-Za-z0-9_-]+$"}}))
                .set("additionalProperties", entry_schema(info));
    }
    return {};
}

json::Value field_schema(const FieldInfo& info) {
    json::Value out = bare_schema(info);
    if (!info.help.empty()) out.set("description", info.help);
    if (info.kind != Kind::section) out.set("default", to_json(info));
    return out;
}

}  // namespace

json::Value config_schema(const FieldInfo& config, std::string_view title) {
    json::Value out =
        json::Value::object({{"$schema", "https://json-schema.org/draft/2020-12/schema"}, {"title", title}});
    json::Value body = object_schema(config.fields);
    json::Value* properties = body.find("properties");
    properties->set("$schema", type("string").set("description", "this schema, for editors; ignored"));
    properties->set(
        "resolved",
        json::Value::object({{"const", true}, {"description", "marks a config written by the program"}}));
    json::Value file = type("string").set("minLength", 1);
    json::Value files = type("array").set("items", file);
    properties->set("base",
                    json::Value::object({{"description", "file or files this one builds on, relative to it"},
                                         {"anyOf", json::Value::array({file, files})}}));
    for (json::Member& member : body.as_object()) out.set(member.key, std::move(member.value));
    return out;
}

}  // namespace longreach::config
