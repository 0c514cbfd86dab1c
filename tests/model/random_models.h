// Random small models over all choices of a config, valid by construction, and the list
// of the features they contain.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "base/rng.h"
#include "model/laws_of_configs.h"
#include "model/small_models.h"

namespace longreach::test {

inline bool is_for_cosines(const std::string& kind) {
    return kind == "gammalogn" || kind == "cosa_const" || kind == "cosa_logn" || kind == "qknorm_g";
}

class RandomVariant {
  public:
    explicit RandomVariant(uint32_t stream) : rng_(17, Purpose::test, stream), stream_(stream) {}

    SmallModel draw() {
        SmallModel r{fmt::format("random variant {}", stream_), tiny_model(2 + below(2)), flag(), 1, 0};
        r.sequences = 1 + below(2);
        r.length = r.sequences == 1 ? 8 + below(17) : 6 + below(6);
        documents_ = r.documents;
        length_ = r.length;
        model::ModelConfig& m = r.config;
        m.width = 8 + below(17);
        m.vocab_size = 13;
        m.train_context = 8 + 2 * below(9);
        m.embedding_norm = one_in(4) == false;
        m.norm = {flag() ? NormKind::rms : NormKind::layer, flag(), flag() ? 1e-6 : 1e-2};
        m.norm.placement =
            one_in(2) ? model::NormPlacement::pre : static_cast<model::NormPlacement>(below(3));
        m.norm.out_gain = between(0.5, 1.5);
        m.mlp = {static_cast<model::MlpKind>(below(4)), 4 + below(21)};
        m.residual.x0 = one_in(3);
        m.residual.unet = one_in(3);
        m.residual.values = one_in(3) ? model::ValueMix::first : model::ValueMix::none;
        m.residual.value_embeddings = one_in(3) ? 1 : 0;
        m.residual.smear = one_in(3);
        m.residual.backout = one_in(3) ? below(m.layers - 1) : -1;
        m.head.tied = flag();
        m.head.z_loss = one_in(3) ? between(0, 0.1) : 0;
        m.head.softcap = {static_cast<Softcap>(below(3)), 4, between(-1, 1), 2};
        m.init.matrix_bound = between(0.5, 1.5);
        m.init.embedding_std = between(0.5, 1.5);
        mixes_values_ = m.residual.values != model::ValueMix::none || m.residual.value_embeddings > 0;
        hybrid_ = m.norm.placement == model::NormPlacement::hybrid;
        peri_ = m.norm.placement == model::NormPlacement::peri;

        kv_heads_ = 1 + below(2);
        head_dim_ = 4 * (1 + below(3));
        m.attention = attention();
        if (one_in(3)) {
            m.layouts = {{"even", attention()}, {"odd", attention()}};
            m.pattern = {"even", "odd"};
            if (m.layers > 2 && flag()) m.last = "odd";
        }
        if (m.residual.smear || needs_sparse_channels_) m.width = std::max<int64_t>(m.width, 12);
        const bool one_output =
            m.residual.unet || m.residual.backout >= 0 || m.residual.values != model::ValueMix::none;
        if (!one_output && one_in(3)) m.loops = 2;
        if (!hybrid_ && one_in(5)) {
            make_gated_unit(m.attention);
            for (auto& [name, layout] : m.layouts)
                if (flag()) make_gated_unit(layout);
        }
        return r;
    }

  private:
    void make_gated_unit(model::AttentionConfig& a) {
        a.mixer = model::MixerKind::gau;
        a.heads = kv_heads_;  // as many values as before
        a.latent = {};
        a.conv = {};
        a.gate = {};
    }
    model::AttentionConfig attention() {
        model::AttentionConfig a;
        a.kv_heads = kv_heads_;
        a.heads = kv_heads_ * (1 + below(2));
        if (one_in(6)) a.heads = 3 * kv_heads_ > 4 ? 4 : 3 * kv_heads_;
        a.head_dim = head_dim_;
        // With a single visible key, queries and keys would have no effect.
        if (one_in(4))
            a.window = 2 + below(length_);
        else if (one_in(4))
            a.chunk = 2 + below(length_);
        if (one_in(3)) a.conv = {2 + below(3), flag(), flag(), true};
        if (a.conv.size > 0 && (a.conv.queries || a.conv.keys)) a.conv.values = flag();

        a.qk.kind = hybrid_ ? (flag() ? model::QkKind::qkv_rms_w : model::QkKind::qkv_ln)
                            : static_cast<model::QkKind>(below(12));
        a.qk.eps = flag() ? 1e-6 : between(0.005, 0.5);
        a.qk.eps_per_head = a.qk.kind == model::QkKind::qk_rms_eps && flag();
        a.scale = scale(a.qk.kind);
        a.distance = distance();
        a.position = {static_cast<model::PositionKind>(below(3)), between(5, 20000), rng_.uniform(drawn_++),
                      flag() ? model::Spacing::geometric : model::Spacing::linspace};
        if (a.distance.kind == "alibi") a.position.kind = model::PositionKind::nope;
        if (one_in(4)) a.softcap = between(1, 8);
        a.sink = one_in(2) ? model::SinkKind::none : static_cast<model::SinkKind>(below(3));
        a.output_norm = {one_in(2) ? model::OutputNorm::none : static_cast<model::OutputNorm>(below(3)),
                         false};
        a.output_norm.gain = a.output_norm.kind != model::OutputNorm::none && flag();
        a.gate = {one_in(2) ? model::GateKind::none : static_cast<model::GateKind>(below(4)), flag(), flag()};
        needs_sparse_channels_ = needs_sparse_channels_ || a.gate.kind == model::GateKind::sparse;
        a.pre_norm = hybrid_ || !one_in(5);
        a.post_norm = !peri_ && one_in(5);
        if (one_in(4)) a.forget = model::ForgetKind::head;
        const bool softmax_only = a.sink != model::SinkKind::none || a.forget != model::ForgetKind::none ||
                                  a.distance.kind == "si_interp";
        if (one_in(3) && !softmax_only && a.window != 1 && a.chunk != 1)
            a.normaliser = model::Normaliser::stick_breaking;
        make_latent(a);
        return a;
    }

