// Tiny models whose attention layers have an index of keys.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "mixers/latent.h"
#include "model/small_models.h"

namespace longreach::test {

inline std::vector<SmallModel> key_index_models() {
    std::vector<SmallModel> all;
    const auto add = [&](const std::string& name, auto change, bool documents = false) {
        SmallModel small{name, tiny_model(2), documents};
        small.config.train_context = 8;
        small.config.attention.index_heads = 2;
        change(small.config, small.config.attention);
        all.push_back(std::move(small));
    };
    add("an index", [](model::ModelConfig&, model::AttentionConfig&) {});
    add(
        "an index of one head, shared keys, no positions, documents",
        [](model::ModelConfig&, model::AttentionConfig& a) {
            a.index_heads = 1;
            a.kv_heads = 1;
            a.angle = "nope";
        },
        true);
    add(
        "an index in one of two layers; length scale, distance, sinks, window, documents",
        [](model::ModelConfig& m, model::AttentionConfig& a) {
            add_law(a, "logn");
            add_law(a, "scale_invariant");
            a.angle = "p_rope";
            a.sink = model::SinkKind::learned;
            a.window = 9;
            model::AttentionConfig without = a;
            without.index_heads = 0;
            m.layouts = {{"with", a}, {"without", without}};
            m.pattern = {"with", "without"};
        },
        true);
    add("an index, two passes, forget gates, softcap", [](model::ModelConfig& m, model::AttentionConfig& a) {
        m.loops = 2;
        add_law(a, "3*tanh(z/3)");
        add_law(a, "forgetting");
    });
    add("an index, latents, turning shared channels", [](model::ModelConfig&, model::AttentionConfig& a) {
        a.qk.kind = model::QkKind::none;
        a.own<model::LatentConfig>() = {12, 4, 0};
    });
    add("an index, latents without positions", [](model::ModelConfig&, model::AttentionConfig& a) {
        a.qk.kind = model::QkKind::none;
        a.angle = "nope";
        a.own<model::LatentConfig>() = {12, 0, 8};
    });
    add("an index in gated attention units", [](model::ModelConfig&, model::AttentionConfig& a) {
        a.mixer = "gau";
        a.index_heads = 3;
    });
    return all;
}

}  // namespace longreach::test
