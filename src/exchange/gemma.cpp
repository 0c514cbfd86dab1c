// Gemma and its successors: gated gelu, gains of 1 + w, embeddings times sqrt(width), and from the second on norms on
// both sides of a module, softcaps, windows in most layers.
//
// The embedding stored here is sqrt(C) times theirs; where the head is tied to it, the gain of the final norm is
// 1 / sqrt(C) times theirs, so that every logit stays what it is.
#include <cmath>

#include <fmt/format.h>

#include "exchange/family.h"

namespace longreach::exchange {

namespace {

void read_shape(const Settings& s, Foreign& foreign) {
    s.ignore({"architectures", "torch_dtype", "dtype", "transformers_version", "use_cache",
              "initializer_range", "bos_token_id", "eos_token_id", "pad_token_id", "attention_dropout",
              "_name_or_path", "cache_implementation", "hidden_act", "sliding_window_pattern",
              "_sliding_window_pattern"});
    for (const char* key : {"hidden_act", "hidden_activation"}) {
        const std::string activation = s.text(key, "gelu_pytorch_tanh");
        // Older files say gelu where the tanh form is meant.
        if (activation != "gelu_pytorch_tanh" && activation != "gelu") s.only(key, "gelu_pytorch_tanh");
    }
    s.only("use_bidirectional_attention", false);
    s.only("quantization_config", nullptr);
    foreign.model.set("layers", s.needed("num_hidden_layers"))
        .set("width", s.needed("hidden_size"))
        .set("vocab_size", s.needed("vocab_size"))
        .set("train_context", s.integer("max_position_embeddings", 8192, 1))
        .set("embedding_norm", false)
        .set("norm",
             json::Value::object({{"kind", "rms"}, {"gain", true}, {"eps", s.number("rms_norm_eps", 1e-6)}}))
        .set("mlp", json::Value::object({{"kind", "geglu_tanh"}, {"hidden", s.needed("intermediate_size")}}))
        .set("head", json::Value::object({{"tied", s.flag("tie_word_embeddings", true)}}));
}

json::Value attention_of(const Settings& s) {
    const int64_t heads = s.needed("num_attention_heads");
    json::Value attention = json::Value::object({{"heads", heads},
                                                 {"kv_heads", s.integer("num_key_value_heads", heads, 1)},
                                                 {"head_dim", s.integer("head_dim", 256, 1)},
                                                 {"qk", json::Value::object({{"kind", "none"}})}});
    if (s.flag("attention_bias", false)) attention.set("bias", "all");
    return attention;
}

Rope rope_of(const Settings& s, const std::string& group, double base) {
    return {.base = base, .context = s.integer("max_position_embeddings", 8192, 1), .group = group};
}

void add_places(const Settings& s, Foreign& foreign) {
    add_llama_places(foreign);
    for (auto& [ours, place] : foreign.places)
        if (ours.ends_with(".gain")) place.added = 1;
    const double root = std::sqrt(static_cast<double>(s.needed("hidden_size")));
    foreign.places["embedding.weight"].factor = root;
    if (s.flag("tie_word_embeddings", true)) foreign.places["final_norm.gain"].factor = 1 / root;
}

// Four norms in a block.
void add_outer_norms(Foreign& foreign) {
    foreign.model.set("init", json::Value::object({{"zero_projections", false}}));
    foreign.model.find("norm")->set("placement", "peri");
    const std::string layer = "model.layers.*.";
    foreign.places["layers.*.attention_post_norm.gain"] = {.name = layer + "post_attention_layernorm.weight",
                                                           .added = 1};
    foreign.places["layers.*.mlp_norm.gain"] = {.name = layer + "pre_feedforward_layernorm.weight",
                                                .added = 1};
    foreign.places["layers.*.mlp_post_norm.gain"] = {.name = layer + "post_feedforward_layernorm.weight",
                                                     .added = 1};
}

// Softcaps and the base of the scores.
void add_score(const Settings& s, Foreign& foreign, json::Value& attention, double final_cap,
               double attention_cap) {
    const auto cap = [&](const char* key, double fallback) {  // null stands for none
        return s.value().find(key) == nullptr ? fallback : s.number(key, 0);
    };
    if (const double c = cap("final_logit_softcapping", final_cap); c > 0)
        foreign.model.find("head")->set("softcap", json::Value::object({{"kind", "tanh"}, {"cap", c}}));
    if (const double c = cap("attn_logit_softcapping", attention_cap); c > 0)
        attention.set("score", fmt::format("{0}*tanh(z/{0})", c));
    const double scalar = s.number("query_pre_attn_scalar", 256);
    if (!(scalar > 0)) s.refuse("query_pre_attn_scalar", "must be above 0");
    attention.set("score_base", 1 / std::sqrt(scalar));
}

// Layers by their kind; every `period`-th is full_attention if the settings name none.
std::vector<std::string> kinds_of(const Settings& s, int64_t period) {
    const int64_t layers = s.needed("num_hidden_layers");
    std::vector<std::string> kinds = s.texts("layer_types");
    if (layers > 1024) return {};  // the config has no room for them and will say so
    if (kinds.empty())
        for (int64_t l = 1; l <= layers; ++l)
            kinds.emplace_back(l % period == 0 ? full_attention : sliding_attention);
    if (kinds.size() != static_cast<size_t>(layers))
        s.refuse("layer_types", fmt::format("names {} layers; there are {}", kinds.size(), layers));
    for (const std::string& kind : kinds)
        if (kind != full_attention && kind != sliding_attention)
            s.refuse("layer_types", "only full_attention and sliding_attention are supported");
    return kinds;
}

}  // namespace

void read_gemma(const Settings& s, Foreign& foreign) {
    read_shape(s, foreign);
    json::Value attention = attention_of(s);
    set_rope(attention, s, rope_of(s, "", 10000));
    foreign.model.set("attention", attention);
    add_places(s, foreign);
}

void read_gemma2(const Settings& s, Foreign& foreign) {
    read_shape(s, foreign);
    json::Value attention = attention_of(s);
    set_rope(attention, s, rope_of(s, "", 10000));
    add_score(s, foreign, attention, 30, 50);
    set_layers(foreign.model, attention, kinds_of(s, 2),
               {{sliding_attention, json::Value::object({{"window", window_of(s)}})}});
    add_places(s, foreign);
    add_outer_norms(foreign);
}

// Layers with a window have rotary positions of their own.
void read_gemma3(const Settings& s, Foreign& foreign) {
    read_shape(s, foreign);
    json::Value attention = attention_of(s), changes = json::Value::object({{"window", window_of(s)}});
    attention.set("qk", json::Value::object({{"kind", "qk_rms_w"}, {"eps", s.number("rms_norm_eps", 1e-6)}}));
    const double local = s.number("rope_local_base_freq", 10000);
    const Settings groups = s.section("rope_parameters");
    const json::Value unscaled = json::Value::object({{"kind", "none"}});
    if (groups.has(sliding_attention)) {
        const Settings group = groups.section(sliding_attention);
        group.only("rope_type", "default");
        set_rotary(changes, group.number("rope_theta", local));
    } else {
        set_rotary(changes, local);
    }
    changes.set("angle_scaling", unscaled);
    set_rope(attention, s, rope_of(s, groups.has(full_attention) ? full_attention : "", 1e6));
    add_score(s, foreign, attention, 0, 0);
    const int64_t period = s.integer("sliding_window_pattern", s.integer("_sliding_window_pattern", 6, 1), 1);
    set_layers(foreign.model, attention, kinds_of(s, period), {{sliding_attention, changes}});
    add_places(s, foreign);
    add_outer_norms(foreign);
}

}  // namespace longreach::exchange
