// Tiny models with layers of the gated delta rule.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "model/small_models.h"

namespace longreach::test {

inline std::vector<SmallModel> delta_models() {
    std::vector<SmallModel> all;
    const auto add = [&](const std::string& name, auto change, bool documents = false) -> SmallModel& {
        SmallModel small{name, tiny_model(2), documents};
        small.config.train_context = 8;
        small.config.attention.mixer = model::MixerKind::gdn;
        change(small.config);
        all.push_back(std::move(small));
        return all.back();
    };
    for (const model::MixerKind kind : {model::MixerKind::gdn, model::MixerKind::kda}) {
        const std::string name = kind == model::MixerKind::gdn ? "gdn" : "kda";
        add(name, [&](model::ModelConfig& m) { m.attention.mixer = kind; });
        add(
            name + ", documents", [&](model::ModelConfig& m) { m.attention.mixer = kind; }, true);
        SmallModel& chunks = add(
            name + ", three chunks, documents", [&](model::ModelConfig& m) { m.attention.mixer = kind; },
            true);
        chunks.sequences = 1;
        chunks.length = 150;
        add(name + ", wider values, convolution of 2", [&](model::ModelConfig& m) {
            m.attention.mixer = kind;
            m.attention.delta = {12, 2};
        });
        add(
            name + ", additive, documents",
            [&](model::ModelConfig& m) {
                m.attention.mixer = kind;
                m.attention.delta.additive = true;
            },
            true);
        add(name + ", one head, no convolution, norms on both sides", [&](model::ModelConfig& m) {
            m.attention.mixer = kind;
            m.attention.heads = 1;
            m.attention.delta = {4, 0};
            m.norm.placement = model::NormPlacement::peri;
            m.norm.gain = true;
        });
    }
    add(
        "three gdn to one attention without positions, documents",
        [](model::ModelConfig& m) {
            model::AttentionConfig global = m.attention;
            global.mixer = model::MixerKind::attention;
            global.angle = "nope";
            add_law(global, "sqrt2logn", {{"r", starts("parity", model::Learning::layout)}});
            m.layouts = {{"gdn", m.attention}, {"global", global}};
            m.layers = 4;
            m.pattern = {"gdn", "gdn", "gdn", "global"};
            m.residual.x0 = m.residual.unet = true;
        },
        true);
    add("gdn and kda, no pre-norm", [](model::ModelConfig& m) {
        model::AttentionConfig kda = m.attention;
        kda.mixer = model::MixerKind::kda;
        kda.pre_norm = false;
        m.layouts = {{"gdn", m.attention}, {"kda", kda}};
        m.pattern = {"gdn", "kda"};
    });
    return all;
}

}  // namespace longreach::test
