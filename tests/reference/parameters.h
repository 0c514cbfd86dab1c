// Every tensor of a model by name, with its size and how its values start: what src/model's
// table must say too.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "mixers/latent.h"
#include "reference/mixers.h"
#include "reference/scores.h"

namespace longreach::reference {

// What the score of layer l learns, where no layer before it has the same tensor.
inline void add_score_parameters(std::vector<Parameter>& all, const model::ModelConfig& m, int64_t l) {
    const model::AttentionConfig& a = attention_of(m, l);
    for (const ScoreParameter& p : score_parameters(a)) {
        if (!p.learned()) continue;
        const std::string name = score_tensor(fmt::format("layers.{}.attention.", l), layout_of(m, l), p);
        if (std::any_of(all.begin(), all.end(), [&](const Parameter& other) { return other.name == name; }))
            continue;
        const bool of_heads = p.learn == model::Learning::head;
        const int64_t size = std::max<int64_t>(1, p.size), heads = of_heads ? a.heads : 1;
        std::vector<int64_t> shape;
        if (of_heads) shape.push_back(heads);
        if (p.size > 1 || !of_heads) shape.push_back(size);
        if (const auto most = p.drawn_below()) {
            all.push_back({name, shape, Parameter::Start::zero_to, *most});
            continue;
        }
        Parameter constant{name, shape};
        for (int64_t h = 0; h < heads; ++h) {
            const double first = first_value(m, a, l, p, static_cast<size_t>(h));
            constant.list.insert(constant.list.end(), static_cast<size_t>(size),
                                 p.positive ? std::log(first) : first);
        }
        constant.value = constant.list[0];
        all.push_back(std::move(constant));
    }
}

// Of how scores become weights.
inline void add_weight_parameters(ParameterList& to, const model::AttentionConfig& a,
                                  const std::string& name) {
    if (a.sink == model::SinkKind::learned) to.constant(name + "sink", {a.heads}, 0);
    if (a.normaliser == model::Normaliser::entmax && a.entmax_learned)
        to.constant(name + "entmax.alpha_logit", {a.heads},
                    std::log((a.entmax_alpha - 1) / (2 - a.entmax_alpha)));
}

// b of a term, which begins with a number or a formula.
inline void add_term_bias(std::vector<Parameter>& all, const std::string& name, const TermText& term,
                          const model::ModelConfig& m, int64_t l, int64_t heads) {
    const model::AttentionConfig& a = attention_of(m, l);
    Parameter bias{name, {heads}};
    for (int64_t h = 0; h < heads; ++h)
        bias.list.push_back(
            first_value(m, a, l, {.name = term.name, .init = term.init}, static_cast<size_t>(h)));
    bias.value = bias.list[0];
    all.push_back(std::move(bias));
}

// Of the scores by head, of the angle by key head, of what fades by channel of the queries.
inline void add_terms(ParameterList& to, const model::ModelConfig& m, int64_t l) {
    const model::AttentionConfig& a = attention_of(m, l);
    const auto add = [&](const std::vector<TermText>& terms, int64_t rows) {
        for (const TermText& term : terms) {
            const std::string name = fmt::format("layers.{}.attention.terms.{}", l, term.name);
            to.matrix(name + ".weight", rows, m.width, term.zero_weights);
            add_term_bias(to.all, name + ".bias", term, m, l, rows);
        }
    };
    add(terms_of(a), a.heads);
    add(written_terms(a, true), a.kv_heads > 0 ? a.kv_heads : a.heads);
    add(fading_of(a), a.heads * a.head_dim);
}

inline std::vector<Parameter> parameters(const model::ModelConfig& m) {
    using Start = Parameter::Start;
    ParameterList to(m);
    const int64_t width = m.width;
    const bool layer_norm = m.norm.kind == NormKind::layer;
    const bool alone = m.norm.placement == model::NormPlacement::after;
    const bool peri = m.norm.placement == model::NormPlacement::peri || alone;
    const bool hybrid = m.norm.placement == model::NormPlacement::hybrid;

    double deviation = m.init.embedding_std;
    if (deviation == 0) deviation = m.head.tied ? 1 / std::sqrt(static_cast<double>(width)) : 1;
    to.all.push_back({"embedding.weight", {m.vocab_size, width}, Start::normal, deviation});
    if (m.positions > 0)
        to.all.push_back({"position_embedding.weight", {m.positions, width}, Start::normal, deviation});
    if (m.residual.smear) {
        to.constant("smear.weight", {static_cast<int64_t>(smear_channels)}, 0);
        to.constant("smear_mix", {1}, 0);
    }
    if (m.residual.backout >= 0) to.constant("backout_mix", {1}, 0.5);
    for (int64_t i = 0; i < m.residual.value_embeddings; ++i) {
        const model::AttentionConfig& a = attention_of(m, i);
        to.all.push_back({fmt::format("value_embeddings.{}.weight", i),
                          {m.vocab_size, (a.kv_heads > 0 ? a.kv_heads : a.heads) * a.head_dim},
                          Start::normal,
                          deviation});
    }
    const auto attention_parameters = [&](int64_t l) {
        const model::AttentionConfig& a = attention_of(m, l);
        const std::string name = fmt::format("layers.{}.attention.", l);
        const int64_t d = a.head_dim, heads = a.heads, kv = a.kv_heads > 0 ? a.kv_heads : heads;
        const model::LatentConfig latents = a.own<model::LatentConfig>();
        if (a.mixer == "gau") {
            to.matrix(name + "u.weight", heads * d, width);
            to.matrix(name + "z.weight", d, width);
            to.norm(name + "q", d, true);
            to.norm(name + "k", d, true);
            to.matrix(name + "v.weight", kv * d, width);
        } else if (latents.width > 0) {
            const int64_t latent = latents.width, shared = latents.shared, queries = latents.queries;
            to.matrix(name + "kv_down.weight", latent, width);
            if (shared > 0) to.matrix(name + "k_shared.weight", shared, width);
            if (queries > 0) to.matrix(name + "q_down.weight", queries, width);
            to.matrix(name + (queries > 0 ? "q_up.weight" : "q.weight"), heads * d,
                      queries > 0 ? queries : width);
            to.matrix(name + "k_up.weight", heads * (d - shared), latent);
            to.matrix(name + "v_up.weight", heads * d, latent);
            if (m.norm.gain) to.norm(name + "kv_down_norm", latent, layer_norm);
            if (m.norm.gain && queries > 0) to.norm(name + "q_down_norm", queries, layer_norm);
        } else {
            to.matrix(name + "q.weight", heads * d, width);
            to.matrix(name + "k.weight", kv * d, width);
            to.matrix(name + "v.weight", kv * d, width);
        }
        const int64_t outputs = a.differential ? heads / 2 : heads;
        to.matrix(name + "o.weight", width, outputs * d, m.init.zero_projections);
        if (a.bias != model::AttentionBias::none) {
            to.constant(name + "q.bias", {heads * d}, 0);
            to.constant(name + "k.bias", {kv * d}, 0);
            to.constant(name + "v.bias", {kv * d}, 0);
        }
        if (a.bias == model::AttentionBias::all) to.constant(name + "o.bias", {width}, 0);
        const auto convolution = [&](bool present, const char* which, int64_t channels) {
            if (a.conv.size > 0 && present)
                to.all.push_back(
                    {name + which + "_conv.weight", {a.conv.size, channels}, Start::first_row, 1});
        };
        convolution(a.conv.queries, "q", heads * d);
        convolution(a.conv.keys, "k", kv * d);
        convolution(a.conv.values, "v", kv * d);
        if (m.residual.values == model::ValueMix::first && l > 0) to.constant(name + "value_mix", {1}, 0.5);
        if (l < m.residual.value_embeddings || l >= m.layers - m.residual.value_embeddings) {
            to.constant(name + "own_value_mix", {1}, 0.5);
            to.constant(name + "value_embedding_mix", {1}, 0.5);
        }

        const model::QkKind qk = a.qk.kind;
        const bool qk_layer = qk == model::QkKind::qk_ln || qk == model::QkKind::qkv_ln;
        const bool values = qk == model::QkKind::qkv_ln || qk == model::QkKind::qkv_rms_w;
        if (qk_layer || values || qk == model::QkKind::qk_rms_w)
            for (const char* which : {"q", "k", "v"})
                if (which[0] != 'v' || values) to.norm(name + which + "_norm", d, qk_layer);
        if (qk == model::QkKind::qk_rms_full) {
            to.norm(name + "q_norm", heads * d, false);
            to.norm(name + "k_norm", kv * d, false);
        }
        if (qk == model::QkKind::kna_w) to.norm(name + "k_norm", d, false);
        if (qk == model::QkKind::qk_rms_eps) {
            to.constant(name + "q_norm.log_eps", {a.qk.eps_per_head ? heads : 1}, std::log(a.qk.eps));
            to.constant(name + "k_norm.log_eps", {a.qk.eps_per_head ? kv : 1}, std::log(a.qk.eps));
        }

        add_score_parameters(to.all, m, l);
        add_weight_parameters(to, a, name);
        add_terms(to, m, l);
        if (a.index_heads > 0) {
            const int64_t turning = latents.width > 0 ? latents.shared : d,
                          channels = turning > 0 ? turning : d;
            to.matrix(name + "index.q.weight", a.index_heads * channels, width);
            to.matrix(name + "index.k.weight", channels, width);
            to.matrix(name + "index.w.weight", a.index_heads, width);
        }
        if (a.differential) to.matrix(name + "difference.weight", outputs, width);
        if (a.output_norm.kind != model::OutputNorm::none && a.output_norm.gain)
            to.constant(name + "output_norm.gain",
                        {a.output_norm.kind == model::OutputNorm::head ? d : outputs * d}, 1);
        if (a.gate.kind != model::GateKind::none)
            to.matrix(name + "gate.weight",
                      a.gate.kind == model::GateKind::elementwise ? outputs * d : outputs,
                      a.gate.kind == model::GateKind::sparse ? model::sparse_gate_channels : width,
                      a.gate.zero_init);
    };
    for (int64_t l = 0; l < m.layers; ++l) {
        const model::AttentionConfig& a = attention_of(m, l);
        const std::string layer = fmt::format("layers.{}.", l);
        if (m.residual.unet && l >= m.layers - m.layers / 2) to.constant(layer + "skip_mix", {1}, 1);
        if (m.residual.x0) {
            to.constant(layer + "x_mix", {1}, 1);
            to.constant(layer + "x0_mix", {1}, 0);
        }
        if (m.norm.gain && a.pre_norm && !hybrid && !alone)
            to.norm(layer + "attention_norm", width, layer_norm);
        const bool gated_unit = a.mixer == "gau";
        if (a.mixer == "attention" || gated_unit)
            attention_parameters(l);
        else
            mixer_parameters(to, a, layer);
        if (peri || a.post_norm) to.norm(layer + "attention_post_norm", width, layer_norm, m.norm.out_gain);
        if (gated_unit) continue;

        const int64_t hidden = m.mlp.hidden > 0 ? m.mlp.hidden : 4 * width;
        if (m.norm.gain && !alone) to.norm(layer + "mlp_norm", width, layer_norm);
        to.matrix(layer + "mlp.up.weight", hidden, width);
        if (m.mlp.gated()) to.matrix(layer + "mlp.gate.weight", hidden, width);
        if (m.mlp.bias && m.mlp.gated()) to.constant(layer + "mlp.gate.bias", {hidden}, 0);
        if (m.mlp.bias) to.constant(layer + "mlp.up.bias", {hidden}, 0);
        if (m.mlp.bias) to.constant(layer + "mlp.down.bias", {width}, 0);
        to.matrix(layer + "mlp.down.weight", width, hidden, m.init.zero_projections);
        if (peri) to.norm(layer + "mlp_post_norm", width, layer_norm, m.norm.out_gain);
    }
    if (m.norm.gain) to.norm("final_norm", width, layer_norm);
    if (!m.head.tied) to.matrix("head.weight", m.vocab_size, width, m.init.zero_head);
    return std::move(to.all);
}

// First values, from a source of uniform and normal numbers; what starts as a constant is moved off it by
// `scatter` normal deviations, so that no two of them agree. Rounded to f32, so that both precisions start
// from the same numbers.
template <class Uniform, class Normal>
Params<double> first_values(const model::ModelConfig& m, const Uniform& uniform, const Normal& normal,
                            double scatter) {
    using Start = Parameter::Start;
    Params<double> out;
    for (const Parameter& p : parameters(m))
        for (size_t i = 0; i < p.count(); ++i) {
            double x = p.list.empty() ? p.value : p.list[i];
            if (p.start == Start::normal) x *= normal();
            if (p.start == Start::uniform) x *= 2 * uniform() - 1;
            if (p.start == Start::zero_to) x *= uniform();
            if (p.start == Start::log_to) x = std::log(p.value - (p.value - p.least) * uniform());
            if (p.start == Start::time_step)
                x = std::log(std::expm1(p.least * std::pow(p.value / p.least, uniform())));
            if (p.start == Start::first_row && i >= static_cast<size_t>(p.shape[1])) x = 0;
            if (scatter > 0 && (p.start == Start::constant || p.start == Start::first_row))
                x += scatter * normal();
            out[p.name].push_back(static_cast<float>(x));
        }
    return out;
}

}  // namespace longreach::reference