    // In one layout of five keys and values of a latent, without what contradicts it. Its numbers are drawn apart, so
    // that they change no other variant.
    void make_latent(model::AttentionConfig& a) {
        const Rng rng(18, Purpose::test, stream_);
        const auto below = [&](uint64_t n) {
            return static_cast<int64_t>(rng.below(drawn_of_latents_++, n));
        };
        if (below(5) > 0 || hybrid_ || mixes_values_ || is_for_cosines(a.scale.kind)) return;
        a.kv_heads = 0;
        a.qk = {model::QkKind::none};
        a.conv = {};
        const bool turns = a.position.kind != model::PositionKind::nope;
        const int64_t shared = a.head_dim == 4 ? 0 : turns ? 4 : 4 * below(2);
        if (turns && shared == 0) a.position.kind = model::PositionKind::nope;
        a.latent = {4 * (1 + below(4)), shared, below(2) == 0 ? 4 + below(12) : 0};
    }

    model::ScaleConfig scale(model::QkKind qk) {
        model::ScaleConfig s;
        const bool unit = qk == model::QkKind::qk_l2 || qk == model::QkKind::cosa;
        do {
            s.kind = one_in(4) ? "none" : scale_kinds[static_cast<size_t>(below(21))];
            if (qk == model::QkKind::cosa && !is_for_cosines(s.kind)) {
                const char* laws[] = {"gammalogn", "cosa_const", "cosa_logn", "qknorm_g"};
                s.kind = laws[below(4)];
            }
        } while (is_for_cosines(s.kind) && !unit);
        const bool multiplier = s.granularity_used() != model::ScaleGranularity::fixed;
        if (multiplier || s.kind == "none") {
            s.granularity =
                one_in(3) ? model::ScaleGranularity::fixed : static_cast<model::ScaleGranularity>(below(5));
            if (one_in(3)) s.base = between(0.1, 0.6);
        }
        if (multiplier) {
            s.init = static_cast<model::ScaleInit>(below(3));
            s.r = between(0.4, 1.2);
            s.bias = between(-0.5, 0.5);
        }
        s.a = between(0, 0.5);
        s.b = between(0.1, 1);
        s.c = between(0.95, 2);
        s.target = between(1.5, 5);
        s.attn_scale = between(0.1, 0.5);
        s.floor_scale = 2 + below(6);
        s.attn_temperature_len = 2 + below(8);
        s.scale_n = static_cast<model::ScaleCount>(below(4));
        if (s.scale_n == model::ScaleCount::document && !documents_) s.scale_n = model::ScaleCount::automatic;
        return s;
    }

    model::DistanceConfig distance() {
        model::DistanceConfig c;
        c.kind = one_in(4) ? "none" : distance_kinds[static_cast<size_t>(below(7))];
        c.tau = between(0.3, 20);
        if (c.kind == "scale_invariant" || c.kind == "log_bias") {
            c.learn_tau = flag();
            c.learn_decay = flag();
            c.decay = flag() ? 1 : between(0.5, 1.5);
        }
        c.kappa = rng_.uniform(drawn_++);
        c.p = between(0, 1.5);
        c.b = between(0.1, 1);
        c.c = between(0.95, 2);
        return c;
    }

    int64_t below(int64_t n) { return static_cast<int64_t>(rng_.below(drawn_++, static_cast<uint64_t>(n))); }
    bool flag() { return below(2) == 1; }
    bool one_in(int64_t n) { return below(n) == 0; }
    double between(double low, double high) { return low + (high - low) * rng_.uniform(drawn_++); }

