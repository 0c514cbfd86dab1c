#include "exchange/stock.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "exchange/known_fields.h"
#include "model/attention_angle.h"

namespace longreach::exchange {

namespace {

using model::AttentionConfig;
using model::ModelConfig;
using model::QkKind;

constexpr std::string_view stock_model_fields[] = {".norm.gain", ".norm.eps", ".mlp.hidden",
                                                   ".mlp.bias",  ".mlp.kind", ".embedding_norm"};
// score_count: nothing depends on it where the score is plain.
constexpr std::string_view stock_layout_fields[] = {".window",  ".angle",  ".params", ".angle_scaling",
                                                    ".qk.kind", ".qk.eps", ".bias",   ".score_count"};

// What no class has, as a reason; "" if there is nothing of it.
std::string unusual_model(const ModelConfig& m) {
    if (m.embedding_norm) return "model.embedding_norm";
    if (m.mlp.kind != model::MlpKind::swiglu) return "model.mlp.kind (not swiglu)";
    const std::string field = unknown_field(m, stock_model_fields);
    return field.empty() ? "" : "model." + field;
}

std::string unusual_attention(const AttentionConfig& a) {
    if (a.bias == model::AttentionBias::qkv) return "bias qkv";
    if (a.written_angle() != "rope" || !model::rotary_base(a)) return "angle (not rope)";
    return unknown_field(a, stock_layout_fields);
}

// The attention that all layers share but for their windows, of which there is at most one size.
struct Shape {
    const AttentionConfig* attention = nullptr;
    int64_t window = 0;
    std::vector<bool> windowed;  // by layer
    std::string problem;
};

Shape common_shape(const ModelConfig& m) {
    Shape shape;
    for (int64_t l = 0; l < m.layers; ++l) {
        const AttentionConfig& a = m.layer_attention(l);
        const auto differ = [&](const std::string& what) { shape.problem = m.layout_path(l) + ": " + what; };
        if (const std::string unusual = unusual_attention(a); !unusual.empty()) differ(unusual);
        if (shape.attention == nullptr) shape.attention = &a;
        const AttentionConfig& first = *shape.attention;
        if (a.heads != first.heads || a.kv() != first.kv() || a.head_dim != first.head_dim)
            differ("other heads than layer 0");
        if (model::rotary_base(a) != model::rotary_base(first) || a.angle_scaling != first.angle_scaling)
            differ("another angle than layer 0");
        if (a.bias != first.bias) differ("another bias than layer 0");
        if (a.qk.kind != first.qk.kind || a.qk.eps != first.qk.eps) differ("another qk than layer 0");
        shape.windowed.push_back(a.window > 0);
        if (a.window == 0) continue;
        if (shape.window > 0 && a.window != shape.window) differ("windows of two sizes");
        shape.window = a.window;
    }
    return shape;
}

// The angle as rope_parameters. A base raised by ntk is a base.
json::Value rope_of(const ModelConfig& m, const AttentionConfig& a) {
    const model::ScalingConfig& s = a.angle_scaling;
    const double base = model::rotary_base(a).value();
    json::Value rope = json::Value::object({{"rope_type", "default"}, {"rope_theta", base}});
    if (!s.active()) return rope;
    const model::Scaling scaling = model::scaling_of(m, s);
    const auto d = static_cast<double>(a.head_dim);
    if (s.kind == "ntk") return rope.set("rope_theta", base * std::pow(scaling.factor, d / (d - 2)));
    rope.set("rope_type", s.kind == "pi" ? "linear" : s.kind).set("factor", scaling.factor);
    if (s.kind == "pi") return rope;
    rope.set("original_max_position_embeddings", scaling.original);
    const bool yarn = s.kind == "yarn";
    const model::Ramp ramp = model::ramp_of(s);
    rope.set(yarn ? "beta_fast" : "high_freq_factor", ramp.fast)
        .set(yarn ? "beta_slow" : "low_freq_factor", ramp.slow);
    if (!yarn) return rope;
    if (s.attention_factor > 0) rope.set("attention_factor", s.attention_factor);
    return rope.set("truncate", s.truncate);
}

json::Value common_config(const ModelConfig& m, const AttentionConfig& a) {
    const json::Value rope = rope_of(m, a);
    json::Value config = json::Value::object({{"vocab_size", m.vocab_size},
                                              {"hidden_size", m.width},
                                              {"intermediate_size", m.mlp_hidden()},
                                              {"num_hidden_layers", m.layers},
                                              {"num_attention_heads", a.heads},
                                              {"num_key_value_heads", a.kv()},
                                              {"head_dim", a.head_dim},
                                              {"hidden_act", "silu"},
                                              {"max_position_embeddings", m.train_context},
                                              {"initializer_range", 0.02},
                                              {"rms_norm_eps", m.norm.eps},
                                              {"use_cache", true},
                                              {"tie_word_embeddings", m.head.tied},
                                              // The older and the newer way to say the same.
                                              {"rope_theta", *rope.find("rope_theta")},
                                              {"rope_parameters", rope},
                                              {"attention_bias", a.bias == model::AttentionBias::all},
                                              {"attention_dropout", 0.0}});
    if (*rope.find("rope_type") != json::Value("default")) config.set("rope_scaling", rope);
    return config;
}

void add_gains(Stock& stock, const ModelConfig& m, bool heads) {
    for (int64_t l = 0; l < m.layers; ++l) {
        const AttentionConfig& a = m.layer_attention(l);
        const std::string layer = fmt::format("layers.{}.", l);
        const auto add = [&](const std::string& ours, int64_t count) {
            stock.ones.emplace_back(stock.places.place(layer + ours).name, count);
        };
        if (!m.norm.gain) add("attention_norm.gain", m.width);
        if (!m.norm.gain) add("mlp_norm.gain", m.width);
        if (heads && a.qk.kind == QkKind::qk_rms) add("attention.q_norm.gain", a.head_dim);
        if (heads && a.qk.kind == QkKind::qk_rms) add("attention.k_norm.gain", a.head_dim);
    }
    if (!m.norm.gain) stock.ones.emplace_back(stock.places.place("final_norm.gain").name, m.width);
}

}  // namespace

std::optional<Stock> stock_form(const ModelConfig& m, std::string& why) {
    why = unusual_model(m);
    if (!why.empty()) return {};
    const Shape shape = common_shape(m);
    why = shape.problem;
    if (!why.empty()) return {};
    const AttentionConfig& a = *shape.attention;
    Stock stock;
    stock.config = common_config(m, a);
    add_llama_places(stock.places);
    if (a.qk.kind == QkKind::none && shape.window == 0) {
        stock.architecture = "LlamaForCausalLM";
        stock.config.set("model_type", "llama").set("mlp_bias", m.mlp.bias);
        add_gains(stock, m, false);
    } else if ((a.qk.kind == QkKind::qk_rms || a.qk.kind == QkKind::qk_rms_w) && a.qk.eps == m.norm.eps &&
               !m.mlp.bias) {
        stock.architecture = "Qwen3ForCausalLM";
        json::Value kinds = json::Value::array();
        for (const bool windowed : shape.windowed)
            kinds.push(windowed ? "sliding_attention" : "full_attention");
        stock.config.set("model_type", "qwen3")
            .set("layer_types", kinds)
            .set("use_sliding_window", shape.window > 0)
            .set("sliding_window", shape.window > 0 ? json::Value(shape.window) : json::Value())
            .set("max_window_layers", m.layers);
        add_gains(stock, m, true);
    } else {
        why = a.qk.kind == QkKind::none ? "windows without norms of queries and keys"
              : a.qk.eps != m.norm.eps  ? "another qk.eps than norm.eps"
              : m.mlp.bias              ? "model.mlp.bias with norms of queries and keys"
                                        : "model.attention.qk.kind";
        return {};
    }
    stock.config.set("architectures", json::Value::array({stock.architecture}));
    return stock;
}

}  // namespace longreach::exchange
