#include "model/model_config.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "base/text.h"
#include "model/attention_angle.h"
#include "model/registry.h"

namespace longreach::model {

namespace {
constexpr config::NumberRange positive{.min = 0, .max = 1e30, .open_min = true};
constexpr config::NumberRange non_negative{.min = 0, .max = 1e30};
}  // namespace

void NormConfig::fields(config::Fields& f) {
    f.choice<NormKind>("kind", kind,
                       {{NormKind::rms, "rms", "x / sqrt(mean(x^2) + eps)", "RMS norms"},
                        {NormKind::layer, "layer", "(x - mean) / sqrt(variance + eps)", "LayerNorms"}},
                       {"normalisation before attention, MLP and head"});
    f.flag("gain", gain, {"learn a per-channel gain (and, for layer, a bias); false: parameter-free"});
    f.number("eps", eps, positive, {"added to the mean square (variance)"});
    f.choice<NormPlacement>(
        "placement", placement,
        {{NormPlacement::pre, "pre", "x + Module(Norm(x))", "in front of every module"},
         {NormPlacement::peri, "peri", "x + Norm(Module(Norm(x))), the outer norm with a learned gain",
          "before and after every module", "kim2025periln"},
         {NormPlacement::hybrid, "hybrid",
          "y = x + Attention(x) with normed queries, keys and values, then Norm(y) + Mlp(Norm(y))",
          "of queries, keys and values and around the MLP", "zhuo2025hybridnorm"},
         {NormPlacement::after, "after", "x + Norm(Module(x)), the norm with a learned gain",
          "after every module"}},
        {"where a block is normalised"});
    f.number("out_gain", out_gain, {.min = -1e6, .max = 1e6},
             {"first value of the learned gains of norms after a module (placement peri or after, "
              "attention.post_norm)"});
}

void MlpConfig::fields(config::Fields& f) {
    f.choice<MlpKind>(
        "kind", kind,
        {{MlpKind::relu2, "relu2", "max(0, x)^2", "squared ReLU"},
         {MlpKind::gelu, "gelu", "exact, with erf", "GELU"},
         {MlpKind::gelu_tanh, "gelu_tanh", "tanh approximation", "GELU"},
         {MlpKind::swiglu, "swiglu", "silu(gate) * up, two input matrices", "SwiGLU"},
         {MlpKind::geglu_tanh, "geglu_tanh", "gelu_tanh(gate) * up, two input matrices", "GeGLU"}},
        {"activation of the MLP"});
    f.flag("bias", bias, {"learned biases of the MLP's matrices"});
    f.integer("hidden", hidden, {.min = 0, .max = 1 << 20}, {"hidden width F; 0: 4 * width"});
}

void ResidualConfig::fields(config::Fields& f) {
    f.flag(
        "x0", x0,
        {.help = "every block starts with x = l0 x + l1 x0, learned per layer from (1, 0); x0 the embedding",
         .words = "the embedding mixed in again in every block",
         .sources = "jordan2024"});
    f.flag(
        "unet", unet,
        {.help = "the first half stores its outputs; the second adds them in reverse, weights learned from 1",
         .words = "skips from the first half of the blocks to the second",
         .sources = "jordan2024"});
    f.choice<ValueMix>(
        "values", values,
        {{ValueMix::none, "none"},
         {ValueMix::first, "first", "v = (1 - lambda) v + lambda v_first, lambda learned from 0.5"}},
        {.help = "value residual: mix the first layer's values into every later layer's",
         .words = "the values of the first layer mixed into all",
         .sources = "jordan2024"});
    f.integer(
        "value_embeddings", value_embeddings, {.min = 0, .max = 512},
        {.help = "token tables mixed into the values, v = l0 v + l1 table[token] from (0.5, 0.5); table i "
                 "serves layer i of the first and of the last layers; 0: none",
         .words = "{} tables of embeddings added to values",
         .sources = "jordan2024"});
    f.flag("smear", smear,
           {.help = "x_p += lambda sigmoid(<w, first 12 channels>) x_(p-1) on the embedding, w and lambda "
                    "learned from 0",
            .words = "the embedding of the previous token mixed in",
            .sources = "jordan2024"});
    f.integer(
        "backout", backout, {.min = -1, .max = 1023},
        {.help =
             "layer (from 0) whose output is subtracted before the head, weight learned from 0.5; -1: none",
         .words = "the output of layer {} subtracted before the head"});
}

void SoftcapConfig::fields(config::Fields& f) {
    f.choice<Softcap>("kind", kind,
                      {{Softcap::none, "none"},
                       {Softcap::tanh, "tanh", "cap * tanh(x / cap)"},
                       {Softcap::sigmoid, "sigmoid", "cap * sigmoid((x + shift) / temperature)"}},
                      {.help = "bound on the final logits", .words = "capped logits"});
    f.number(
        "cap", cap, positive,
        {.help = "largest logit (tanh) or height of the sigmoid", .acts = config::unless("kind", "none")});
    constexpr config::Acts sigmoid = config::only("kind", "sigmoid");
    f.number("shift", shift, {.min = -1e6, .max = 1e6}, {.help = "added to the logit", .acts = sigmoid});
    f.number("temperature", temperature, positive, {.help = "divides the shifted logit", .acts = sigmoid});
}

void HeadConfig::fields(config::Fields& f) {
    f.flag("tied", tied, {"use the embedding as output matrix"});
    f.number("z_loss", z_loss, non_negative, {"weight of (log sum exp logits)^2, averaged over tokens"});
    f.section("softcap", softcap, {"bound on the final logits"});
}

void InitConfig::fields(config::Fields& f) {
    f.number("matrix_bound", matrix_bound, positive,
             {"matrices start uniform in +-matrix_bound / sqrt(fan_in)"});
    f.number("embedding_std", embedding_std, non_negative,
             {"standard deviation of the embedding; 0: 1, or 1/sqrt(width) when the head is tied"});
    f.flag("zero_projections", zero_projections, {"attention and MLP output matrices start at zero"});
    f.flag("zero_head", zero_head,
           {.help = "an untied head starts at zero", .acts = config::unless("model.head.tied", "true")});
}

void ModelConfig::fields(config::Fields& f) {
    f.integer("layers", layers, {.min = 1, .max = 1024}, {"blocks L"});
    f.integer("loops", loops, {.min = 1, .max = 64},
              {"passes through the layers, each with the same weights: loops * layers blocks in all"});
    f.integer("width", width, {.min = 4, .max = 1 << 16}, {"residual stream channels C"});
    f.integer("vocab_size", vocab_size, {.min = 2, .max = 1 << 24},
              {"tokens V; every token of the data must be below it"});
    f.integer("train_context", train_context, {.min = 0, .max = int64_t{1} << 31, .tokens = true},
              {"L_train in formulas, in tokens; 0: the context of the last training stage"});
    f.flag("embedding_norm", embedding_norm,
           {"parameter-free RMS norm of the embedding before the first block"});
    f.integer(
        "positions", positions, {.min = 0, .max = int64_t{1} << 24, .tokens = true},
        {.help = "rows of a learned table that is added to the embedding by position in the sequence; no "
                 "sequence may be longer; 0: none",
         .words = "learned positions"});
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

std::string ModelConfig::layout_path(int64_t layer) const {
    const std::string name = layout_name(layer);
    return name.empty() ? "model.attention" : "model.layouts." + name;
}

std::vector<int64_t> ModelConfig::distinct_layers() const {
    std::vector<int64_t> first;
    std::set<std::string> seen;
    for (int64_t l = 0; l < layers; ++l)
        if (seen.insert(layout_name(l)).second) first.push_back(l);
    return first;
}

std::vector<int64_t> ModelConfig::distinct_attention_layers() const {
    std::vector<int64_t> first = distinct_layers();
    std::erase_if(first, [&](int64_t l) { return !layer_attention(l).attends(); });
    return first;
}

int64_t ModelConfig::value_embedding_of(int64_t layer) const {
    const int64_t tables = residual.value_embeddings;
    if (layer < tables) return layer;
    return layer >= layers - tables ? layer - (layers - tables) : -1;
}

const AttentionConfig& ModelConfig::layer_attention(int64_t layer) const {
    const std::string name = layout_name(layer);
    if (name.empty()) return attention;
    return layouts.at(name);
}

void ModelConfig::check(config::Problems& p, const std::set<std::string>& counting) const {
    check_attention(attention, "model.attention", p, counting.count("model.attention") > 0);
    for (const auto& [name, layout] : layouts) {
        const std::string path = "model.layouts." + name;
        check_attention(layout, path, p, counting.count(path) > 0);
    }

    const auto known = [&](const std::string& name) { return layouts.count(name) > 0; };
    const auto unknown = [&](const char* path, const std::string& name) {
        std::vector<std::string> names;
        for (const auto& [layout, unused] : layouts) names.push_back(layout);
        const std::vector<std::string> near = nearest(name, names, 2);
        p.add(path,
              fmt::format("no layout is named '{}'{}", name,
                          near.empty() ? "" : ": did you mean " + alternatives(near) + "?"),
              "model.layouts");
    };
    for (size_t i = 0; i < pattern.size(); ++i)
        if (!known(pattern[i])) unknown("model.pattern", pattern[i]);
    if (!last.empty() && !known(last)) unknown("model.last", last);
    const bool all_known =
        (last.empty() || known(last)) && std::all_of(pattern.begin(), pattern.end(), known);
    // If the pattern has an unknown name, do not report the layouts it leaves unused.
    for (const auto& [name, layout] : all_known ? layouts : decltype(layouts)()) {
        bool used = false;
        for (int64_t l = 0; l < layers; ++l) used = used || layout_name(l) == name;
        if (!used) p.add("model.layouts." + name, "no layer uses this layout", "model.pattern");
    }

    if (mlp.bias && mlp.kind == MlpKind::relu2)
        p.add("model.mlp.bias", "relu2 is one with its matrix product and has no bias", "model.mlp.kind");
    if (loops > 1) {
        const auto once = [&](bool used, const char* key) {
            if (used) p.add(key, "takes one output of a layer, which has one in every pass", "model.loops");
        };
        once(residual.unet, "model.residual.unet");
        once(residual.backout >= 0, "model.residual.backout");
        once(residual.values == ValueMix::first, "model.residual.values");
    }
    if (residual.unet && layers < 2)
        p.add("model.residual.unet", "needs at least two layers", "model.layers");
    if (residual.values == ValueMix::first && layers < 2)
        p.add("model.residual.values", "needs at least two layers", "model.layers");
    if (residual.smear && width < smear_channels)
        p.add("model.residual.smear", fmt::format("reads {} channels; width is {}", smear_channels, width),
              "model.width");
    if (residual.backout >= layers)
        p.add("model.residual.backout", fmt::format("there is no layer {}", residual.backout),
              "model.layers");
    if (2 * residual.value_embeddings > layers)
        p.add("model.residual.value_embeddings",
              fmt::format("{} tables serve the first {} and the last {} layers; there are {}",
                          residual.value_embeddings, residual.value_embeddings, residual.value_embeddings,
                          layers),
              "model.layers");
    if (!all_known) return;  // layer_attention needs known layouts
    check_layers(p);
    if (train_context > 0)
        for (const int64_t l : distinct_layers()) check_score(p, l, counting.count(layout_path(l)) > 0);
}

void ModelConfig::check_score(config::Problems& p, int64_t layer, bool counted) const {
    const AttentionConfig& a = layer_attention(layer);
    if (!a.attends()) return;
    const std::string path = layout_path(layer);
    try {
        trained_angle(*this, layer);
        if (a.output_norm.kind == OutputNorm::position && !a.output_norm.factor.empty())
            output_factor(*this, layer);
        if (!angle_step(a).empty()) layer_steps(*this, layer);
        const LayerScore score = layer_score(*this, layer);
        if (!score.fading.empty()) layer_fading(*this, layer);
        if (!score.counts && !counted)
            p.no_effect(path + ".score_count", "nothing depends on n", path + ".score");
        if (score.law.law().of_dot && !starts_at_parity(score_text(a)))
            p.no_effect(path + ".score_base", "a law of dot has no base", path + ".score");
        if (a.qk.kind == QkKind::cosa && !score.law.law().of_dot)
            p.add(path + ".qk.kind",
                  "cosines need a law of dot: gammalogn, cosa_const, cosa_logn, qknorm_g or a formula",
                  path + ".score");
    } catch (const ScoreError& e) {
        p.add(e.path(path), e.what());
    }
}

// Rules that need the attention of every layer, after pattern and layouts have been applied.
void ModelConfig::check_layers(config::Problems& p) const {
    for (int64_t l : distinct_layers()) {
        if (layer_attention(l).attends()) continue;
        const auto refuse = [&](bool used, const char* key, const char* message) {
            if (used) p.add(layout_path(l) + ".mixer", message, key);
        };
        refuse(residual.values == ValueMix::first, "model.residual.values",
               "value residuals mix the values of attention, which this layer has not");
        refuse(residual.value_embeddings > 0, "model.residual.value_embeddings",
               "value embeddings are mixed into the values of attention, which this layer has not");
        refuse(norm.placement == NormPlacement::hybrid, "model.norm.placement",
               "placement hybrid norms the queries, keys and values of attention, which this layer has not");
    }
    bool any_mlp = false;
    for (int64_t l : distinct_layers()) {
        const AttentionConfig& layout = layer_attention(l);
        any_mlp = any_mlp || mixer_type(layout.mixer).has_mlp;
        for (const LayerPart* part : parts_of(layout))
            if (part->check_model != nullptr) part->check_model(*this, {layout, layout_path(l), p});
    }
    for (const char* key : {"model.mlp.kind", "model.mlp.hidden", "model.mlp.bias"})
        if (!any_mlp) p.no_effect(key, "no layer has an MLP", layout_path(0) + ".mixer");
    const auto value_width = [&](int64_t l) { return layer_attention(l).kv() * layer_attention(l).head_dim; };
    const auto equal_values = [&](const char* path, int64_t first, int64_t l) {
        if (value_width(l) == value_width(first)) return true;
        p.add(path,
              fmt::format("layer {} has {} value channels, layer {} has {}; they must be equal to be mixed",
                          l, value_width(l), first, value_width(first)));
        return false;
    };
    for (int64_t l = 1; residual.values == ValueMix::first && l < layers; ++l)
        if (!equal_values("model.residual.values", 0, l)) break;
    for (int64_t l = 0; 2 * residual.value_embeddings <= layers && l < residual.value_embeddings; ++l)
        if (!equal_values("model.residual.value_embeddings", l, layers - residual.value_embeddings + l))
            break;

    const bool alone = norm.placement == NormPlacement::after,  // no norm before a module
        peri = norm.placement == NormPlacement::peri || alone,
               hybrid = norm.placement == NormPlacement::hybrid;
    bool after = peri;
    std::string after_path = "model.norm.placement";
    for (int64_t l : distinct_layers()) {
        const AttentionConfig& a = layer_attention(l);
        const std::string path = layout_path(l);
        const bool values_normed = a.qk.kind == QkKind::qkv_rms_w || a.qk.kind == QkKind::qkv_ln;
        if (a.post_norm && !after) {
            after = true;
            after_path = path + ".post_norm";
        }
        if (hybrid && a.attends() && !values_normed)
            p.add(path + ".qk.kind",
                  "placement hybrid has no norm before attention; qk.kind must be qkv_rms_w or qkv_ln",
                  "model.norm.placement");
        if (hybrid)
            p.no_effect(path + ".pre_norm", "placement hybrid has no norm before attention",
                        "model.norm.placement");
        if (peri)
            p.no_effect(path + ".post_norm",
                        fmt::format("placement {} has a norm after every module", alone ? "after" : "peri"),
                        "model.norm.placement");
        if (alone)
            p.no_effect(path + ".pre_norm", "placement after has no norm before attention",
                        "model.norm.placement");
        if (a.attends() && a.gate.kind == GateKind::sparse && width < sparse_gate_channels)
            p.add(path + ".gate.kind",
                  fmt::format("reads {} channels; width is {}", sparse_gate_channels, width), "model.width");
    }
    // The gradient of RMSNorm at 0 is 1 / sqrt(eps): the first step would move the output matrices very far.
    if (after && init.zero_projections)
        p.add(after_path, "a norm after a module needs output matrices that do not start at zero",
              "model.init.zero_projections");
    if (!after) p.no_effect("model.norm.out_gain", "there is no norm after a module", "model.norm.placement");
}

}  // namespace longreach::model
