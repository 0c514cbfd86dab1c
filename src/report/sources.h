// Which entries of configs/references.bib the variants of a comparison stand on.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "config/field_info.h"
#include "train/experiment.h"

namespace longreach::report {

// Keys of all choices that a config makes, in rising order. config: config::describe(experiment).
std::vector<std::string> keys_of(const train::Experiment& experiment, const config::FieldInfo& config);

// The keys of the value of one field: those that its list names, and of the laws and angles that it names.
std::vector<std::string> keys_of_field(const config::FieldInfo& field);

// The keys of a law or angle of the library; none for a formula and other words.
std::vector<std::string> keys_of_name(std::string_view name);

// Calls visit for every field that a layer of this layout reads and that acts, in the order of the list. path: below the
// section of the layout, with a dot in front.
void for_each_read(const config::FieldInfo& config, const config::FieldInfo& section,
                   const model::AttentionConfig& layout,
                   const std::function<void(const config::FieldInfo& field, const std::string& path)>& visit);

// Those entries of references.bib, in the order of that file.
std::string bibliography(const std::vector<std::string>& keys);
const char* references();  // the whole file

}  // namespace longreach::report
