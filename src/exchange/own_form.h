// A model that transformers has no class for: the settings that modeling_longreach.py computes it from.
#pragma once

#include <string>

#include "base/json.h"
#include "model/model_config.h"
#include "model/param_table.h"

namespace longreach::exchange {

// Before the names of its tensors in the files of such a model; read_own() knows it too.
inline constexpr const char* own_prefix = "tree.";

// The text of modeling_longreach.py.
const char* modeling_code();

// What the model has that modeling_longreach.py cannot express; "": nothing.
std::string beyond_own_form(const model::ModelConfig& model);

// config.json. Call only if beyond_own_form() is empty.
json::Value own_config(const model::ModelConfig& model, const model::ParamTable& table);

}  // namespace longreach::exchange
