// Tiny models with layers of the gated delta rule.
#pragma once

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "mixers/delta_layer.h"
#include "model/small_models.h"

namespace longreach::test {

inline std::vector<SmallModel> delta_models() {
    std::vector<SmallModel> all;
    const auto add = [&](const std::string& name, auto change, bool documents = false) -> SmallModel& {
        SmallModel small{name, tiny_model(2), documents};
        small.config.train_context = 8;
        small.config.attention.mixer = "gdn";
        change(small.config);
        all.push_back(std::move(small));
        return all.back();
    };
    for (const model::MixerType& type : model::delta_mixers()) {
        const std::string name(type.name());
        add(name, [&](model::ModelConfig& m) { m.attention.mixer = name; });
        add(
            name + ", documents", [&](model::ModelConfig& m) { m.attention.mixer = name; }, true);
        SmallModel& chunks = add(
            name + ", three chunks, documents", [&](model::ModelConfig& m) { m.attention.mixer = name; },
            true);
        chunks.sequences = 1;
        chunks.length = 150;
        add(name + ", wider values, convolution of 2", [&](model::ModelConfig& m) {
            m.attention.mixer = name;
            m.attention.own<model::DeltaConfig>() = {12, 2};
        });
        add(
            name + ", negative eigenvalues, documents",
            [&](model::ModelConfig& m) {
                m.attention.mixer = name;
                m.attention.own<model::DeltaConfig>().negative_eigenvalues = true;
            },
            true);
        if (std::find(type.reads.begin(), type.reads.end(), ".delta.additive") != type.reads.end())
            add(
                name + ", additive, documents",
                [&](model::ModelConfig& m) {
                    m.attention.mixer = name;
                    m.attention.own<model::DeltaConfig>().additive = true;
                },
                true);
        for (const bool documents : {false, true}) {
            SmallModel& passed = add(
                name + (documents ? ", states passed on, documents" : ", states passed on"),
                [&](model::ModelConfig& m) {
                    m.attention.mixer = name;
                    m.attention.own<model::DeltaConfig>().start = model::StateStart::previous;
                },
                documents);
            passed.sequences = 3;
        }
        add(name + ", one head, no convolution, norms on both sides", [&](model::ModelConfig& m) {
            m.attention.mixer = name;
            m.attention.heads = 1;
            m.attention.own<model::DeltaConfig>() = {4, 0};
            m.norm.placement = model::NormPlacement::peri;
            m.norm.gain = true;
        });
    }
    add(
        "three gdn to one attention without positions, documents",
        [](model::ModelConfig& m) {
            model::AttentionConfig global = m.attention;
            global.mixer = "attention";
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
        kda.mixer = "kda";
        kda.pre_norm = false;
        m.layouts = {{"gdn", m.attention}, {"kda", kda}};
        m.pattern = {"gdn", "kda"};
    });
    return all;
}

}  // namespace longreach::test