    Rng rng_;
    uint32_t stream_;
    uint64_t drawn_ = 0, drawn_of_latents_ = 0;
    bool documents_ = false, hybrid_ = false, mixes_values_ = false, peri_ = false,
         needs_sparse_channels_ = false;
    int64_t length_ = 0, kv_heads_ = 1, head_dim_ = 4;
};

// The features of a model: "key=value" for every choice that any of its layers makes.
inline std::set<std::string> features(const SmallModel& small) {
    std::set<std::string> all;
    const auto add = [&](const char* key, auto value) {
        if constexpr (std::is_convertible_v<decltype(value), std::string>)
            all.insert(fmt::format("{}={}", key, value));
        else
            all.insert(fmt::format("{}={}", key, static_cast<int>(value)));
    };
    const model::ModelConfig& m = small.config;
    add("documents", small.documents);
    add("loops", m.loops > 1);
    add("embedding_norm", m.embedding_norm);
    add("norm.kind", m.norm.kind);
    add("norm.gain", m.norm.gain);
    add("norm.placement", m.norm.placement);
    add("mlp.kind", m.mlp.kind);
    add("x0", m.residual.x0);
    add("unet", m.residual.unet);
    add("values", m.residual.values);
    add("value_embeddings", m.residual.value_embeddings);
    add("smear", m.residual.smear);
    add("backout", m.residual.backout >= 0);
    add("tied", m.head.tied);
    add("softcap", m.head.softcap.kind);
    add("layouts", !m.layouts.empty());
    add("last", !m.last.empty());
    for (int64_t l = 0; l < m.layers; ++l) {
        const model::AttentionConfig& a = m.layer_attention(l);
        add("gau", a.gated_unit());
        add("grouped", a.heads != a.kv());
        add("latent", a.latent.width > 0);
        if (a.latent) add("latent.shared", a.latent.shared > 0);
        if (a.latent) add("latent.queries", a.latent.queries > 0);
        add("window", a.window > 0);
        add("chunk", a.chunk > 0);
        add("position.kind", a.position.kind);
        if (a.position.kind == model::PositionKind::p_rope) add("spacing", a.position.spacing);
        add("qk.kind", a.qk.kind);
        if (a.qk.kind == model::QkKind::qk_rms_eps) add("eps_per_head", a.qk.eps_per_head);
        add("scale.kind", a.scale.kind);
        add("scale.granularity", a.scale.granularity_used());
        if (a.scale.kind != "none") add("scale.n", a.scale.scale_n);
        if (a.scale.kind == "none") add("learned factor", a.scale.learned());
        if (a.scale.kind == "logn_bias") add("learned b", a.scale.learned());
        if (a.scale.learned()) add("scale.init", a.scale.init);
        add("scale.base", a.scale.base > 0);
        add("distance.kind", a.distance.kind);
        if (a.distance.kind == "scale_invariant" || a.distance.kind == "log_bias") {
            add("learn_tau", a.distance.learn_tau);
            add("learn_decay", a.distance.learn_decay);
        }
        add("attention softcap", a.softcap > 0);
        add("sink", a.sink);
        if (a.conv.size > 0) {
            add("conv.size", a.conv.size);
            add("conv.queries", a.conv.queries);
            add("conv.keys", a.conv.keys);
            add("conv.values", a.conv.values);
        }
        add("output_norm", a.output_norm.kind);
        if (a.output_norm.kind != model::OutputNorm::none) add("output_norm.gain", a.output_norm.gain);
        add("gate.kind", a.gate.kind);
        if (a.gate.kind != model::GateKind::none) {
            add("gate.doubled", a.gate.doubled);
            add("gate.zero_init", a.gate.zero_init);
        }
        add("forget", a.forget);
        add("normaliser", a.normaliser);
        add("pre_norm", a.pre_norm);
        add("post_norm", a.post_norm);
    }
    return all;
}

// Every feature that exists.
inline std::vector<std::string> known_features() {
    std::vector<std::string> all;
    const auto values = [&](const char* key, int first, int count) {
        for (int v = first; v < first + count; ++v) all.push_back(fmt::format("{}={}", key, v));
    };
    for (const char* key : {"documents",
                            "embedding_norm",
                            "norm.kind",
                            "norm.gain",
                            "x0",
                            "unet",
                            "values",
                            "value_embeddings",
                            "smear",
                            "backout",
                            "tied",
                            "layouts",
                            "last",
                            "grouped",
                            "window",
                            "chunk",
                            "spacing",
                            "eps_per_head",
                            "learned factor",
                            "learned b",
                            "scale.base",
                            "learn_tau",
                            "learn_decay",
                            "attention softcap",
                            "conv.queries",
                            "conv.keys",
                            "conv.values",
                            "output_norm.gain",
                            "gate.doubled",
                            "gate.zero_init",
                            "pre_norm",
                            "post_norm",
                            "forget",
                            "normaliser",
                            "latent",
                            "latent.shared",
                            "latent.queries"})
        values(key, 0, 2);
    for (const char* key :
         {"norm.placement", "softcap", "position.kind", "scale.init", "sink", "output_norm"})
        values(key, 0, 3);
    values("gau", 0, 2);
    values("loops", 0, 2);
    values("mlp.kind", 0, 4);
    values("gate.kind", 0, 4);
    values("conv.size", 2, 3);
    values("scale.n", 0, 4);
    values("scale.granularity", 1, 4);
    for (const std::string& kind : distance_kinds) all.push_back("distance.kind=" + kind);
    values("qk.kind", 0, 12);
    for (const std::string& kind : scale_kinds) all.push_back("scale.kind=" + kind);
    return all;
}

}  // namespace longreach::test
