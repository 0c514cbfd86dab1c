// What a form of export expresses is a list of fields: it refuses by name whatever else a model has, so that a mechanism
// that nobody taught it is never left out in silence.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "model/model_config.h"

namespace longreach::exchange {

// The first field that acts, is not at its default and is not listed, without the dot in front; "": there is none. known:
// fields and whole sections, below the section "model" or that of a layout, with a dot in front. Those that only shape a
// model or start its training are known to all.
std::string unknown_field(const model::ModelConfig& model, std::span<const std::string_view> known);
std::string unknown_field(const model::AttentionConfig& layout, std::span<const std::string_view> known);

}  // namespace longreach::exchange
