// One tiny model for every value of every choice beyond the plain model.
#pragma once

#include <fmt/format.h>

#include <string>
#include <utility>
#include <vector>

#include "model/small_models.h"

namespace longreach::test {

inline std::vector<SmallModel> small_variants() {
    std::vector<SmallModel> all;
    const auto add = [&](const std::string& name, auto change, bool documents = false) {
        SmallModel small{name, tiny_model(2), documents};
        small.config.train_context = 8;  // shorter than the sequences, so that what changes there does
        change(small.config);
        all.push_back(std::move(small));
    };
    // attention alone
    const auto attend = [&](const std::string& name, auto change, bool documents = false) {
        add(
            name, [&](ModelConfig& m) { change(m.attention); }, documents);
    };

    attend("chunk", [](AttentionConfig& a) { a.chunk = 5; });
    attend(
        "chunk, documents", [](AttentionConfig& a) { a.chunk = 5; }, true);

    attend("convolution", [](AttentionConfig& a) { a.conv.size = 3; });
    attend(
        "convolution of keys, documents",
        [](AttentionConfig& a) {
            a.conv = {4, false, true, false};
        },
        true);
    add("convolution of values, grouped, value residual", [](ModelConfig& m) {
        m.attention.kv_heads = 1;
        m.attention.conv = {2, false, false, true};
        m.residual.values = ValueMix::first;
    });

    for (const auto& [name, kind] : std::vector<std::pair<std::string, QkKind>>{
             {"rms norm with gain of queries and keys", QkKind::qk_rms_w},
             {"layer norm of queries and keys", QkKind::qk_ln},
             {"unit queries and keys", QkKind::qk_l2},
             {"learned eps", QkKind::qk_rms_eps},
             {"unit queries", QkKind::qna},
             {"unit keys", QkKind::kna},
             {"rms norm with gain of queries, keys and values", QkKind::qkv_rms_w},
             {"layer norm of queries, keys and values", QkKind::qkv_ln}})
        attend(name, [&](AttentionConfig& a) { a.qk = {kind, 0.01}; });
    attend("learned eps per head, grouped", [](AttentionConfig& a) {
        a.heads = 4;
        a.kv_heads = 2;
        a.qk = {QkKind::qk_rms_eps, 1, true};
    });
    add("layer norm of values, value residual and value embeddings", [](ModelConfig& m) {
        m.attention.qk = {QkKind::qkv_ln, 0.01};
        m.residual.values = ValueMix::first;
        m.residual.value_embeddings = 1;
    });

    for (int kind = 1; kind <= static_cast<int>(ScaleKind::qknorm_g); ++kind)
        attend(fmt::format("length scale {}", kind), [&](AttentionConfig& a) {
            a.scale.kind = static_cast<ScaleKind>(kind);
            a.scale.target = 2;
            a.scale.floor_scale = 3;
            a.scale.attn_temperature_len = 4;
            const bool cosines = a.scale.kind == ScaleKind::gammalogn ||
                                 a.scale.kind == ScaleKind::cosa_const ||
                                 a.scale.kind == ScaleKind::cosa_logn || a.scale.kind == ScaleKind::qknorm_g;
            if (cosines) a.qk.kind = QkKind::cosa;
        });
    for (int granularity = 1; granularity <= 4; ++granularity) {
        attend(fmt::format("log n with a bias, granularity {}", granularity), [&](AttentionConfig& a) {
            a.scale.kind = ScaleKind::logn_bias;
            a.scale.bias = 0.3;
            a.scale.granularity = static_cast<ScaleGranularity>(granularity);
        });
        attend(fmt::format("plain factor, granularity {}", granularity), [&](AttentionConfig& a) {
            a.scale.base = 0.2;
            a.scale.granularity = static_cast<ScaleGranularity>(granularity);
        });
    }
    for (const ScaleCount count :
         {ScaleCount::automatic, ScaleCount::sequence, ScaleCount::document, ScaleCount::visible})
        attend(
            fmt::format("n counted as {}, window, documents", static_cast<int>(count)),
            [&](AttentionConfig& a) {
                a.window = 4;
                a.scale.kind = ScaleKind::sqrt2lognp1;
                a.scale.scale_n = count;
            },
            true);
    add("length scales of two layouts", [](ModelConfig& m) {
        AttentionConfig a = m.attention, b = m.attention;
        a.scale.kind = b.scale.kind = ScaleKind::sqrt_abc;
        b.scale.a = 0.5;
        m.layers = 3;
        m.layouts = {{"a", a}, {"b", b}};
        m.pattern = {"a", "b"};
    });

    for (int kind = 1; kind <= static_cast<int>(DistanceKind::kerple_power); ++kind)
        attend(fmt::format("distance {}", kind), [&](AttentionConfig& a) {
            a.distance.kind = static_cast<DistanceKind>(kind);
            if (a.distance.kind == DistanceKind::alibi) a.position.kind = PositionKind::nope;
        });
    for (const DistanceKind kind : {DistanceKind::scale_invariant, DistanceKind::log_bias})
        for (int learned = 1; learned < 4; ++learned)
            attend(fmt::format("distance {}, learned parts {}", static_cast<int>(kind), learned),
                   [&](AttentionConfig& a) {
                       a.distance = {kind, 2, learned % 2 == 1, 1.2, learned >= 2};
                   });
    attend(
        "interpolation by distance and length, documents",
        [](AttentionConfig& a) {
            a.distance.kind = DistanceKind::si_interp;
            a.distance.c = 1;
            a.softcap = 3;
        },
        true);
    attend("ALiBi, six heads", [](AttentionConfig& a) {
        a.heads = 6;
        a.head_dim = 4;
        a.distance.kind = DistanceKind::alibi;
        a.position.kind = PositionKind::nope;
    });

    attend("attention softcap", [](AttentionConfig& a) { a.softcap = 1.5; });
    attend("attention softcap, length scale, distance", [](AttentionConfig& a) {
        a.softcap = 1.5;
        a.scale.kind = ScaleKind::logn;
        a.distance.kind = DistanceKind::scale_invariant;
    });
    attend("sink of zero", [](AttentionConfig& a) { a.sink = SinkKind::zero; });
    attend("learned sinks", [](AttentionConfig& a) { a.sink = SinkKind::learned; });
    for (const OutputNorm kind : {OutputNorm::head, OutputNorm::all})
        for (bool gain : {false, true})
            attend(fmt::format("output norm {}{}", static_cast<int>(kind), gain ? " with gain" : ""),
                   [&](AttentionConfig& a) {
                       a.output_norm = {kind, gain};
                       a.sink = SinkKind::learned;
                   });
    for (const GateKind kind : {GateKind::headwise, GateKind::elementwise, GateKind::sparse})
        for (bool doubled : {false, true})
            attend(fmt::format("{} gate {}", doubled ? "doubled" : "plain", static_cast<int>(kind)),
                   [&](AttentionConfig& a) {
                       a.gate = {kind, doubled, doubled};
                   });
    attend("no pre-norm", [](AttentionConfig& a) {
        a.pre_norm = false;
        a.gate.kind = GateKind::headwise;
    });
    attend("post-norm of one head's gate", [](AttentionConfig& a) {
        a.heads = 1;
        a.post_norm = true;
        a.gate.kind = GateKind::headwise;
    });
    add("norms on both sides", [](ModelConfig& m) {
        m.norm.placement = NormPlacement::peri;
        m.norm.out_gain = 0.7;
    });
    add("layer norms on both sides", [](ModelConfig& m) {
        m.norm.placement = NormPlacement::peri;
        m.norm.kind = NormKind::layer;
        m.norm.gain = true;
    });
    add("hybrid norm", [](ModelConfig& m) {
        m.norm.placement = NormPlacement::hybrid;
        m.norm.gain = true;
        m.attention.qk.kind = QkKind::qkv_rms_w;
    });
    add("value embeddings", [](ModelConfig& m) { m.residual.value_embeddings = 1; });
    add("value embeddings, two tables, value residual, grouped", [](ModelConfig& m) {
        m.layers = 5;
        m.attention.kv_heads = 1;
        m.residual.value_embeddings = 2;
        m.residual.values = ValueMix::first;
    });
    add("smear", [](ModelConfig& m) { m.residual.smear = true; });
    add(
        "smear without embedding norm, documents",
        [](ModelConfig& m) {
            m.residual.smear = true;
            m.embedding_norm = false;
        },
        true);
    add("backout", [](ModelConfig& m) { m.residual.backout = 0; });
    add(
        "every part at once, documents",
        [](ModelConfig& m) {
            m.layers = 4;
            m.norm = {NormKind::layer, true, 1e-5, NormPlacement::peri, 0.8};
            m.residual = {true, true, ValueMix::first, 2, true, 1};
            m.head = {true, 0.01, {Softcap::sigmoid, 9, 1, 2}};
            AttentionConfig& a = m.attention;
            a.heads = 4;
            a.kv_heads = 2;
            a.window = 7;
            a.conv.size = 3;
            a.qk = {QkKind::qkv_ln, 0.01};
            a.scale.kind = ScaleKind::logn_bias;
            a.scale.scale_n = ScaleCount::visible;
            a.distance = {DistanceKind::scale_invariant, 3, true, 1, true};
            a.softcap = 4;
            a.sink = SinkKind::learned;
            a.output_norm = {OutputNorm::head, true};
            a.gate.kind = GateKind::elementwise;
        },
        true);
    return all;
}

}  // namespace longreach::test
