// Where fuzzing starts: for each target a few valid inputs, made by the program's own writers.
// seeds_core.cpp and seeds_runs.cpp serve one of the two replay programs each.
#pragma once

#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "config/field_info.h"

namespace longreach::fuzz {

struct Seed {
    std::string name, bytes;
};
std::vector<Seed> seeds_of(std::string_view target);  // never empty

// Words worth putting in, in libFuzzer's form; "" if the target needs none.
std::string dictionary_of(std::string_view target);

// The names of a config's fields and choices, in that form.
inline std::string dictionary_of_fields(const config::FieldInfo& config) {
    std::set<std::string> words;
    const auto add = [&](const config::FieldInfo& field, const auto& again) -> void {
        if (!field.name.empty()) words.insert(field.name);
        for (const config::FieldInfo::Choice& choice : field.choices) words.insert(choice.name);
        for (const config::FieldInfo& inner : field.fields) again(inner, again);
    };
    add(config, add);
    std::string text;
    for (const std::string& word : words) text += "\"\\\"" + word + "\\\"\"\n";
    return text;
}

}  // namespace longreach::fuzz
