// Tiny models for tests: one per feature and per useful combination, and any number of
// random ones.
#pragma once

#include <fmt/format.h>

#include <string>
#include <vector>

#include "base/rng.h"
#include "model/laws.h"
#include "model/model_config.h"

namespace longreach::test {

// Three layers of 16 channels with two heads of 8. No matrix starts at zero, so no gradient vanishes.
inline model::ModelConfig tiny_model(int64_t layers = 3) {
    model::ModelConfig m;
    m.layers = layers;
    m.width = 16;
    m.vocab_size = 19;
    m.mlp.hidden = 24;
    m.attention.heads = 2;
    m.attention.head_dim = 8;
    m.init.zero_projections = false;
    m.init.zero_head = false;
    return m;
}

struct SmallModel {
    std::string name;
    model::ModelConfig config;
    bool documents = false;
    int64_t sequences = 2, length = 12;
};

inline std::vector<SmallModel> small_models() {
    std::vector<SmallModel> all;
    const auto add = [&](const std::string& name, auto change, int64_t layers = 3) -> SmallModel& {
        all.push_back({name, tiny_model(layers)});
        change(all.back().config);
        return all.back();
    };
    add("plain", [](model::ModelConfig&) {});
    add(
        "one layer", [](model::ModelConfig&) {}, 1);
    add("rms gain, gelu", [](model::ModelConfig& m) {
        m.norm.gain = true;
        m.mlp.kind = model::MlpKind::gelu;
    });
    add("layer norm, gelu_tanh", [](model::ModelConfig& m) {
        m.norm.kind = NormKind::layer;
        m.mlp.kind = model::MlpKind::gelu_tanh;
    });
    add("layer norm with gain, swiglu, tied", [](model::ModelConfig& m) {
        m.norm = {NormKind::layer, true, 1e-5};
        m.mlp.kind = model::MlpKind::swiglu;
        m.head.tied = true;
        m.init.embedding_std = 0.5;
    });
    add("no embedding norm, large eps", [](model::ModelConfig& m) {
        m.embedding_norm = false;
        m.norm.eps = 0.5;
        m.attention.qk.eps = 0.25;
    });
    add("tanh softcap", [](model::ModelConfig& m) {
        m.head.softcap.kind = Softcap::tanh;
        m.head.softcap.cap = 2;
    });
    add("z-loss", [](model::ModelConfig& m) { m.head.z_loss = 0.05; });
    add("tanh softcap, z-loss", [](model::ModelConfig& m) {
        m.head.softcap.kind = Softcap::tanh;
        m.head.softcap.cap = 1.5;
        m.head.z_loss = 0.1;
    });
    add("sigmoid softcap, z-loss, tied", [](model::ModelConfig& m) {
        m.head.softcap = {Softcap::sigmoid, 6, 0.5, 1.5};
        m.head.z_loss = 0.01;
        m.head.tied = true;
    });
    add("x0", [](model::ModelConfig& m) { m.residual.x0 = true; });
    add(
        "unet, even", [](model::ModelConfig& m) { m.residual.unet = true; }, 4);
    add(
        "unet, odd", [](model::ModelConfig& m) { m.residual.unet = true; }, 5);
    add(
        "two passes, x0",
        [](model::ModelConfig& m) {
            m.loops = 2;
            m.residual.x0 = true;
        },
        2);
    add(
        "three passes, tied, documents",
        [](model::ModelConfig& m) {
            m.loops = 3;
            m.head.tied = true;
        },
        1)
        .documents = true;
    add("values", [](model::ModelConfig& m) { m.residual.values = model::ValueMix::first; });
    add(
        "x0, unet, values",
        [](model::ModelConfig& m) {
            m.residual = {true, true, model::ValueMix::first};
        },
        5);
    add("grouped queries, values", [](model::ModelConfig& m) {
        m.attention.heads = 4;
        m.attention.kv_heads = 2;
        m.attention.head_dim = 4;
        m.residual.values = model::ValueMix::first;
    });
    add("one key head, heads wider than the model", [](model::ModelConfig& m) {
        m.attention.heads = 3;
        m.attention.kv_heads = 1;
        m.attention.head_dim = 12;
    });
    // Wider than any panel of the CPU's matrix products, and not a multiple of any.
    add(
        "wide heads", [](model::ModelConfig& m) { m.attention.head_dim = 76; }, 1);
    add(
        "wide grouped heads, window",
        [](model::ModelConfig& m) {
            m.attention.heads = 2;
            m.attention.kv_heads = 1;
            m.attention.head_dim = 40;
            m.attention.window = 6;
            add_law(m.attention, "scale_invariant", {{"tau", starts(2)}});
        },
        2);
    add("window", [](model::ModelConfig& m) { m.attention.window = 4; });
    add("documents", [](model::ModelConfig&) {}).documents = true;
    add("window, documents", [](model::ModelConfig& m) { m.attention.window = 5; }).documents = true;
    add("p-rope", [](model::ModelConfig& m) { set_angle(m.attention, {"p_rope", 1048576}); });
    add("p-rope, linspace", [](model::ModelConfig& m) {
        set_angle(m.attention, {"p_rope_linspace", 1024, 0.75});
    });
    add("scaled by yarn", [](model::ModelConfig& m) {
        m.train_context = 20;
        set_angle(m.attention, {"rope", 50});
        m.attention.angle_scaling = {.kind = "yarn", .original_context = 5, .fast = 1.4, .slow = 0.2};
    });
    add(
        "scaled by pi, ntk and llama3, documents",
        [](model::ModelConfig& m) {
            m.train_context = 20;
            set_angle(m.attention, {"rope", 50});
            m.attention.angle_scaling = {.kind = "pi", .factor = 3};
            m.layouts = {{"pi", m.attention}, {"ntk", m.attention}, {"llama3", m.attention}};
            m.layouts["ntk"].angle_scaling = {.kind = "ntk", .factor = 4};
            m.layouts["llama3"].angle_scaling = {
                .kind = "llama3", .factor = 4, .original_context = 7, .fast = 1.1, .slow = 0.1};
            m.pattern = {"pi", "ntk", "llama3"};
        },
        3)
        .documents = true;
    add("nope", [](model::ModelConfig& m) { m.attention.angle = "nope"; });
    add("nope, raw queries and keys", [](model::ModelConfig& m) {
        m.attention.angle = "nope";
        m.attention.qk.kind = model::QkKind::none;
    });
    add("raw queries and keys", [](model::ModelConfig& m) { m.attention.qk.kind = model::QkKind::none; });
    add("scale-invariant", [](model::ModelConfig& m) { add_law(m.attention, "scale_invariant"); });
    add("scale-invariant, small tau, window, documents", [](model::ModelConfig& m) {
        add_law(m.attention, "scale_invariant", {{"tau", starts(0.5)}});
        m.attention.window = 7;
    }).documents = true;
    const auto layouts = [](model::ModelConfig& m) {
        model::AttentionConfig local = m.attention, global = m.attention, last = m.attention;
        local.window = 3;
        add_law(local, "scale_invariant", {{"tau", starts(3)}});
        global.angle = "nope";
        global.heads = 4;
        global.kv_heads = 2;  // 2 * 8 value channels, as in the other layouts
        last.window = 6;
        last.angle = "p_rope";
        last.qk.kind = model::QkKind::none;
        m.layouts = {{"local", local}, {"global", global}, {"last", last}};
        m.pattern = {"local", "global"};
        m.last = "last";
    };
    add("layouts", layouts, 4);
    add(
        "layouts, x0, unet, values, documents",
        [&](model::ModelConfig& m) {
            layouts(m);
            m.residual = {true, true, model::ValueMix::first};
        },
        5)
        .documents = true;
    SmallModel& everything = add(
        "everything, odd sizes",
        [&](model::ModelConfig& m) {
            layouts(m);
            for (auto& [name, a] : m.layouts) a.head_dim = 12;
            m.width = 23;
            m.vocab_size = 31;
            m.mlp = {model::MlpKind::swiglu, 33};
            m.norm = {NormKind::layer, true, 1e-5};
            m.residual = {true, true, model::ValueMix::first};
            m.head = {true, 0.02, {Softcap::sigmoid, 9, 1, 2}};
        },
        5);
    everything.documents = true;
    everything.sequences = 1;
    everything.length = 24;
    return all;
}

// Any of the angles that are positions times frequencies.
template <class Below, class Between>
Turning random_turning(const Below& below, const Between& between) {
    const int64_t kind = below(3);
    Turning turning{.base = between(5, 20000), .fraction = between(0, 1)};
    const bool linear = below(2) == 0;
    turning.angle = kind == 0 ? "rope" : kind == 2 ? "nope" : linear ? "p_rope_linspace" : "p_rope";
    return turning;
}

// A model drawn at random from everything above, valid by construction.
inline SmallModel random_model(uint32_t stream) {
    const Rng rng(13, Purpose::test, stream);
    uint64_t drawn = 0;
    const auto below = [&](int64_t n) {
        return static_cast<int64_t>(rng.below(drawn++, static_cast<uint64_t>(n)));
    };
    const auto flag = [&] { return below(2) == 1; };
    const auto between = [&](double low, double high) { return low + (high - low) * rng.uniform(drawn++); };

    SmallModel r{fmt::format("random model {}", stream), tiny_model(1 + below(4)), flag(), 1 + below(3),
                 2 + below(15)};
    model::ModelConfig& m = r.config;
    m.width = 8 + below(17);
    m.vocab_size = 5 + below(27);
    m.embedding_norm = flag();
    m.norm = {flag() ? NormKind::rms : NormKind::layer, flag(), flag() ? 1e-6 : 1e-2};
    m.mlp = {static_cast<model::MlpKind>(below(4)), 4 + below(37)};
    m.residual = {flag(), m.layers > 1 && flag(),
                  m.layers > 1 && flag() ? model::ValueMix::first : model::ValueMix::none};
    m.head = {flag(), flag() ? between(0, 0.1) : 0, {static_cast<Softcap>(below(3)), 4, between(-1, 1), 2}};
    m.init.matrix_bound = between(0.5, 1.5);
    m.init.embedding_std = between(0.5, 1.5);
    const int64_t kv_heads = 1 + below(2), head_dim = 4 * (1 + below(4));
    const auto attention = [&] {
        model::AttentionConfig a;
        a.kv_heads = kv_heads;
        a.heads = kv_heads * (1 + below(3));
        a.head_dim = head_dim;
        a.window =
            flag() ? 2 + below(r.length) : 0;  // a window of 1 would leave queries and keys without effect
        set_angle(a, random_turning(below, between));
        a.qk = {flag() ? model::QkKind::qk_rms : model::QkKind::none, flag() ? 1e-6 : 0.0078125};
        const bool invariant = flag();
        const double tau = between(0.2, 20);
        if (invariant) add_law(a, "scale_invariant", {{"tau", starts(tau)}});
        return a;
    };
    m.attention = attention();
    if (m.layers > 1 && flag()) {
        m.layouts = {{"even", attention()}, {"odd", attention()}};
        m.pattern = {"even", "odd"};
        if (m.layers > 2 && flag()) m.last = "even";
    }
    return r;
}

}  // namespace longreach::test
