// Tiny models with gated attention units.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "model/small_models.h"

namespace longreach::test {

inline std::vector<SmallModel> gau_models() {
    std::vector<SmallModel> all;
    const auto add = [&](const std::string& name, auto change, bool documents = false) {
        SmallModel small{name, tiny_model(2), documents};
        small.config.train_context = 8;
        small.config.attention.mixer = "gau";
        change(small.config);
        all.push_back(std::move(small));
    };
    const auto attend = [&](const std::string& name, auto change, bool documents = false) {
        add(
            name, [&](model::ModelConfig& m) { change(m.attention); }, documents);
    };
    attend("gau", [](model::AttentionConfig&) {});
    attend(
        "gau, documents", [](model::AttentionConfig&) {}, true);
    attend("one head", [](model::AttentionConfig& a) { a.heads = 1; });
    attend("queries and keys as projected, window", [](model::AttentionConfig& a) {
        a.qk.kind = model::QkKind::none;
        a.window = 5;
    });
    attend(
        "normed keys, log n, documents",
        [](model::AttentionConfig& a) {
            a.heads = 3;
            a.qk.kind = model::QkKind::kna;
            add_law(a, "entinv");
        },
        true);
    attend("cosines, log n", [](model::AttentionConfig& a) {
        a.qk.kind = model::QkKind::cosa;
        add_law(a, "cosa_logn");
    });
    attend("scale-invariant, p-rope, sink, output norm", [](model::AttentionConfig& a) {
        a.qk.kind = model::QkKind::qk_rms_w;
        add_law(a, "scale_invariant");
        a.angle = "p_rope";
        a.sink = model::SinkKind::learned;
        a.output_norm = {model::OutputNorm::head, true};
    });
    attend("a factor and a forget gate by head, no positions", [](model::AttentionConfig& a) {
        a.angle = "nope";
        add_law(a, "logn");
        add_law(a, "forgetting");
    });
    attend("stick-breaking, chunks", [](model::AttentionConfig& a) {
        a.normaliser = model::Normaliser::stick_breaking;
        a.chunk = 6;
    });
    add("norms on both sides, normed values", [](model::ModelConfig& m) {
        m.norm.placement = model::NormPlacement::peri;
        m.norm.gain = true;
        m.attention.qk.kind = model::QkKind::qkv_rms_w;
    });
    add(
        "two passes through a unit and attention, documents",
        [](model::ModelConfig& m) {
            model::AttentionConfig plain = m.attention;
            plain.mixer = "attention";
            m.layouts = {{"plain", plain}, {"unit", m.attention}};
            m.loops = 2;
            m.pattern = {"unit", "plain"};
        },
        true);
    add(
        "before attention with an MLP, values mixed, documents",
        [](model::ModelConfig& m) {
            model::AttentionConfig plain = m.attention;
            plain.mixer = "attention";
            m.layouts = {{"plain", plain}, {"unit", m.attention}};
            m.layers = 4;
            m.pattern = {"unit", "plain"};
            m.residual = {true, true, model::ValueMix::first, 1};
        },
        true);
    return all;
}

}  // namespace longreach::test
