#include "model/registry.h"

#include <algorithm>

#include "model/attention_layer.h"
#include "model/delta_layer.h"
#include "model/simplicial_layer.h"

namespace longreach::model {

namespace {

template <class Layer>
std::unique_ptr<Mixer> make(ParamTable& table, const ModelConfig& model, int64_t layer) {
    return std::make_unique<Layer>(table, model, layer);
}

constexpr MixerType types[] = {
    {.kind = MixerKind::attention,
     .help = "attention, as the other keys say",
     .part = {.field = ".mixer", .word = "attention"},
     .attends = true,
     .construct = make<AttentionLayer>},
    {.kind = MixerKind::gdn,
     .help = "Gated DeltaNet: a state of head_dim x value_dim per head that decays and is corrected by the "
             "delta rule",
     .part = {.field = ".mixer", .word = "gdn"},
     .construct = make<DeltaLayer>,
     .state = delta_state},
    {.kind = MixerKind::kda,
     .help = "Kimi Delta Attention: the same with a decay for every key channel",
     .part = {.field = ".mixer", .word = "kda"},
     .construct = make<DeltaLayer>,
     .state = delta_state},
    {.kind = MixerKind::gau,
     .help = "gated attention unit, in place of attention and MLP: one query and key of head_dim channels, "
             "heads * head_dim channels of values and of gates",
     .part = {.field = ".mixer", .word = "gau"},
     .attends = true,
     .has_mlp = false,
     .construct = make<AttentionLayer>},
    {.kind = MixerKind::simplicial,
     .help = "2-simplicial attention: a query weighs pairs of keys within two windows; on a CPU only",
     .part = {.field = ".mixer", .word = "simplicial", .no_gpu = "no GPU computes simplicial"},
     .construct = make<SimplicialLayer>},
};

struct OptionalPart {
    LayerPart part;
    bool (*used)(const AttentionConfig& layout);
};

constexpr OptionalPart optional_parts[] = {
    {{.field = ".latent.width"}, [](const AttentionConfig& a) { return a.attends() && a.latent; }},
    {{.field = ".index_heads", .no_gpu = "no GPU trains an index of keys"},
     [](const AttentionConfig& a) { return a.attends() && a.index_heads > 0; }},
};

}  // namespace

std::span<const MixerType> mixer_types() {
    return types;
}

const MixerType& mixer_type(MixerKind kind) {
    return *std::find_if(std::begin(types), std::end(types),
                         [&](const MixerType& type) { return type.kind == kind; });
}

std::vector<const LayerPart*> parts_of(const AttentionConfig& layout) {
    std::vector<const LayerPart*> parts{&mixer_type(layout.mixer).part};
    for (const OptionalPart& one : optional_parts)
        if (one.used(layout)) parts.push_back(&one.part);
    return parts;
}

}  // namespace longreach::model
