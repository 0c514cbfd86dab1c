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

template <class Source>
std::unique_ptr<Mixer> attend(ParamTable& table, const ModelConfig& model, int64_t layer) {
    return std::make_unique<AttentionLayer>(table, model, layer,
                                            std::make_unique<Source>(table, model, layer));
}

std::unique_ptr<Mixer> attention(ParamTable& table, const ModelConfig& model, int64_t layer) {
    const bool latent(model.layer_attention(layer).own<LatentConfig>());
    return latent ? attend<Latent>(table, model, layer) : attend<QkvProjection>(table, model, layer);
}

constexpr std::string_view attention_fields[] = {
    ".kv_heads",    ".latent",      ".window", ".chunk",       ".angle",        ".angle_scaling",
    ".conv",        ".qk",          ".bias",   ".score",       ".params",       ".score_base",
    ".score_count", ".sink",        ".terms",  ".normaliser",  ".entmax_alpha", ".entmax_learned",
    ".index_heads", ".output_norm", ".gate",   ".differential"};

// Softmax attention of queries, keys and values from several sources.
constexpr MixerType attending[] = {
    {.help = "attention, as the other keys say",
     .part = {.field = ".mixer", .word = "attention"},
     .attends = true,
     .reads = attention_fields,
     .construct = attention},
    {.help = "gated attention unit, in place of attention and MLP: one query and key of head_dim channels, "
             "heads * head_dim channels of values and of gates; without kv_heads, bias, conv and gate",
     .words = "gated attention units",
     .sources = "hua2022gau",
     .part = {.field = ".mixer", .word = "gau", .check = check_gau, .check_model = check_gau_norms},
     .attends = true,
     .reads = attention_fields,
     .has_mlp = false,
     .construct = attend<GauInput>},
};

struct OptionalPart {
    LayerPart part;
    bool (*used)(const AttentionConfig& layout);
};

constexpr OptionalPart optional_parts[] = {
    {latent_part, [](const AttentionConfig& a) { return a.attends() && a.own<LatentConfig>(); }},
    {{.field = ".index_heads", .no_gpu = "no GPU trains an index of keys", .check = check_index},
     [](const AttentionConfig& a) { return a.attends() && a.index_heads > 0; }},
    {{.field = ".normaliser", .word = "entmax", .no_gpu = "no GPU computes entmax"},
     [](const AttentionConfig& a) { return a.attends() && a.normaliser == Normaliser::entmax; }},
    {{.field = ".score", .word = "z_between", .no_gpu = "no GPU fades channels"},
     [](const AttentionConfig& a) { return a.attends() && !fading_term(a).empty(); }},
    {{.field = ".delta.start", .word = "previous", .no_gpu = "no GPU passes states on", .sequences = 2},
     passes_states},
};

bool reads(const MixerType& type, std::string_view key) {
    return std::find(type.reads.begin(), type.reads.end(), key) != type.reads.end();
}

}  // namespace

std::span<const MixerType> mixer_types() {
    static const std::vector<MixerType> types = [] {
        std::vector<MixerType> all;
        for (const std::span<const MixerType> family :
             {std::span<const MixerType>(attending), delta_mixers(), simplicial_mixers()})
            all.insert(all.end(), family.begin(), family.end());
        return all;
    }();
    return types;
}

const MixerType& mixer_type(std::string_view name) {
    const std::span<const MixerType> types = mixer_types();
    const auto type =
        std::find_if(types.begin(), types.end(), [&](const MixerType& one) { return one.name() == name; });
    check(type != types.end(), "no mixer {}", name);
    return *type;
}

void list_sections(AttentionConfig& layout, config::Fields& f) {
    std::set<decltype(LayerPart::fields)> listed{nullptr};
    const auto list = [&](const LayerPart& part) {
        if (listed.insert(part.fields).second) part.fields(layout, f);
    };
    for (const MixerType& type : mixer_types()) list(type.part);
    for (const OptionalPart& one : optional_parts) list(one.part);
}

void check_parts(const LayoutRules& rules) {
    const MixerType& own = mixer_type(rules.a.mixer);
    std::set<std::string_view> unread;
    for (const MixerType& other : mixer_types())
        for (const std::string_view key : other.reads)
            if (!reads(own, key) && unread.insert(key).second)
                rules.no_effect(std::string(key), fmt::format("mixer {} does not read it", own.name()),
                                ".mixer");
    rules.needs_multiple_of_4(".head_dim", rules.a.head_dim);
    if (own.part.check != nullptr) own.part.check(rules);
    for (const OptionalPart& one : optional_parts)
        if (own.attends && one.part.check != nullptr) one.part.check(rules);
}

bool reads(const AttentionConfig& layout, std::string_view field) {
    const MixerType& own = mixer_type(layout.mixer);
    for (const MixerType& type : mixer_types())
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
