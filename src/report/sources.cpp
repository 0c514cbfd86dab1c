#include "report/sources.h"

#include <algorithm>
#include <set>

#include "config/acts.h"
#include "law/angle.h"
#include "law/library.h"
#include "model/registry.h"

namespace longreach::report {

namespace {

using config::FieldInfo;
using Visit = std::function<void(const FieldInfo& field, const std::string& path)>;

void add(std::set<std::string>& out, std::string_view keys) {
    while (!keys.empty()) {
        const size_t end = std::min(keys.find(' '), keys.size());
        if (end > 0) out.emplace(keys.substr(0, end));
        keys.remove_prefix(std::min(end + 1, keys.size()));
    }
}

// What a value names: laws and angles in a text or a list of texts.
void add_names(std::set<std::string>& out, const json::Value& value) {
    if (const std::string* text = value.to_string())
        for (const std::string& key : keys_of_name(*text)) out.insert(key);
    if (const json::Array* list = value.to_array())
        for (const json::Value& entry : *list) add_names(out, entry);
}

}  // namespace

void for_each_read(const FieldInfo& config, const FieldInfo& section, const model::AttentionConfig& layout,
                   const Visit& visit) {
    config::for_each_acting(
        config, section, [&](const std::string& path) { return !model::reads(layout, path); }, visit);
}

std::vector<std::string> keys_of_name(std::string_view name) {
    std::set<std::string> out;
    if (const law::NamedLaw* law = law::find_law(name)) add(out, law->sources);
    if (const law::NamedAngle* angle = law::find_angle(name)) add(out, angle->sources);
    return {out.begin(), out.end()};
}

std::vector<std::string> keys_of_field(const FieldInfo& field) {
    std::set<std::string> out;
    add(out, config::sources_of(field));
    if (field.of_library) add_names(out, field.value);
    return {out.begin(), out.end()};
}

std::vector<std::string> keys_of(const train::Experiment& experiment, const FieldInfo& config) {
    std::set<std::string> out;
    const auto look = [&](const FieldInfo& field) {
        for (const std::string& key : keys_of_field(field)) out.insert(key);
    };
    config::for_each_acting(
        config, config, [](const std::string& path) { return path == ".model.attention"; },
        [&](const FieldInfo& field, const std::string&) { look(field); });
    for (const int64_t layer : experiment.model.distinct_layers()) {
        const model::AttentionConfig& layout = experiment.model.layer_attention(layer);
        for_each_read(config, *config::held_field(config, experiment.model.layout_path(layer)), layout,
                      [&](const FieldInfo& field, const std::string&) { look(field); });
    }
    return {out.begin(), out.end()};
}

std::string bibliography(const std::vector<std::string>& keys) {
    const std::string_view all = references();
    std::string out;
    for (size_t at = all.find("\n@"); at != all.npos;) {
        const size_t end = std::min(all.find("\n@", at + 1), all.size());
        const std::string_view entry = all.substr(at + 1, end - at - 1);
        const size_t brace = entry.find('{'), comma = entry.find(',');
        const std::string key(entry.substr(brace + 1, comma - brace - 1));
        if (std::find(keys.begin(), keys.end(), key) != keys.end())
            out += std::string(entry.substr(0, entry.rfind('}') + 1)) + "\n\n";
        at = end < all.size() ? end : all.npos;
    }
    if (!out.empty()) out.pop_back();
    return out;
}

}  // namespace longreach::report
