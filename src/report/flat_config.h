// A config as pairs of a dotted path and the text of its value.
#pragma once

#include <map>
#include <string>

#include "base/json.h"

namespace longreach::report {

using FlatConfig = std::map<std::string, std::string>;

// One entry per value; a list of plain values counts as one.
FlatConfig flat_config(const json::Value& config);

}  // namespace longreach::report
