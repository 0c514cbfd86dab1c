// JSON Schema (draft 2020-12) of a config, for completion and checking in editors.
#pragma once

#include "base/json.h"
#include "config/field_info.h"

namespace longreach::config {

// `config` is the description of the struct at its defaults. Unknown keys are refused,
// ranges and choices are those of the field list, and every field carries its help line and default.
// Rules between fields are not in it.
json::Value config_schema(const FieldInfo& config, std::string_view title);

}  // namespace longreach::config
