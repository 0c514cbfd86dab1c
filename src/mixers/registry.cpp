#include "model/registry.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "mixers/attention_layer.h"
#include "mixers/delta_layer.h"
#include "mixers/gau_input.h"
#include "mixers/key_index.h"
#include "mixers/latent.h"
#include "mixers/qkv_projection.h"
#include "mixers/simplicial_layer.h"

namespace longreach::model {

namespace {

template <class Layer>
std::unique_ptr<Mixer> make(ParamTable& table, const ModelConfig& model, int64_t layer) {
    return std::make_unique<Layer>(table, model, layer);
}

template <class Source>
std::unique_ptr<Mixer> attend(ParamTable& table, const ModelConfig& model, int64_t layer) {
    return std::make_unique<AttentionLayer>(table, model, layer,
                                            std::make_unique<Source>(table, model, layer));
}

std::unique_ptr<Mixer> attention(ParamTable& table, const ModelConfig& model, int64_t layer) {
    const bool latent(model.layer_attention(layer).latent);
    return latent ? attend<Latent>(table, model, layer) : attend<QkvProjection>(table, model, layer);
}

constexpr std::string_view attention_fields[] = {
    ".kv_heads", ".latent",     ".window",      ".chunk",       ".angle",      ".angle_scaling", ".conv",
    ".qk",       ".bias",       ".score",       ".params",      ".score_base", ".score_count",   ".sink",
    ".terms",    ".normaliser", ".index_heads", ".output_norm", ".gate"};
constexpr std::string_view delta_fields[] = {".delta"};
constexpr std::string_view simplicial_fields[] = {".simplicial"};

constexpr MixerType types[] = {
    {.kind = MixerKind::attention,
     .help = "attention, as the other keys say",
     .part = {.field = ".mixer", .word = "attention"},
     .attends = true,
     .reads = attention_fields,
     .construct = attention},
    {.kind = MixerKind::gdn,
     .help = "Gated DeltaNet: a state of head_dim x value_dim per head that decays and is corrected by the "
             "delta rule",
     .words = "Gated DeltaNet",
     .sources = "yang2024gdn",
     .part = {.field = ".mixer", .word = "gdn", .check = check_delta},
     .reads = delta_fields,
     .construct = make<DeltaLayer>,
     .state = delta_state},
    {.kind = MixerKind::kda,
     .help = "Kimi Delta Attention: the same with a decay for every key channel",
     .words = "Kimi Delta Attention",
     .sources = "kimi2025linear",
     .part = {.field = ".mixer", .word = "kda", .check = check_delta},
     .reads = delta_fields,
     .construct = make<DeltaLayer>,
     .state = delta_state},
    {.kind = MixerKind::gau,
     .help = "gated attention unit, in place of attention and MLP: one query and key of head_dim channels, "
             "heads * head_dim channels of values and of gates",
     .words = "gated attention units",
     .sources = "hua2022gau",
     .part = {.field = ".mixer", .word = "gau", .check = check_gau, .check_model = check_gau_norms},
     .attends = true,
     .reads = attention_fields,
     .has_mlp = false,
     .construct = attend<GauInput>},
    {.kind = MixerKind::simplicial,
     .help = "2-simplicial attention: a query weighs pairs of keys within two windows; on a CPU only",
     .words = "2-simplicial attention",
     .sources = "roy2025simplex clift2019simplicial",
     .part = {.field = ".mixer", .word = "simplicial", .no_gpu = "no GPU computes simplicial"},
     .reads = simplicial_fields,
     .construct = make<SimplicialLayer>},
};

struct OptionalPart {
    LayerPart part;
    bool (*used)(const AttentionConfig& layout);
};

constexpr OptionalPart optional_parts[] = {
    {{.field = ".latent.width", .check = check_latent, .check_model = check_latent_values},
     [](const AttentionConfig& a) { return a.attends() && a.latent; }},
    {{.field = ".index_heads", .no_gpu = "no GPU trains an index of keys", .check = check_index},
     [](const AttentionConfig& a) { return a.attends() && a.index_heads > 0; }},
};

bool reads(const MixerType& type, std::string_view key) {
    return std::find(type.reads.begin(), type.reads.end(), key) != type.reads.end();
}

// Why a mixer that does not read this key leaves it without effect.
std::string belongs_to(std::string_view key) {
    std::vector<std::string> readers;
    for (const MixerType& type : types)
        if (reads(type, key)) readers.emplace_back(type.name());
    if (readers[0] == mixer_type(MixerKind::attention).name()) return "mixer is not attention";
    return fmt::format("it belongs to mixer{} {}", readers.size() > 1 ? "s" : "",
                       fmt::join(readers, " and "));
}

}  // namespace

std::span<const MixerType> mixer_types() {
    return types;
}

const MixerType& mixer_type(MixerKind kind) {
    return *std::find_if(std::begin(types), std::end(types),
                         [&](const MixerType& type) { return type.kind == kind; });
}

void check_parts(const LayoutRules& rules) {
    const MixerType& own = mixer_type(rules.a.mixer);
    std::set<std::string_view> unread;
    for (const MixerType& other : types)
        for (const std::string_view key : other.reads)
            if (!reads(own, key) && unread.insert(key).second)
                rules.no_effect(std::string(key), belongs_to(key), ".mixer");
    rules.needs_multiple_of_4(".head_dim", rules.a.head_dim);
    if (own.part.check != nullptr) own.part.check(rules);
    for (const OptionalPart& one : optional_parts)
        if (own.attends && one.part.check != nullptr) one.part.check(rules);
}

bool reads(const AttentionConfig& layout, std::string_view field) {
    const MixerType& own = mixer_type(layout.mixer);
    for (const MixerType& type : types)
        for (const std::string_view key : type.reads)
            if (field == key || (field.starts_with(key) && field[key.size()] == '.')) return reads(own, key);
    return true;
}

std::vector<const LayerPart*> parts_of(const AttentionConfig& layout) {
    std::vector<const LayerPart*> parts{&mixer_type(layout.mixer).part};
    for (const OptionalPart& one : optional_parts)
        if (one.used(layout)) parts.push_back(&one.part);
    return parts;
}

}  // namespace longreach::model
