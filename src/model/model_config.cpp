#include "model/model_config.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

namespace longreach {

namespace {
constexpr NumberRange positive{.min = 0, .max = 1e30, .open_min = true};
constexpr NumberRange non_negative{.min = 0, .max = 1e30};
}  // namespace

void NormConfig::fields(Fields& f) {
    f.choice<NormKind>("kind", kind,
                       {{NormKind::rms, "rms", "x / sqrt(mean(x^2) + eps)"},
                        {NormKind::layer, "layer", "(x - mean) / sqrt(variance + eps)"}},
                       {"normalisation before attention, MLP and head"});
    f.flag("gain", gain, {"learn a per-channel gain (and, for layer, a bias); false: parameter-free"});
    f.number("eps", eps, positive, {"added to the mean square (variance)"});
}

void MlpConfig::fields(Fields& f) {
    f.choice<MlpKind>("kind", kind,
                      {{MlpKind::relu2, "relu2", "max(0, x)^2"},
                       {MlpKind::gelu, "gelu", "exact, with erf"},
                       {MlpKind::gelu_tanh, "gelu_tanh", "tanh approximation"},
                       {MlpKind::swiglu, "swiglu", "silu(gate) * up, two input matrices"}},
                      {"activation of the MLP"});
    f.integer("hidden", hidden, {.min = 0, .max = 1 << 20}, {"hidden width F; 0: 4 * width"});
}

void PositionConfig::fields(Fields& f) {
    f.choice<PositionKind>("kind", kind,
                           {{PositionKind::rope, "rope", "rotate every channel pair"},
                            {PositionKind::p_rope, "p_rope", "rotate only the highest frequencies"},
                            {PositionKind::nope, "nope", "no rotary embedding"}},
                           {"rotary position embedding of queries and keys"});
    f.number("base", base, {.min = 1, .max = 1e12, .open_min = true},
             {"geometric: theta_m = base^(-2m/d); linspace: the slowest kept pair has theta = 1/base"});
    f.number("fraction", fraction, {.min = 0, .max = 1},
             {"p_rope: share p of the d/2 channel pairs that is rotated, floor(p*d/2) pairs; 1 is rope, 0 is "
              "nope"});
    f.choice<Spacing>(
        "spacing", spacing,
        {{Spacing::geometric, "geometric", "the kept pairs keep the theta they have in full rope"},
         {Spacing::linspace, "linspace", "theta from 1 to 1/base over the kept pairs, both ends included"}},
        {"p_rope: frequencies of the kept pairs"});
}

void QkConfig::fields(Fields& f) {
    f.choice<QkKind>("kind", kind,
                     {{QkKind::none, "none", "queries and keys as projected"},
                      {QkKind::qk_rms, "qk_rms", "parameter-free RMS norm of every head's query and key"}},
                     {"treatment of queries and keys before rotary"});
    f.number("eps", eps, positive,
             {"of that norm; 1.1920929e-7 is the f32 epsilon, 0.0078125 the bf16 epsilon other trainers end "
              "up with"});
}

void DistanceConfig::fields(Fields& f) {
    f.choice<DistanceKind>("kind", kind,
                           {{DistanceKind::none, "none", "scores do not depend on distance"},
                            {DistanceKind::scale_invariant, "scale_invariant",
                             "a(t) z - m(t) with m = 2 log(1 + t/tau), a = sqrt(1 + m)"}},
                           {"how scores depend on the distance t between query and key"});
    f.number("tau", tau, positive, {"scale_invariant: length scale, in tokens"});
}

void AttentionConfig::fields(Fields& f) {
    f.integer("heads", heads, {.min = 1, .max = 1024}, {"query heads H"});
    f.integer("kv_heads", kv_heads, {.min = 0, .max = 1024},
              {"key/value heads G, each shared by H/G consecutive query heads; 0: as many as heads"});
    f.integer("head_dim", head_dim, {.min = 4, .max = 256},
              {"channels per head d; heads * head_dim need not be width"});
    f.integer("window", window, {.min = 0, .max = int64_t{1} << 40},
              {"keys a query sees, its own included (key j visible to query i if i - j < window); 0: all "
               "before it"});
    f.section("position", position, {"rotary position embedding"});
    f.section("qk", qk, {"normalisation of queries and keys"});
    f.section("distance", distance, {"score transform by distance"});
}

void ResidualConfig::fields(Fields& f) {
    f.flag("x0", x0,
           {"every block starts with x = l0 x + l1 x0, learned per layer from (1, 0); x0 the embedding"});
    f.flag("unet", unet,
           {"the first half stores its outputs; the second adds them in reverse, weights learned from 1"});
    f.choice<ValueMix>(
        "values", values,
        {{ValueMix::none, "none"},
         {ValueMix::first, "first", "v = (1 - lambda) v + lambda v_first, lambda learned from 0.5"}},
        {"value residual: mix the first layer's values into every later layer's"});
}

void SoftcapConfig::fields(Fields& f) {
    f.choice<Softcap>("kind", kind,
                      {{Softcap::none, "none"},
                       {Softcap::tanh, "tanh", "cap * tanh(x / cap)"},
                       {Softcap::sigmoid, "sigmoid", "cap * sigmoid((x + shift) / temperature)"}},
                      {"bound on the final logits"});
    f.number("cap", cap, positive, {"largest logit (tanh) or height of the sigmoid"});
    f.number("shift", shift, {.min = -1e6, .max = 1e6}, {"sigmoid: added to the logit"});
    f.number("temperature", temperature, positive, {"sigmoid: divides the shifted logit"});
}

void HeadConfig::fields(Fields& f) {
    f.flag("tied", tied, {"use the embedding as output matrix"});
    f.number("z_loss", z_loss, non_negative, {"weight of (log sum exp logits)^2, averaged over tokens"});
    f.section("softcap", softcap, {"bound on the final logits"});
}

void InitConfig::fields(Fields& f) {
    f.number("matrix_bound", matrix_bound, positive,
             {"matrices start uniform in +-matrix_bound / sqrt(fan_in)"});
    f.number("embedding_std", embedding_std, non_negative,
             {"standard deviation of the embedding; 0: 1, or 1/sqrt(width) when the head is tied"});
    f.flag("zero_projections", zero_projections, {"attention and MLP output matrices start at zero"});
    f.flag("zero_head", zero_head, {"an untied head starts at zero"});
}

void ModelConfig::fields(Fields& f) {
    f.integer("layers", layers, {.min = 1, .max = 1024}, {"blocks L"});
    f.integer("width", width, {.min = 4, .max = 1 << 16}, {"residual stream channels C"});
    f.integer("vocab_size", vocab_size, {.min = 2, .max = 1 << 24},
              {"tokens V; every token of the data must be below it"});
    f.flag("embedding_norm", embedding_norm,
           {"parameter-free RMS norm of the embedding before the first block"});
    f.section("norm", norm, {"normalisation of block inputs and of the head's input"});
    f.section("mlp", mlp, {"feed-forward part of a block"});
    f.section("residual", residual, {"extra paths along the residual stream"});
    f.section("head", head, {"logits and loss"});
    f.section("init", init, {"initial weights"});
    f.section("attention", attention, {"attention of every layer that no layout changes"});
    f.variations("layouts", layouts, attention,
                 {"named variations of attention; each sets only what differs"});
    f.texts("pattern", pattern,
            {"layout names, repeated over the layers; empty: plain attention everywhere"});
    f.text("last", last, {"layout of the last layer; empty: as the pattern says"});
}

double ModelConfig::embedding_deviation() const {
    if (init.embedding_std > 0) return init.embedding_std;
    return head.tied ? 1 / std::sqrt(static_cast<double>(width)) : 1.0;
}

std::string ModelConfig::layout_name(int64_t layer) const {
    if (!last.empty() && layer == layers - 1) return last;
    if (pattern.empty()) return {};
    return pattern[static_cast<size_t>(layer) % pattern.size()];
}

const AttentionConfig& ModelConfig::layer_attention(int64_t layer) const {
    const std::string name = layout_name(layer);
    if (name.empty()) return attention;
    return layouts.at(name);
}

namespace {

void check_attention(const AttentionConfig& a, const std::string& path, Problems& p) {
    if (a.kv_heads != 0 && a.heads % a.kv_heads != 0)
        p.add(path + ".kv_heads",
              fmt::format("{} key/value heads do not divide {} heads", a.kv_heads, a.heads), path + ".heads");
    if (a.head_dim % 4 != 0) p.add(path + ".head_dim", fmt::format("{} is not a multiple of 4", a.head_dim));

    const auto no_effect = [&](const std::string& key, const std::string& reason, const std::string& other) {
        if (p.is_set(path + key)) p.add(path + key, "has no effect: " + reason, path + other);
    };
    const PositionKind position = a.position.kind;
    if (position == PositionKind::nope)
        no_effect(".position.base", "position.kind is nope", ".position.kind");
    if (position != PositionKind::p_rope) {
        no_effect(".position.fraction", "position.kind is not p_rope", ".position.kind");
        no_effect(".position.spacing", "position.kind is not p_rope", ".position.kind");
    }
    if (a.qk.kind == QkKind::none) no_effect(".qk.eps", "qk.kind is none", ".qk.kind");
    if (a.distance.kind == DistanceKind::none)
        no_effect(".distance.tau", "distance.kind is none", ".distance.kind");
}

}  // namespace

void ModelConfig::check(Problems& p) const {
    check_attention(attention, "model.attention", p);
    for (const auto& [name, layout] : layouts) check_attention(layout, "model.layouts." + name, p);

    const auto known = [&](const std::string& name) { return layouts.count(name) > 0; };
    for (size_t i = 0; i < pattern.size(); ++i)
        if (!known(pattern[i]))
            p.add("model.pattern", fmt::format("no layout is named '{}'", pattern[i]), "model.layouts");
    if (!last.empty() && !known(last))
        p.add("model.last", fmt::format("no layout is named '{}'", last), "model.layouts");
    const bool all_known =
        (last.empty() || known(last)) && std::all_of(pattern.begin(), pattern.end(), known);
    for (const auto& [name, layout] : layouts) {
        bool used = false;
        for (int64_t l = 0; l < layers; ++l) used = used || layout_name(l) == name;
        if (!used) p.add("model.layouts." + name, "no layer uses this layout", "model.pattern");
    }

    const auto no_effect = [&](const char* key, const char* reason, const char* other) {
        if (p.is_set(key)) p.add(key, std::string("has no effect: ") + reason, other);
    };
    if (head.softcap.kind == Softcap::none)
        no_effect("model.head.softcap.cap", "softcap.kind is none", "model.head.softcap.kind");
    if (head.softcap.kind != Softcap::sigmoid) {
        no_effect("model.head.softcap.shift", "softcap.kind is not sigmoid", "model.head.softcap.kind");
        no_effect("model.head.softcap.temperature", "softcap.kind is not sigmoid", "model.head.softcap.kind");
    }
    if (head.tied) no_effect("model.init.zero_head", "the head is tied to the embedding", "model.head.tied");
    if (residual.unet && layers < 2)
        p.add("model.residual.unet", "needs at least two layers", "model.layers");
    if (residual.values == ValueMix::first && layers < 2)
        p.add("model.residual.values", "needs at least two layers", "model.layers");
    if (residual.values == ValueMix::first && all_known) {  // layer_attention needs known layouts
        const AttentionConfig& first = layer_attention(0);
        for (int64_t l = 1; l < layers; ++l) {
            const AttentionConfig& a = layer_attention(l);
            if (a.kv() * a.head_dim != first.kv() * first.head_dim) {
                p.add("model.residual.values",
                      fmt::format(
                          "layer {} has {} value channels, layer 0 has {}; they must be equal to be mixed", l,
                          a.kv() * a.head_dim, first.kv() * first.head_dim));
                break;
            }
        }
    }
}

}  // namespace longreach
