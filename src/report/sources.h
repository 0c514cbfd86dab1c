// Which entries of configs/references.bib the variants of a comparison stand on.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "train/experiment.h"

namespace longreach::report {

// A choice of the config that somebody published.
struct Sourced {
    std::string_view
        field;  // below the attention section of a layer if it begins with a dot, else of the config
    std::string_view word;  // its value; empty: any but 0, false, null, -1 and none
    std::string_view keys;  // of references.bib, separated by spaces
};
const std::vector<Sourced>& choices_with_sources();

// Keys in rising order. `config`: the resolved config that `experiment` was read from.
std::vector<std::string> keys_of(const train::Experiment& experiment, const json::Value& config);

// The keys of one field below an attention section: of a choice above, or of the laws and angles that it names.
std::vector<std::string> keys_of_field(const json::Value& config, const std::string& section,
                                       std::string_view field);

// The keys of a law or angle of the library; none for a formula and other words.
std::vector<std::string> keys_of_name(std::string_view name);

// Those entries of references.bib, in the order of that file.
std::string bibliography(const std::vector<std::string>& keys);
const char* references();  // the whole file

}  // namespace longreach::report
