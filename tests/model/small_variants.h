// One tiny model for every value of every choice beyond the plain model.
#pragma once

#include <fmt/format.h>

#include <string>
#include <utility>
#include <vector>

#include "mixers/latent.h"
#include "model/laws_of_configs.h"
#include "model/small_models.h"

namespace longreach::test {

// A law of distance whose tau, c or both learn.
inline void learned_distance(model::AttentionConfig& a, const std::string& law, double tau, double c,
                             bool learn_tau = true, bool learn_c = true) {
    using enum model::Learning;
    add_law(a, law,
            {{"tau", starts(tau, learn_tau ? layer : by_law, learn_tau)},
             {"c", starts(c, learn_c ? layer : by_law)}});
}

// A softcap, a law of the number of keys and one of distance.
inline const std::string softcap = "1.5*tanh(z/1.5)";
inline void capped_laws(model::AttentionConfig& a) {
    add_law(a, softcap);
    add_law(a, "logn");
    learned_distance(a, "scale_invariant", 3, 1);
}

// attend(name, change, documents) adds a model whose attention is changed.
template <class Attend>
void add_named_laws(const Attend& attend) {
    using enum model::Learning;
    for (const std::string& law : count_laws)
        attend("length scale " + law, [&](model::AttentionConfig& a) {
            add_law(a, law);
            if (law.starts_with("solve_c")) a.params["C"] = starts(2);
            if (law == "llama4") a.params["floor_scale"] = starts(3);
            if (law == "grok2") a.params["length"] = starts(4);
            if (is_for_cosines(law)) a.qk.kind = model::QkKind::cosa;
        });
    for (const model::Learning learn : {no, model::Learning::model, layout, layer, head}) {
        const int number = static_cast<int>(learn);
        attend(fmt::format("log n with a bias, learning {}", number), [&](model::AttentionConfig& a) {
            add_law(a, "logn_bias", {{"s", starts(0.43, learn)}, {"b", starts(0.3, learn)}});
        });
        attend(fmt::format("plain factor, learning {}", number), [&](model::AttentionConfig& a) {
            a.score_base = 0.2;
            add_law(a, "z * r", {{"r", starts(learn == head ? json::Value("parity") : 1, learn)}});
        });
    }
    for (const model::ScoreCount count : {model::ScoreCount::automatic, model::ScoreCount::sequence,
                                          model::ScoreCount::document, model::ScoreCount::visible})
        attend(
            fmt::format("n counted as {}, window, documents", static_cast<int>(count)),
            [&](model::AttentionConfig& a) {
                a.window = 4;
                add_law(a, "sqrt2lognp1");
                a.score_count = count;
            },
            true);
    for (const std::string& law : distance_laws)
        attend("distance " + law, [&](model::AttentionConfig& a) {
            add_law(a, law);
            if (law == "alibi") a.angle = "nope";
        });
    for (const std::string law : {"scale_invariant", "log_bias"})
        for (int learned = 1; learned < 4; ++learned)
            attend(fmt::format("distance {}, learned parts {}", law, learned),
                   [&](model::AttentionConfig& a) {
                       learned_distance(a, law, 2, 1.2, learned % 2 == 1, learned >= 2);
                   });
    attend(
        "interpolation by distance and length, documents",
        [](model::AttentionConfig& a) {
            add_law(a, "3*tanh(z/3)");
            add_law(a, "si_interp", {{"c", starts(1)}});
        },
        true);
    attend(
        "interpolation by length alone, documents",
        [](model::AttentionConfig& a) {
            add_law(a, "si_interp", {{"kappa", starts(1)}, {"p", starts(0)}});
        },
        true);
    attend("a learned factor before an interpolation", [](model::AttentionConfig& a) {
        add_law(a, "sqrt2lognp1", {{"r", starts("parity", head)}});
        add_law(a, "si_interp");
    });
    attend("two factors and a distance, by name", [](model::AttentionConfig& a) {
        add_law(a, "logn");
        add_law(a, "sqrt2lognp1");
        add_law(a, "kerple_log");
    });
    attend("ALiBi, six heads", [](model::AttentionConfig& a) {
        a.heads = 6;
        a.head_dim = 4;
        add_law(a, "alibi");
        a.angle = "nope";
    });
}

template <class Attend>
void add_formulas(const Attend& attend) {
    using enum model::Learning;
    const auto formula = [&](const std::string& name, json::Value score,
                             std::map<std::string, model::ScoreParameterConfig> params,
                             bool documents = false) {
        attend(
            "formula: " + name,
            [&](model::AttentionConfig& a) {
                a.score = score;
                a.params = params;
            },
            documents);
    };
    formula("gain and bias, tau positive, c by head", "z * sqrt(1 + 2*log1p(t/tau)) - c*2*log1p(t/tau)",
            {{"tau", {.init = 3, .learn = layer, .positive = true}},
             {"c", {.init = "1 + 0.2*h", .learn = head}}});
    formula("factor by number of keys, documents", "z * (r*sqrt(2*log(0.5*n + 1.5)) + b)",
            {{"r", {.init = 0.7, .learn = head}}, {"b", {.init = 0.1, .learn = model::Learning::model}}},
            true);
    formula("vector by distance, by head", "z + 2*lookup(w, min(3, floor(log2(1 + t))))",
            {{"w", {.init = 0, .learn = head, .size = 4}}});
    formula("vector by number of keys, of the layout", "z * exp(lookup(w, n/3))",
            {{"w", {.init = 0.1, .learn = layout, .size = 5}}});
    formula("mixture over heads", "z * where(h < H/2, s*log(n + 1), r*sqrt(2*log(n + 1))) - 0.1*2^(-h)*t",
            {{"s", {.init = 0.43, .learn = layer}}, {"r", {.init = 0.5, .learn = layer}}});
    formula("power law held in a range", "z - a*t^p",
            {{"a", {.init = 0.3, .learn = head, .range = json::Array{0.01, 1e9}}},
             {"p", {.init = 0.7, .learn = head, .range = json::Array{0.01, 0.72}}}});
    formula("stages with a softcap",
            json::Array{"2*tanh(z/2)", "z * r*log(n + 1)", "z*(1 + t/9)^(-q) - sigmoid(q)*t/8"},
            {{"r", {.init = 0.5, .learn = layer}}, {"q", {.init = 0.4, .learn = head}}});
    formula("length of the sequence, layer and depth", "z * (1 + log(T)/10 + l/layers) - t/(d + L)", {});
    attend("formula: of cosines", [](model::AttentionConfig& a) {
        a.qk.kind = model::QkKind::cosa;
        a.score = "dot * g*(1 + t/8)^(-p)";
        a.params = {{"g", {.init = 3, .learn = head}}, {"p", {.init = 0.5}}};
    });
    formula("sum over n and t under a root", "z * sqrt(1 + log1p(t/5) + 0.8*log(0.5*n + 1)) - log1p(t/5)", {},
            true);

    formula("sum under a root that is over n alone once its numbers are known",
            "z * sqrt(1 + (1 - kappa)*log1p(t/5) + kappa*log(0.5*n + 1)) - p*log1p(t/5)",
            {{"kappa", {.init = 1}}, {"p", {.init = 0}}});
}

// Of what happens to the output before its projection.
template <class Attend>
void output_variants(const Attend& attend) {
    for (const model::OutputNorm kind : {model::OutputNorm::head, model::OutputNorm::all})
        for (bool gain : {false, true})
            attend(fmt::format("output norm {}{}", static_cast<int>(kind), gain ? " with gain" : ""),
                   [&](model::AttentionConfig& a) {
                       a.output_norm = {kind, gain};
                       a.sink = model::SinkKind::learned;
                   });
    attend("outputs without the token's own value", [](model::AttentionConfig& a) {
        a.output_norm.kind = model::OutputNorm::exclusive;
        a.gate.kind = model::GateKind::headwise;
        a.sink = model::SinkKind::learned;
    });
    attend("outputs without the token's own value, which is normed", [](model::AttentionConfig& a) {
        a.output_norm.kind = model::OutputNorm::exclusive;
        a.kv_heads = 1;
        a.qk.kind = model::QkKind::qkv_rms_w;
    });
    attend(
        "outputs without the token's own value, documents, window",
        [](model::AttentionConfig& a) {
            a.output_norm.kind = model::OutputNorm::exclusive;
            a.window = 6;
            a.sink = model::SinkKind::zero;
        },
        true);
    attend("differences of heads", [](model::AttentionConfig& a) {
        a.heads = 4;
        a.kv_heads = 2;
        a.differential = true;
        a.gate.kind = model::GateKind::headwise;
    });
    attend(
        "differences of heads, normed, documents",
        [](model::AttentionConfig& a) {
            a.heads = 4;
            a.kv_heads = 1;
            a.differential = true;
            a.output_norm = {model::OutputNorm::head, true};
            a.gate.kind = model::GateKind::elementwise;
            a.sink = model::SinkKind::learned;
        },
        true);
    attend("differences of stick-breaking heads without their own value", [](model::AttentionConfig& a) {
        a.kv_heads = 1;
        a.differential = true;
        a.normaliser = model::Normaliser::stick_breaking;
        a.output_norm.kind = model::OutputNorm::exclusive;
    });
    attend("factor of the position on the output", [](model::AttentionConfig& a) {
        a.output_norm = {model::OutputNorm::position, false, "(1 + p/4)^0.5"};
        a.gate.kind = model::GateKind::headwise;
    });
}

// Of how scores become weights.
template <class Attend>
void normaliser_variants(const Attend& attend) {
    attend("sticks", [](model::AttentionConfig& a) { a.normaliser = model::Normaliser::stick_breaking; });
    attend(
        "sticks, no positions, grouped, window, documents",
        [](model::AttentionConfig& a) {
            a.normaliser = model::Normaliser::stick_breaking;
            a.angle = "nope";
            a.heads = 4;
            a.kv_heads = 2;
            a.window = 6;
        },
        true);
    attend("sticks, chunks, distance, length scale, softcap", [](model::AttentionConfig& a) {
        a.normaliser = model::Normaliser::stick_breaking;
        a.chunk = 5;
        capped_laws(a);
    });
    for (const double alpha : {1.5, 1.25, 1.8})
        attend(fmt::format("entmax {}", alpha), [&](model::AttentionConfig& a) {
            a.normaliser = model::Normaliser::entmax;
            a.entmax_alpha = alpha;
        });
    attend(
        "entmax, its temperature, grouped, window, documents",
        [](model::AttentionConfig& a) {
            a.normaliser = model::Normaliser::entmax;
            a.heads = 4;
            a.kv_heads = 2;
            a.window = 6;
            add_law(a, "adaptive_logn");
        },
        true);
    attend("entmax, learned alphas, sink of zero", [](model::AttentionConfig& a) {
        a.normaliser = model::Normaliser::entmax;
        a.entmax_learned = true;
        a.sink = model::SinkKind::zero;
    });
    attend("entmax, learned sinks, forget gates", [](model::AttentionConfig& a) {
        a.normaliser = model::Normaliser::entmax;
        a.sink = model::SinkKind::learned;
        add_law(a, "forgetting");
    });
    attend("entmax 1.25, chunks, distance, length scale, softcap, sink of zero",
           [](model::AttentionConfig& a) {
               a.normaliser = model::Normaliser::entmax;
               a.entmax_alpha = 1.25;
               a.chunk = 5;
               capped_laws(a);
               a.sink = model::SinkKind::zero;
           });
}

inline std::vector<SmallModel> small_variants() {
    std::vector<SmallModel> all;
    const auto add = [&](const std::string& name, auto change, bool documents = false) {
        SmallModel small{name, tiny_model(2), documents};
        small.config.train_context = 8;  // shorter than the sequences, so that they exceed it
        change(small.config);
        all.push_back(std::move(small));
    };
    // changes only the attention
    const auto attend = [&](const std::string& name, auto change, bool documents = false) {
        add(
            name, [&](model::ModelConfig& m) { change(m.attention); }, documents);
    };

    attend("chunk", [](model::AttentionConfig& a) { a.chunk = 5; });
    attend(
        "chunk, documents", [](model::AttentionConfig& a) { a.chunk = 5; }, true);

    attend("convolution", [](model::AttentionConfig& a) { a.conv.size = 3; });
    attend(
        "convolution of keys, documents",
        [](model::AttentionConfig& a) {
            a.conv = {4, false, true, false};
        },
        true);
    add("convolution of values, grouped, value residual", [](model::ModelConfig& m) {
        m.attention.kv_heads = 1;
        m.attention.conv = {2, false, false, true};
        m.residual.values = model::ValueMix::first;
    });

    for (const auto& [name, kind] : std::vector<std::pair<std::string, model::QkKind>>{
             {"rms norm with gain of queries and keys", model::QkKind::qk_rms_w},
             {"layer norm of queries and keys", model::QkKind::qk_ln},
             {"unit queries and keys", model::QkKind::qk_l2},
             {"learned eps", model::QkKind::qk_rms_eps},
             {"unit queries", model::QkKind::qna},
             {"unit keys", model::QkKind::kna},
             {"unit keys with a gain", model::QkKind::kna_w},
             {"rms norm with gain of queries, keys and values", model::QkKind::qkv_rms_w},
             {"layer norm of queries, keys and values", model::QkKind::qkv_ln}})
        attend(name, [&](model::AttentionConfig& a) { a.qk = {kind, 0.01}; });
    attend("one rms norm over all heads, grouped", [](model::AttentionConfig& a) {
        a.kv_heads = 1;
        a.qk = {model::QkKind::qk_rms_full, 0.01};
    });
    attend("one rms norm over all heads, no positions", [](model::AttentionConfig& a) {
        a.angle = "nope";
        a.qk = {model::QkKind::qk_rms_full, 0.01};
    });
    attend("biases of queries, keys and values, grouped", [](model::AttentionConfig& a) {
        a.kv_heads = 1;
        a.bias = model::AttentionBias::qkv;
    });
    add("biases everywhere, learned positions", [](model::ModelConfig& m) {
        m.attention.bias = model::AttentionBias::all;
        m.attention.conv.size = 3;
        m.mlp = {model::MlpKind::swiglu, 24, true};
        m.positions = 64;
    });
    add(
        "biases of a plain MLP, learned positions, documents",
        [](model::ModelConfig& m) {
            m.norm = {NormKind::layer, true};
            m.attention.angle = "nope";
            m.attention.bias = model::AttentionBias::all;
            m.mlp = {model::MlpKind::gelu_tanh, 24, true};
            m.embedding_norm = false;
            m.positions = 64;
        },
        true);
    add("geglu", [](model::ModelConfig& m) { m.mlp.kind = model::MlpKind::geglu_tanh; });
    add("norms after the modules alone", [](model::ModelConfig& m) {
        m.norm.placement = model::NormPlacement::after;
        m.norm.out_gain = 0.7;
        m.attention.qk = {model::QkKind::qk_rms_full, 0.01};
    });
    attend("learned eps per head, grouped", [](model::AttentionConfig& a) {
        a.heads = 4;
        a.kv_heads = 2;
        a.qk = {model::QkKind::qk_rms_eps, 1, true};
    });
    add("layer norm of values, value residual and value embeddings", [](model::ModelConfig& m) {
        m.attention.qk = {model::QkKind::qkv_ln, 0.01};
        m.residual.values = model::ValueMix::first;
        m.residual.value_embeddings = 1;
    });

    add_named_laws(attend);
    add_formulas(attend);
    add("length scales of two layouts", [](model::ModelConfig& m) {
        model::AttentionConfig a = m.attention, b = m.attention;
        add_law(a, "sqrt_abc");
        add_law(b, "sqrt_abc", {{"a", starts(0.5)}});
        m.layers = 3;
        m.layouts = {{"a", a}, {"b", b}};
        m.pattern = {"a", "b"};
    });

    attend("attention softcap", [](model::AttentionConfig& a) { add_law(a, softcap); });
    attend("attention softcap, length scale, distance", [&](model::AttentionConfig& a) {
        add_law(a, softcap);
        add_law(a, "logn");
        add_law(a, "scale_invariant");
    });
    attend("forget gates", [](model::AttentionConfig& a) { add_law(a, "forgetting"); });
    attend(
        "forget gates, no positions, grouped, window, documents",
        [](model::AttentionConfig& a) {
            add_law(a, "forgetting");
            a.angle = "nope";
            a.heads = 4;
            a.kv_heads = 2;
            a.window = 6;
        },
        true);
    const auto capped_laws = [&](model::AttentionConfig& a) {
        add_law(a, softcap);
        add_law(a, "logn");
        learned_distance(a, "scale_invariant", 3, 1);
    };
    attend("forget gates, chunks, distance, length scale, softcap, sinks", [&](model::AttentionConfig& a) {
        a.chunk = 5;
        capped_laws(a);
        add_law(a, "forgetting");
        a.sink = model::SinkKind::learned;
    });
    const auto latent = [](model::AttentionConfig& a, int64_t shared, int64_t queries) {
        a.qk.kind = model::QkKind::none;
        a.own<model::LatentConfig>() = {12, shared, queries};
    };
    attend("latent", [&](model::AttentionConfig& a) { latent(a, 4, 0); });
    attend(
        "latent, nothing shared, no positions, window, documents",
        [&](model::AttentionConfig& a) {
            latent(a, 0, 0);
            a.angle = "nope";
            a.window = 6;
        },
        true);
    attend("latent, shared channels that do not turn, forget gates", [&](model::AttentionConfig& a) {
        latent(a, 4, 0);
        a.angle = "nope";
        add_law(a, "forgetting");
    });
    add(
        "latents of queries too, gains, distance, length scale, softcap, sinks, gate, documents",
        [&](model::ModelConfig& m) {
            model::AttentionConfig& a = m.attention;
            latent(a, 4, 8);
            m.norm = {NormKind::layer, true};
            set_angle(a, {"rope", 50});
            capped_laws(a);
            a.sink = model::SinkKind::learned;
            a.gate.kind = model::GateKind::elementwise;
        },
        true);
    attend("latent, sticks, pairs that fade with distance", [&](model::AttentionConfig& a) {
        latent(a, 4, 0);
        a.normaliser = model::Normaliser::stick_breaking;
        a.angle = json::Value::object({{"near", "p * 50^(-2*m/d)"}, {"growth", "-0.1*p/(1 + m)"}});
    });
    normaliser_variants(attend);
    attend("sink of zero", [](model::AttentionConfig& a) { a.sink = model::SinkKind::zero; });
    attend("learned sinks", [](model::AttentionConfig& a) { a.sink = model::SinkKind::learned; });
    output_variants(attend);
    for (const model::QkKind kind : {model::QkKind::qk_rms, model::QkKind::none, model::QkKind::kna,
                                     model::QkKind::qk_ln, model::QkKind::qk_rms_eps})
        attend(fmt::format("pairs that fade with distance, norm {}", static_cast<int>(kind)),
               [&](model::AttentionConfig& a) {
                   a.angle = json::Value::object({{"near", "p * 50^(-2*m/d)"}, {"growth", "-0.1*p/(1 + m)"}});
                   a.qk = {kind, 0.01};
               });
    for (const model::GateKind kind :
         {model::GateKind::headwise, model::GateKind::elementwise, model::GateKind::sparse})
        for (bool doubled : {false, true})
            attend(fmt::format("{} gate {}", doubled ? "doubled" : "plain", static_cast<int>(kind)),
                   [&](model::AttentionConfig& a) {
                       a.gate = {kind, doubled, doubled};
                   });
    attend("no pre-norm", [](model::AttentionConfig& a) {
        a.pre_norm = false;
        a.gate.kind = model::GateKind::headwise;
    });
    attend("post-norm of one head's gate", [](model::AttentionConfig& a) {
        a.heads = 1;
        a.post_norm = true;
        a.gate.kind = model::GateKind::headwise;
    });
    add("norms on both sides", [](model::ModelConfig& m) {
        m.norm.placement = model::NormPlacement::peri;
        m.norm.out_gain = 0.7;
    });
    add("layer norms on both sides", [](model::ModelConfig& m) {
        m.norm.placement = model::NormPlacement::peri;
        m.norm.kind = NormKind::layer;
        m.norm.gain = true;
    });
    add("hybrid norm", [](model::ModelConfig& m) {
        m.norm.placement = model::NormPlacement::hybrid;
        m.norm.gain = true;
        m.attention.qk.kind = model::QkKind::qkv_rms_w;
    });
    add("value embeddings", [](model::ModelConfig& m) { m.residual.value_embeddings = 1; });
    add("value embeddings, two tables, value residual, grouped", [](model::ModelConfig& m) {
        m.layers = 5;
        m.attention.kv_heads = 1;
        m.residual.value_embeddings = 2;
        m.residual.values = model::ValueMix::first;
    });
    add("smear", [](model::ModelConfig& m) { m.residual.smear = true; });
    add(
        "smear without embedding norm, documents",
        [](model::ModelConfig& m) {
            m.residual.smear = true;
            m.embedding_norm = false;
        },
        true);
    add("backout", [](model::ModelConfig& m) { m.residual.backout = 0; });
    add(
        "every part at once, documents",
        [&](model::ModelConfig& m) {
            m.layers = 4;
            m.norm = {NormKind::layer, true, 1e-5, model::NormPlacement::peri, 0.8};
            m.residual = {true, true, model::ValueMix::first, 2, true, 1};
            m.head = {true, 0.01, {Softcap::sigmoid, 9, 1, 2}};
            model::AttentionConfig& a = m.attention;
            a.heads = 4;
            a.kv_heads = 2;
            a.window = 7;
            a.conv.size = 3;
            a.qk = {model::QkKind::qkv_ln, 0.01};
            add_law(a, "4*tanh(z/4)");
            add_law(a, "logn_bias");
            learned_distance(a, "scale_invariant", 3, 1);
            a.score_count = model::ScoreCount::visible;
            a.sink = model::SinkKind::learned;
            a.output_norm = {model::OutputNorm::head, true};
            a.gate.kind = model::GateKind::elementwise;
            add_law(a, "forgetting");
        },
        true);
    return all;
}

}  // namespace longreach::test
