// Llama and the forms that grew out of it: the same block, with other norms, biases and windows.
#include <cmath>

#include <fmt/format.h>

#include "exchange/family.h"

namespace longreach::exchange {

namespace {

int64_t head_dim_of(const Settings& settings, int64_t fallback = 0) {
    const int64_t width = settings.needed("hidden_size"), heads = settings.needed("num_attention_heads");
    const int64_t head_dim = settings.integer("head_dim", fallback, 1);
    if (head_dim > 0) return head_dim;
    if (width % heads != 0)
        settings.refuse("num_attention_heads", fmt::format("does not divide the width {}", width));
    return width / heads;
}

// What all of them say in the same words, and the sections of the config that follow from it.
void read_shape(const Settings& s, Foreign& foreign, double default_eps) {
    s.ignore({"architectures", "torch_dtype", "dtype", "transformers_version", "use_cache",
              "initializer_range", "bos_token_id", "eos_token_id", "pad_token_id", "attention_dropout",
              "pretraining_tp", "_name_or_path", "longreach_version", "name_or_path", "auto_map",
              "max_window_layers", "sliding_window", "use_sliding_window", "layer_types"});
    s.only("hidden_act", "silu");
    s.only("is_decoder", true);
    s.only("rope_interleaved", false);
    s.only("quantization_config", nullptr);
    foreign.model.set("layers", s.needed("num_hidden_layers"))
        .set("width", s.needed("hidden_size"))
        .set("vocab_size", s.needed("vocab_size"))
        .set("train_context", s.integer("max_position_embeddings", 2048, 1))
        .set("embedding_norm", false)
        .set("norm", json::Value::object(
                         {{"kind", "rms"}, {"gain", true}, {"eps", s.number("rms_norm_eps", default_eps)}}))
        .set("mlp", json::Value::object({{"kind", "swiglu"}, {"hidden", s.needed("intermediate_size")}}))
        .set("head", json::Value::object({{"tied", s.flag("tie_word_embeddings", false)}}));
}

json::Value attention_of(const Settings& s, int64_t head_dim, double default_base) {
    const int64_t heads = s.needed("num_attention_heads");
    json::Value attention = json::Value::object({{"heads", heads},
                                                 {"kv_heads", s.integer("num_key_value_heads", heads, 1)},
                                                 {"head_dim", head_dim},
                                                 {"qk", json::Value::object({{"kind", "none"}})}});
    set_rope(attention, s,
             {.base = default_base, .context = s.integer("max_position_embeddings", 2048, 1), .group = ""});
    return attention;
}

// Windows by layer, as Qwen writes them.
std::vector<std::string> kinds_of(const Settings& s) {
    std::vector<std::string> kinds = s.texts("layer_types");
    const auto layers = static_cast<size_t>(s.needed("num_hidden_layers"));
    if (layers > 1024) return {};  // the config has no room for them and will say so
    const bool slides = s.flag("use_sliding_window", false) && window_of(s) > 0;
    if (kinds.empty()) {
        const auto first = static_cast<size_t>(s.integer("max_window_layers", 28));
        for (size_t l = 0; l < layers; ++l)
            kinds.emplace_back(slides && l >= first ? sliding_attention : full_attention);
    }
    if (kinds.size() != layers)
        s.refuse("layer_types", fmt::format("names {} layers; there are {}", kinds.size(), layers));
    for (const std::string& kind : kinds) {
        if (kind != full_attention && kind != sliding_attention)
            s.refuse("layer_types", "only full_attention and sliding_attention are supported");
        if (kind == sliding_attention && !slides)
            s.refuse("layer_types", "sliding_attention needs sliding_window and use_sliding_window");
    }
    return kinds;
}

void set_windows(const Settings& s, Foreign& foreign, const json::Value& attention) {
    std::map<std::string, json::Value> changes;
    if (const int64_t window = window_of(s); window > 0)
        changes[sliding_attention] = json::Value::object({{"window", window}});
    set_layers(foreign.model, attention, kinds_of(s), changes);
}

void set_biases(const Settings& s, json::Value& attention) {
    if (s.flag("attention_bias", false)) attention.set("bias", "all");
}

}  // namespace

void add_llama_places(Foreign& foreign) {
    auto& places = foreign.places;
    const std::string layer = "model.layers.*.";
    places["embedding.weight"] = {.name = "model.embed_tokens.weight"};
    places["final_norm.gain"] = {.name = "model.norm.weight"};
    places["head.weight"] = {.name = "lm_head.weight"};
    places["layers.*.attention_norm.gain"] = {.name = layer + "input_layernorm.weight"};
    places["layers.*.mlp_norm.gain"] = {.name = layer + "post_attention_layernorm.weight"};
    for (const char* part : {"q", "k", "v", "o"})
        for (const char* kind : {"weight", "bias"})
            places[fmt::format("layers.*.attention.{}.{}", part, kind)] = {
                .name = fmt::format("{}self_attn.{}_proj.{}", layer, part, kind)};
    for (const char* part : {"q", "k"})
        places[fmt::format("layers.*.attention.{}_norm.gain", part)] = {
            .name = fmt::format("{}self_attn.{}_norm.weight", layer, part)};
    for (const char* part : {"gate", "up", "down"})
        for (const char* kind : {"weight", "bias"})
            places[fmt::format("layers.*.mlp.{}.{}", part, kind)] = {
                .name = fmt::format("{}mlp.{}_proj.{}", layer, part, kind)};
    foreign.ignored = {"rotary_emb.inv_freq"};
}

void read_llama(const Settings& s, Foreign& foreign) {
    read_shape(s, foreign, 1e-6);
    json::Value attention = attention_of(s, head_dim_of(s), 10000);
    set_biases(s, attention);
    foreign.model.set("attention", attention);
    if (s.flag("mlp_bias", false)) foreign.model.find("mlp")->set("bias", true);
    add_llama_places(foreign);
}

void read_mistral(const Settings& s, Foreign& foreign) {
    read_shape(s, foreign, 1e-6);
    json::Value attention = attention_of(s, head_dim_of(s), 10000);
    attention.set("window", window_of(s));
    foreign.model.set("attention", attention);
    add_llama_places(foreign);
}

void read_qwen2(const Settings& s, Foreign& foreign) {
    read_shape(s, foreign, 1e-6);
    json::Value attention = attention_of(s, head_dim_of(s), 10000);
    attention.set("bias", "qkv");
    set_windows(s, foreign, attention);
    add_llama_places(foreign);
}

void read_qwen3(const Settings& s, Foreign& foreign) {
    read_shape(s, foreign, 1e-6);
    json::Value attention = attention_of(s, head_dim_of(s, 128), 10000);
    set_biases(s, attention);
    attention.set("qk", json::Value::object({{"kind", "qk_rms_w"}, {"eps", s.number("rms_norm_eps", 1e-6)}}));
    set_windows(s, foreign, attention);
    add_llama_places(foreign);
}

// Norms after the modules alone, and one norm over all heads of queries and of keys.
void read_olmo2(const Settings& s, Foreign& foreign) {
    read_shape(s, foreign, 1e-5);
    const double eps = s.number("rms_norm_eps", 1e-5);
    json::Value attention = attention_of(s, head_dim_of(s), 10000);
    set_biases(s, attention);
    attention.set("qk", json::Value::object({{"kind", "qk_rms_full"}, {"eps", eps}}));
    foreign.model.set("attention", attention).set("init", json::Value::object({{"zero_projections", false}}));
    foreign.model.find("norm")->set("placement", "after");
    add_llama_places(foreign);
    foreign.places["layers.*.attention_post_norm.gain"] = {
        .name = "model.layers.*.post_attention_layernorm.weight"};
    foreign.places["layers.*.mlp_post_norm.gain"] = {.name =
                                                         "model.layers.*.post_feedforward_layernorm.weight"};
}

}  // namespace longreach::exchange
