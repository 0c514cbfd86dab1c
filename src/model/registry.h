// The mixers, and the parts that some of their layers have: all that the rest of the program must know of one of them,
// in one row of registry.cpp.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "model/layout_rules.h"
#include "model/mixer.h"
#include "model/model_config.h"

namespace longreach::model {

// What a value of one field puts into a layer.
struct LayerPart {
    std::string_view field;        // below the section of the layout, with a dot in front
    std::string_view word = {};    // the value that puts it there; empty: any but 0 and false
    std::string_view no_gpu = {};  // why no GPU runs it; empty: every device does
    int64_t sequences = 1;         // that a micro-batch must have for it to act in training
    // Its section of the layout (AttentionConfig::own); null: it has none.
    void (*fields)(AttentionConfig& layout, config::Fields& f) = nullptr;
    // Channels of a head that positions turn; null: it changes nothing there.
    int64_t (*turned_dim)(const AttentionConfig& layout) = nullptr;
    // The rules of its fields in a layout that may have it, and those of a model that has it.
    void (*check)(const LayoutRules& rules) = nullptr;
    void (*check_model)(const ModelConfig& model, const LayoutRules& rules) = nullptr;
};

struct MixerType {
    std::string_view help;                      // in config explain
    std::string_view words = {}, sources = {};  // as in config::Named
    LayerPart part;                             // its word is the name
    bool attends = false;                       // reads tables and masks, as softmax attention does
    // Fields and sections of the layout, besides heads, head_dim and the norms of the block.
    std::span<const std::string_view> reads;
    bool has_mlp = true;  // an MLP follows it in its block
    std::unique_ptr<Mixer> (*construct)(ParamTable& table, const ModelConfig& model, int64_t layer);
    // Numbers of the state that a sequence leaves; null: it leaves none.
    int64_t (*state)(const AttentionConfig& layout) = nullptr;

    std::string_view name() const { return part.word; }
};

// For `construct`: a layer that takes these three, and settings of its kind.
template <class Layer, auto... settings>
std::unique_ptr<Mixer> make_mixer(ParamTable& table, const ModelConfig& model, int64_t layer) {
    return std::make_unique<Layer>(table, model, layer, settings...);
}

std::span<const MixerType> mixer_types();
const MixerType& mixer_type(std::string_view name);

// The sections of all mixers and parts, each once.
void list_sections(AttentionConfig& layout, config::Fields& f);

void check_parts(const LayoutRules& rules);

// Whether the layer of this layout reads a field or section, given below the layout with a dot in front.
bool reads(const AttentionConfig& layout, std::string_view field);

// Of one layer, its mixer first.
std::vector<const LayerPart*> parts_of(const AttentionConfig& layout);

}  // namespace longreach::model
