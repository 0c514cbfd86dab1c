// The mixers, and the parts that some of their layers have: all that the rest of the program must know of one of them,
// in one row of registry.cpp.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "model/mixer.h"
#include "model/model_config.h"

namespace longreach::model {

// What a value of one field puts into a layer.
struct LayerPart {
    std::string_view field;        // below the section of the layout, with a dot in front
    std::string_view word = {};    // the value that puts it there; empty: any but 0 and false
    std::string_view no_gpu = {};  // why no GPU runs it; empty: every device does
};

struct MixerType {
    MixerKind kind;
    std::string_view help;  // in config explain
    LayerPart part;         // its word is the name
    bool attends = false;   // reads tables and masks, as softmax attention does
    bool has_mlp = true;    // an MLP follows it in its block
    std::unique_ptr<Mixer> (*construct)(ParamTable& table, const ModelConfig& model, int64_t layer);
    // Numbers of the state that a sequence leaves behind; null: it leaves none.
    int64_t (*state)(const AttentionConfig& layout) = nullptr;

    std::string_view name() const { return part.word; }
};

std::span<const MixerType> mixer_types();
const MixerType& mixer_type(MixerKind kind);

// Of one layer, its mixer first.
std::vector<const LayerPart*> parts_of(const AttentionConfig& layout);

}  // namespace longreach::model
