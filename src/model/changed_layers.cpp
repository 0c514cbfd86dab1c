#include "model/changed_layers.h"

#include <algorithm>

#include <fmt/ranges.h>

#include "model/attention_angle.h"

namespace longreach::model {

bool LayerChoice::at(int64_t length, int64_t stage_window) const {
    if (kind != Kind::whole) return kind == Kind::always;
    int64_t window = reach.window;
    if (window > 0 && stage_window > 0) window = std::min(window, stage_window);
    return (window == 0 || window >= length) && (reach.chunk == 0 || reach.chunk >= length);
}

bool LayerChoice::possible(int64_t train_context) const {
    return at(train_context + 1);
}

LayerChoice layer_choice(const ModelConfig& model, const PostHocConfig& change, int64_t layer) {
    using Kind = LayerChoice::Kind;
    if (!change.active()) return {};
    const AttentionConfig& attention = model.layer_attention(layer);
    if (!attention.attends()) return {Kind::never};
    if (change.takes_all()) return {Kind::always};
    if (change.takes_full()) return {Kind::whole, {attention.window, attention.chunk}};
    const std::vector<std::string> names = change.layer_names();
    const std::string layout = model.layout_name(layer);
    const std::string name = layout.empty() ? "attention" : layout;
    const bool named = std::find(names.begin(), names.end(), name) != names.end();
    return {named ? Kind::always : Kind::never};
}

std::vector<int64_t> changed_layers(const ModelConfig& model, const PostHocConfig& change, int64_t length,
                                    int64_t stage_window) {
    std::vector<int64_t> layers;
    if (length <= model.train_context) return layers;
    for (int64_t l = 0; l < model.layers; ++l) {
        if (!model.layer_attention(l).attends()) continue;
        const bool turned = !trained_angle(model, l).near.empty();
        const bool acts = (turned && change.turns()) || !change.score_change(turned).empty();
        if (acts && layer_choice(model, change, l).at(length, stage_window)) layers.push_back(l);
    }
    return layers;
}

std::string changed_layers_line(const ModelConfig& model, const PostHocConfig& change,
                                const std::vector<int64_t>& lengths, int64_t stage_window) {
    // Group the lengths that change the same layers; usually there is one group.
    std::vector<std::pair<std::vector<int64_t>, std::vector<int64_t>>> groups;  // layers, lengths
    for (const int64_t length : lengths) {
        if (length <= model.train_context) continue;
        const std::vector<int64_t> layers = changed_layers(model, change, length, stage_window);
        const auto same =
            std::find_if(groups.begin(), groups.end(), [&](auto& g) { return g.first == layers; });
        if (same == groups.end()) {
            groups.push_back({layers, {length}});
        } else {
            same->second.push_back(length);
        }
    }
    if (!change.active() || groups.empty()) return "";
    const std::string by = change.kind != "none"     ? change.kind
                           : !change.angle.is_null() ? "eval.angle"
                           : change.scale != "none"  ? change.scale
                                                     : "eval.score";
    std::string line = fmt::format("changed {} ({})", change.turns() ? "positions" : "scores", by);
    bool all = true;
    for (size_t i = 0; i < groups.size(); ++i) {
        const auto& [layers, at] = groups[i];
        all = all && static_cast<int64_t>(layers.size()) == model.layers;
        line += fmt::format("{} on {} of {} layers", i == 0 ? "" : ";", layers.size(), model.layers);
        if (!layers.empty()) line += fmt::format(": {}", fmt::join(layers, ", "));
        if (groups.size() > 1) line += fmt::format(" at {}", fmt::join(at, ", "));
    }
    if (!all && change.takes_full()) line += "; --set eval.rope.layers=all changes all";
    return line;
}

}  // namespace longreach::model
