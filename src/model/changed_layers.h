// Which layers the changes of an evaluation (PostHocConfig) act on: eval.rope.layers.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/model_config.h"
#include "model/post_hoc.h"
#include "model/step_context.h"

namespace longreach::model {

// Whether a layer is changed, as a function of the sequence length.
struct LayerChoice {
    enum class Kind {
        never,
        whole,  // if it attends to the whole sequence
        always,
    } kind = Kind::never;
    Reach reach = {};  // whole: what the layer sees; 0, 0 otherwise
    bool operator==(const LayerChoice&) const = default;

    // stage_window: the width to which a training stage narrows windows; 0: not narrowed.
    bool at(int64_t length, int64_t stage_window = 0) const;
    // Whether the layer is changed at any length above `train_context`.
    bool possible(int64_t train_context) const;
};

// The config's choice for one layer; `never` if `change` changes nothing. Every name in change.layers must be
// that of a layout, or "attention" for the layers without one.
LayerChoice layer_choice(const ModelConfig& model, const PostHocConfig& change, int64_t layer);

// Layers whose scores differ from the unchanged model's at this length. A chosen layer without rotary
// positions is left out if `change` affects rotary positions only.
std::vector<int64_t> changed_layers(const ModelConfig& model, const PostHocConfig& change, int64_t length,
                                    int64_t stage_window = 0);

// A line to print for evaluations at these lengths, "changed positions (yarn) on 3 of 12 layers: 3, 7, 11;
// ..."; "" if nothing is changed.
std::string changed_layers_line(const ModelConfig& model, const PostHocConfig& change,
                                const std::vector<int64_t>& lengths, int64_t stage_window = 0);

}  // namespace longreach::model
