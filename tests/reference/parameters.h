// Every tensor of a model by name, with its size and how its values start: what src/model's
// table must say too.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "reference/scores.h"

namespace longreach::reference {

struct Parameter {
    std::string name;
    std::vector<int64_t> shape;
    enum class Start {
        constant,   // every entry is `value`
        normal,     // deviation `value`
        uniform,    // in +-value
        zero_to,    // in [0, value)
        first_row,  // first row `value`, others 0
        log_to,     // the logarithm of numbers in (`least`, `value`]
        time_step,  // softplus of it lies in [`least`, `value`)
    } start = Start::constant;
    double value = 0, least = 0;
    std::vector<double> list{};  // constant: every entry by itself; empty: value

    size_t count() const {
        size_t n = 1;
        for (int64_t s : shape) n *= static_cast<size_t>(s);
        return n;
    }
};

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

// b of a term, which begins with a number or a formula.
inline void add_term_bias(std::vector<Parameter>& all, const std::string& name, const TermText& term,
                          const model::ModelConfig& m, int64_t l) {
    const model::AttentionConfig& a = attention_of(m, l);
    Parameter bias{name, {a.heads}};
    for (int64_t h = 0; h < a.heads; ++h)
        bias.list.push_back(
            first_value(m, a, l, {.name = term.name, .init = term.init}, static_cast<size_t>(h)));
    bias.value = bias.list[0];
    all.push_back(std::move(bias));
}

inline std::vector<Parameter> parameters(const model::ModelConfig& m) {
    using Start = Parameter::Start;
    std::vector<Parameter> all;
    const int64_t width = m.width;
    const auto constant = [&](const std::string& name, std::vector<int64_t> shape, double value) {
        for (const Parameter& p : all)
            if (p.name == name) return;  // one for all layers of a layout
        all.push_back({name, std::move(shape), Start::constant, value});
    };
    const auto matrix = [&](const std::string& name, int64_t out, int64_t in, bool zero = false) {
        if (zero) return constant(name, {out, in}, 0);
        all.push_back(
            {name, {out, in}, Start::uniform, m.init.matrix_bound / std::sqrt(static_cast<double>(in))});
    };
    const auto norm = [&](const std::string& name, int64_t size, bool bias, double gain = 1) {
        constant(name + ".gain", {size}, gain);
        if (bias) constant(name + ".bias", {size}, 0);
    };
    const bool layer_norm = m.norm.kind == NormKind::layer;
    const bool alone = m.norm.placement == model::NormPlacement::behind;
    const bool peri = m.norm.placement == model::NormPlacement::peri || alone;
    const bool hybrid = m.norm.placement == model::NormPlacement::hybrid;

    double deviation = m.init.embedding_std;
    if (deviation == 0) deviation = m.head.tied ? 1 / std::sqrt(static_cast<double>(width)) : 1;
    all.push_back({"embedding.weight", {m.vocab_size, width}, Start::normal, deviation});
    if (m.positions > 0)
        all.push_back({"position_embedding.weight", {m.positions, width}, Start::normal, deviation});
    if (m.residual.smear) {
        constant("smear.weight", {static_cast<int64_t>(smear_channels)}, 0);
        constant("smear_mix", {1}, 0);
    }
    if (m.residual.backout >= 0) constant("backout_mix", {1}, 0.5);
    for (int64_t i = 0; i < m.residual.value_embeddings; ++i) {
        const model::AttentionConfig& a = attention_of(m, i);
        all.push_back({fmt::format("value_embeddings.{}.weight", i),
                       {m.vocab_size, (a.kv_heads > 0 ? a.kv_heads : a.heads) * a.head_dim},
                       Start::normal,
                       deviation});
    }
    const auto attention_parameters = [&](int64_t l) {
        const model::AttentionConfig& a = attention_of(m, l);
        const std::string name = fmt::format("layers.{}.attention.", l);
        const int64_t d = a.head_dim, heads = a.heads, kv = a.kv_heads > 0 ? a.kv_heads : heads;
        if (a.mixer == model::MixerKind::gau) {
            matrix(name + "u.weight", heads * d, width);
            matrix(name + "z.weight", d, width);
            norm(name + "q", d, true);
            norm(name + "k", d, true);
            matrix(name + "v.weight", kv * d, width);
        } else if (a.latent.width > 0) {
            const int64_t latent = a.latent.width, shared = a.latent.shared, queries = a.latent.queries;
            matrix(name + "kv_down.weight", latent, width);
            if (shared > 0) matrix(name + "k_shared.weight", shared, width);
            if (queries > 0) matrix(name + "q_down.weight", queries, width);
            matrix(name + (queries > 0 ? "q_up.weight" : "q.weight"), heads * d,
                   queries > 0 ? queries : width);
            matrix(name + "k_up.weight", heads * (d - shared), latent);
            matrix(name + "v_up.weight", heads * d, latent);
            if (m.norm.gain) norm(name + "kv_down_norm", latent, layer_norm);
            if (m.norm.gain && queries > 0) norm(name + "q_down_norm", queries, layer_norm);
        } else {
            matrix(name + "q.weight", heads * d, width);
            matrix(name + "k.weight", kv * d, width);
            matrix(name + "v.weight", kv * d, width);
        }
        matrix(name + "o.weight", width, heads * d, m.init.zero_projections);
        if (a.bias != model::AttentionBias::none) {
            constant(name + "q.bias", {heads * d}, 0);
            constant(name + "k.bias", {kv * d}, 0);
            constant(name + "v.bias", {kv * d}, 0);
        }
        if (a.bias == model::AttentionBias::all) constant(name + "o.bias", {width}, 0);
        const auto convolution = [&](bool present, const char* which, int64_t channels) {
            if (a.conv.size > 0 && present)
                all.push_back({name + which + "_conv.weight", {a.conv.size, channels}, Start::first_row, 1});
        };
        convolution(a.conv.queries, "q", heads * d);
        convolution(a.conv.keys, "k", kv * d);
        convolution(a.conv.values, "v", kv * d);
        if (m.residual.values == model::ValueMix::first && l > 0) constant(name + "value_mix", {1}, 0.5);
        if (l < m.residual.value_embeddings || l >= m.layers - m.residual.value_embeddings) {
            constant(name + "own_value_mix", {1}, 0.5);
            constant(name + "value_embedding_mix", {1}, 0.5);
        }

        const model::QkKind qk = a.qk.kind;
        const bool qk_layer = qk == model::QkKind::qk_ln || qk == model::QkKind::qkv_ln;
        const bool values = qk == model::QkKind::qkv_ln || qk == model::QkKind::qkv_rms_w;
        if (qk_layer || values || qk == model::QkKind::qk_rms_w)
            for (const char* which : {"q", "k", "v"})
                if (which[0] != 'v' || values) norm(name + which + "_norm", d, qk_layer);
        if (qk == model::QkKind::qk_rms_full) {
            norm(name + "q_norm", heads * d, false);
            norm(name + "k_norm", kv * d, false);
        }
        if (qk == model::QkKind::kna_w) norm(name + "k_norm", d, false);
        if (qk == model::QkKind::qk_rms_eps) {
            constant(name + "q_norm.log_eps", {a.qk.eps_per_head ? heads : 1}, std::log(a.qk.eps));
            constant(name + "k_norm.log_eps", {a.qk.eps_per_head ? kv : 1}, std::log(a.qk.eps));
        }

        add_score_parameters(all, m, l);
        if (a.sink == model::SinkKind::learned) constant(name + "sink", {heads}, 0);
        for (const TermText& term : terms_of(a)) {
            matrix(name + "terms." + term.name + ".weight", heads, width, term.zero_weights);
            add_term_bias(all, name + "terms." + term.name + ".bias", term, m, l);
        }
        if (a.index_heads > 0) {
            const int64_t turning = a.latent.width > 0 ? a.latent.shared : d,
                          channels = turning > 0 ? turning : d;
            matrix(name + "index.q.weight", a.index_heads * channels, width);
            matrix(name + "index.k.weight", channels, width);
            matrix(name + "index.w.weight", a.index_heads, width);
        }
        if (a.output_norm.kind != model::OutputNorm::none && a.output_norm.gain)
            constant(name + "output_norm.gain",
                     {a.output_norm.kind == model::OutputNorm::head ? d : heads * d}, 1);
        if (a.gate.kind != model::GateKind::none)
            matrix(name + "gate.weight", a.gate.kind == model::GateKind::elementwise ? heads * d : heads,
                   a.gate.kind == model::GateKind::sparse ? model::sparse_gate_channels : width,
                   a.gate.zero_init);
    };
    const auto delta_parameters = [&](int64_t l) {
        const model::AttentionConfig& a = attention_of(m, l);
        const std::string name = fmt::format("layers.{}.delta.", l);
        const int64_t d = a.head_dim, e = a.delta.value_dim > 0 ? a.delta.value_dim : d, heads = a.heads;
        const bool kda = a.mixer == model::MixerKind::kda;
        matrix(name + "q.weight", heads * d, width);
        matrix(name + "k.weight", heads * d, width);
        matrix(name + "v.weight", heads * e, width);
        if (a.delta.conv > 0)
            all.push_back({name + "conv.weight", {a.delta.conv, heads * (2 * d + e)}, Start::first_row, 1});
        matrix(name + "beta.weight", heads, width);
        if (kda) {
            matrix(name + "decay_down.weight", d, width);
            matrix(name + "decay_up.weight", heads * d, d);
            matrix(name + "gate_down.weight", e, width);
            matrix(name + "gate_up.weight", heads * e, e);
        } else {
            matrix(name + "decay.weight", heads, width);
            matrix(name + "gate.weight", heads * e, width);
        }
        all.push_back({name + "a_log", {heads}, Start::log_to, 16, kda ? 1.0 : 0.0});
        all.push_back({name + "time_bias", {kda ? heads * d : heads}, Start::time_step, 0.1, 0.001});
        norm(name + "norm", e, false);
        matrix(name + "o.weight", width, heads * e, m.init.zero_projections);
    };
    const auto simplicial_parameters = [&](int64_t l) {
        const model::AttentionConfig& a = attention_of(m, l);
        const std::string name = fmt::format("layers.{}.simplicial.", l);
        for (const char* part : {"q", "k", "v", "k2", "v2"})
            matrix(name + part + ".weight", a.heads * a.head_dim, width);
        matrix(name + "o.weight", width, a.heads * a.head_dim, m.init.zero_projections);
    };
    for (int64_t l = 0; l < m.layers; ++l) {
        const model::AttentionConfig& a = attention_of(m, l);
        const std::string layer = fmt::format("layers.{}.", l);
        if (m.residual.unet && l >= m.layers - m.layers / 2) constant(layer + "skip_mix", {1}, 1);
        if (m.residual.x0) {
            constant(layer + "x_mix", {1}, 1);
            constant(layer + "x0_mix", {1}, 0);
        }
        if (m.norm.gain && a.pre_norm && !hybrid && !alone) norm(layer + "attention_norm", width, layer_norm);
        const bool gated_unit = a.mixer == model::MixerKind::gau;
        if (a.mixer == model::MixerKind::attention || gated_unit)
            attention_parameters(l);
        else if (a.mixer == model::MixerKind::simplicial)
            simplicial_parameters(l);
        else
            delta_parameters(l);
        if (peri || a.post_norm) norm(layer + "attention_post_norm", width, layer_norm, m.norm.out_gain);
        if (gated_unit) continue;

        const int64_t hidden = m.mlp.hidden > 0 ? m.mlp.hidden : 4 * width;
        if (m.norm.gain && !alone) norm(layer + "mlp_norm", width, layer_norm);
        matrix(layer + "mlp.up.weight", hidden, width);
        if (m.mlp.gated()) matrix(layer + "mlp.gate.weight", hidden, width);
        if (m.mlp.bias && m.mlp.gated()) constant(layer + "mlp.gate.bias", {hidden}, 0);
        if (m.mlp.bias) constant(layer + "mlp.up.bias", {hidden}, 0);
        if (m.mlp.bias) constant(layer + "mlp.down.bias", {width}, 0);
        matrix(layer + "mlp.down.weight", width, hidden, m.init.zero_projections);
        if (peri) norm(layer + "mlp_post_norm", width, layer_norm, m.norm.out_gain);
    }
    if (m.norm.gain) norm("final_norm", width, layer_norm);
    if (!m.head.tied) matrix("head.weight", m.vocab_size, width, m.init.zero_head);
    return all;
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
