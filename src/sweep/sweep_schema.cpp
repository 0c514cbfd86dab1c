// The schema of a sweep file: its own fields and, for `set`, `grid`
// and `zip`, the fields of experiments under their dotted paths.
#include "config/schema.h"
#include "train/experiment.h"
#include "sweep/sweep_config.h"

namespace longreach::sweep {

namespace {

// Every field of an experiment with a fixed path: {"model.width": {...}, ...}.
void add_fields(const json::Value& section, const std::string& path, json::Value& into) {
    const json::Value* properties = section.find("properties");
    for (const json::Member& member : properties->as_object()) {
        if (path.empty() && (member.key == "base" || member.key == "resolved" || member.key == "$schema"))
            continue;
        const std::string at = path.empty() ? member.key : path + "." + member.key;
        into.set(at, member.value);
        if (member.value.find("properties") != nullptr) add_fields(member.value, at, into);
    }
}

json::Value reference(const char* definition, const json::Value& field) {
    json::Value out = json::Value::object({{"$ref", std::string("#/$defs/") + definition}});
    out.set("description", *field.find("description"));
    return out;
}

}  // namespace

json::Value sweep_schema() {
    const json::Value experiment = config::config_schema(config::describe<train::Experiment>(), "");
    json::Value fields = json::Value::object();
    add_fields(experiment, "", fields);
    json::Value lists = json::Value::object();
    for (const json::Member& field : fields.as_object())
        lists.set(field.key,
                  json::Value::object({{"type", "array"}, {"minItems", 1}, {"items", field.value}}));
    // Entries of lists and layouts, such as "stages.0.steps", cannot be enumerated.
    const json::Value others = json::Value::object({{"pattern", "^[A-Za-z0-9_.-]+$"}});
    const auto object = [&](json::Value properties, json::Value other) {
        return json::Value::object({{"type", "object"},
                                    {"properties", std::move(properties)},
                                    {"propertyNames", others},
                                    {"additionalProperties", std::move(other)}});
    };

    json::Value out = config::config_schema(config::describe<SweepConfig>(), "longreach sweep");
    json::Value& properties = *out.find("properties");
    const auto refer = [](json::Value& in, const char* name, const char* definition) {
        in.set(name, reference(definition, *in.find(name)));
    };
    for (const char* list : {"variants", "list", "evaluations"})
        refer(*properties.find(list)->find("items")->find("properties"), "set", "settings");
    refer(properties, "set", "settings");
    refer(properties, "grid", "axes");
    refer(properties, "zip", "axes");
    json::Value& config = *properties.find("variants")->find("items")->find("properties")->find("config");
    json::Value file = json::Value::object({{"type", "string"}, {"minLength", 1}});
    json::Value files = json::Value::object({{"type", "array"}, {"minItems", 1}, {"items", file}});
    config.set("anyOf", json::Value::array({std::move(file), std::move(files)}));
    // {seed}, {variant} and {sweep} are replaced in strings, so only string fields may contain them.
    out.set(
        "$defs",
        json::Value::object(
            {{"settings", object(std::move(fields), json::Value(true))},
             {"axes", object(std::move(lists), json::Value::object({{"type", "array"}, {"minItems", 1}}))}}));
    return out;
}

}  // namespace longreach::sweep
