// Which layers the changes of an evaluation (PostHocConfig) act on: eval.rope.layers.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/model_config.h"
#include "model/post_hoc.h"
#include "model/step_context.h"

namespace longreach::model {

// Whether a layer is changed, by the length of the sequences.
struct LayerChoice {
    enum class Kind {
        never,
        whole,  // where it attends to the whole sequence
        always,
    } kind = Kind::never;
    Reach reach = {};  // whole: what the layer sees; 0, 0 otherwise
    bool operator==(const LayerChoice&) const = default;

    // stage_window: what a stage of training narrows windows to; 0: nothing.
    bool at(int64_t length, int64_t stage_window = 0) const;
    // Whether there is such a length above `train_context`.
    bool possible(int64_t train_context) const;
};

// What the config chooses for one layer; never if `change` changes nothing. All names in change.layers must
// be those of layouts.
LayerChoice layer_choice(const ModelConfig& model, const PostHocConfig& change, int64_t layer);

// Layers whose scores differ from the unchanged model's at this length: those chosen, without those that have
// no rotary positions if only these are changed.
std::vector<int64_t> changed_layers(const ModelConfig& model, const PostHocConfig& change, int64_t length,
                                    int64_t stage_window = 0);

// One line for people, "changed positions (yarn) on 3 of 12 layers: 3, 7, 11; ...", for evaluations at these
// lengths; "" if nothing is changed.
std::string changed_layers_line(const ModelConfig& model, const PostHocConfig& change,
                                const std::vector<int64_t>& lengths, int64_t stage_window = 0);

}  // namespace longreach::model
