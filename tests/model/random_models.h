// Random small models over all choices of a config, valid by construction, and the list
// of the features they contain.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "base/rng.h"
#include "mixers/latent.h"
#include "model/laws_of_configs.h"
#include "model/small_models.h"
#include "reference/inputs.h"
#include "reference/scores.h"

namespace longreach::test {

// Factors as formulas: after a softcap of <q, k>, where their names would ask for <q, k> again, and with names of their own
// for parameters that a law of distance has, too.
struct WrittenLaw {
    std::string law, formula;
    std::map<std::string, std::string> renamed{};
};
inline const std::vector<WrittenLaw> written_laws = {
    {"gammalogn", "z * gamma*log(n)"},
    {"cosa_const", "z * 4*log(L/2)"},
    {"cosa_logn", "z * 4*log(n)"},
    {"qknorm_g", "z * g"},
    {"logn_bias", "z * (s*log(n) + shift)", {{"b", "shift"}}},
    {"logn_abc", "z * r*log(rate*n + late)", {{"b", "rate"}, {"c", "late"}}},
    {"sqrt_abc",
     "z * r*(shift + sqrt(2*log(rate*n + late)))",
     {{"a", "shift"}, {"b", "rate"}, {"c", "late"}}}};

// Appends the formula of a law, with its parameters in full.
inline void add_written_law(model::AttentionConfig& a, const std::string& law,
                            const ScoreParameters& params) {
    const auto written = std::find_if(written_laws.begin(), written_laws.end(),
                                      [&](const WrittenLaw& w) { return w.law == law; });
    ScoreParameters own;
    for (const law::Parameter& p : law::find_law(law)->parameters) {
        const auto it = params.find(p.name);
        model::ScoreParameterConfig c = it == params.end() ? model::ScoreParameterConfig() : it->second;
        if (c.init.is_null()) c.init = p.init;
        if (c.learn == model::Learning::by_law)
            c.learn = p.learn == law::Sharing::head    ? model::Learning::head
                      : p.learn == law::Sharing::layer ? model::Learning::layer
                                                       : model::Learning::no;
        const auto other = written->renamed.find(p.name);
        own[other == written->renamed.end() ? p.name : other->second] = c;
    }
    add_law(a, written->formula, own);
}

// What a text of a score is: a law, "softcap" or "factor", a factor without a law.
inline std::string law_of(const std::string& text) {
    for (const WrittenLaw& w : written_laws)
        if (w.formula == text) return w.law;
    if (text == "z * r") return "factor";
    return text.find("*tanh(") != text.npos ? "softcap" : text;
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
            // Layouts with laws of their own have no parameter in common.
            for (auto& [name, layout] : m.layouts)
                for (auto& [parameter, p] : layout.params)
                    if (p.learn == model::Learning::model) p.learn = model::Learning::layout;
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
        a.mixer = "gau";
        a.heads = kv_heads_;  // as many values as before
        a.own<model::LatentConfig>() = {};
        a.conv = {};
        a.gate = {};
        a.differential = false;
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
        const DrawnLaw factor = factor_law(a), distance = distance_law();
        Turning turning = random_turning([&](int64_t n) { return below(n); },
                                         [&](double low, double high) { return between(low, high); });
        if (distance.name == "alibi") turning.angle = "nope";
        const double softcap = one_in(4) ? between(1, 8) : 0;
        a.sink = one_in(2) ? model::SinkKind::none : static_cast<model::SinkKind>(below(3));
        if (distance.name == "si_interp") a.sink = model::SinkKind::none;  // refused
        // Not `exclusive`: a first token's output without its own value is nothing but rounding, which norms of later
        // modules can enlarge beyond any bound by the sizes of terms. small_variants.h has it without such norms.
        a.output_norm = {one_in(2) ? model::OutputNorm::none : static_cast<model::OutputNorm>(below(3)),
                         false};
        a.output_norm.gain = a.output_norm.kind != model::OutputNorm::none && flag();
        a.gate = {one_in(2) ? model::GateKind::none : static_cast<model::GateKind>(below(4)), flag(), flag()};
        needs_sparse_channels_ = needs_sparse_channels_ || a.gate.kind == model::GateKind::sparse;
        a.pre_norm = hybrid_ || !one_in(5);
        a.post_norm = !peri_ && one_in(5);
        const bool forgets = one_in(4);
        const bool softmax_only = a.sink != model::SinkKind::none || forgets || distance.name == "si_interp";
        if (one_in(3) && !softmax_only && a.window != 1 && a.chunk != 1)
            a.normaliser = model::Normaliser::stick_breaking;
        make_latent(a, is_for_cosines(factor.name), turning);
        set_angle(a, turning);
        add_laws(a, factor, distance, softcap);
        if (forgets) add_law(a, "forgetting");
        const Rng rng(19, Purpose::test, stream_);  // apart, so that it changes no other variant
        a.differential = a.heads / a.kv() % 2 == 0 && rng.below(drawn_of_differences_++, 3) == 0;
        return a;
    }

    struct DrawnLaw {
        std::string name{};  // "": none
        ScoreParameters params{};
    };
    static void add_laws(model::AttentionConfig& a, const DrawnLaw& factor, const DrawnLaw& distance,
                         double softcap) {
        const bool cosines = is_for_cosines(factor.name);
        if (softcap > 0) add_law(a, fmt::format("{0}*tanh({1}/{0})", softcap, cosines ? "dot" : "z"));
        if ((cosines && softcap > 0) || share_parameters(factor.name, distance.name))
            add_written_law(a, factor.name, factor.params);
        else if (!factor.name.empty())
            add_law(a, factor.name, factor.params);
        if (!distance.name.empty()) add_law(a, distance.name, distance.params);
    }
    static bool share_parameters(const std::string& a, const std::string& b) {
        const law::NamedLaw *first = law::find_law(a), *second = law::find_law(b);
        if (first == nullptr || second == nullptr) return false;
        for (const law::Parameter& p : first->parameters)
            for (const law::Parameter& other : second->parameters)
                if (p.name == other.name) return true;
        return false;
    }

    // In one layout of five keys and values of a latent, without what contradicts it. Its numbers are drawn apart, so
    // that they change no other variant.
    void make_latent(model::AttentionConfig& a, bool cosines, Turning& turning) {
        const Rng rng(18, Purpose::test, stream_);
        const auto below = [&](uint64_t n) {
            return static_cast<int64_t>(rng.below(drawn_of_latents_++, n));
        };
        if (below(5) > 0 || hybrid_ || mixes_values_ || cosines) return;
        a.kv_heads = 0;
        a.qk = {model::QkKind::none};
        a.conv = {};
        const bool turns = turning.angle != "nope";
        const int64_t shared = a.head_dim == 4 ? 0 : turns ? 4 : 4 * below(2);
        if (shared == 0) turning.angle = "nope";
        a.own<model::LatentConfig>() = {4 * (1 + below(4)), shared, below(2) == 0 ? 4 + below(12) : 0};
    }

    // With score_base and score_count.
    DrawnLaw factor_law(model::AttentionConfig& a) {
        DrawnLaw drawn;
        const bool unit = a.qk.kind == model::QkKind::qk_l2 || a.qk.kind == model::QkKind::cosa;
        do {
            const int64_t index = one_in(4) ? 0 : below(static_cast<int64_t>(count_laws.size()) + 1);
            drawn.name = index == 0 ? "" : count_laws[static_cast<size_t>(index - 1)];
            if (a.qk.kind == model::QkKind::cosa && !is_for_cosines(drawn.name)) {
                const char* laws[] = {"gammalogn", "cosa_const", "cosa_logn", "qknorm_g"};
                drawn.name = laws[below(4)];
            }
        } while (is_for_cosines(drawn.name) && !unit);
        const std::string r = drawn.name.empty() ? "r" : factor_parameter(drawn.name);
        if (!r.empty()) {
            model::ScoreParameterConfig& p = drawn.params[r];
            p.learn = one_in(3) ? model::Learning::no : static_cast<model::Learning>(below(6));
            if (one_in(3)) a.score_base = between(0.1, 0.6);
        }
        if (drawn.name.empty()) {
            if (drawn.params[r].learn > model::Learning::no) drawn.name = "z * r";
            drawn.params[r].init = 1;
        } else if (!r.empty()) {
            const int64_t init = below(3);  // by the law, parity, a value
            const double value = between(0.4, 1.2), bias = between(-0.5, 0.5);
            if (init > 0) drawn.params[r].init = init == 1 ? json::Value("parity") : json::Value(value);
            if (drawn.name == "logn_bias") drawn.params["b"] = starts(bias, drawn.params[r].learn);
            const bool parity = init == 1 || (init == 0 && drawn.name == "gammalogn");
            if (is_for_cosines(drawn.name) && !parity) a.score_base = 0;  // which has no effect there
        }
        const std::pair<const char*, double> constants[] = {
            {"a", between(0, 0.5)},
            {"b", between(0.1, 1)},
            {"c", between(0.95, 2)},
            {"C", between(1.5, 5)},
            {"scale", between(0.1, 0.5)},
            {"floor_scale", static_cast<double>(2 + below(6))},
            {"length", static_cast<double>(2 + below(8))}};
        if (const law::NamedLaw* law = law::find_law(drawn.name))
            for (const law::Parameter& p : law->parameters)
                for (const auto& [name, value] : constants)
                    if (p.name == name && drawn.params.count(name) == 0) drawn.params[name] = starts(value);
        a.score_count = static_cast<model::ScoreCount>(below(4));
        if (a.score_count == model::ScoreCount::document && !documents_)
            a.score_count = model::ScoreCount::automatic;
        return drawn;
    }

    DrawnLaw distance_law() {
        const int64_t index = one_in(4) ? 0 : below(static_cast<int64_t>(distance_laws.size()) + 1);
        DrawnLaw drawn;
        if (index > 0) drawn.name = distance_laws[static_cast<size_t>(index - 1)];
        const double tau = between(0.3, 20);
        if (drawn.name == "scale_invariant" || drawn.name == "log_bias") {
            const bool learn_tau = flag(), learn_c = flag();
            const double c = flag() ? 1 : between(0.5, 1.5);
            using enum model::Learning;
            drawn.params = {{"tau", starts(tau, learn_tau ? layer : by_law, learn_tau)},
                            {"c", starts(c, learn_c ? layer : by_law)}};
        }
        const double kappa = rng_.uniform(drawn_++), p = between(0, 1.5), b = between(0.1, 1),
                     c = between(0.95, 2);
        if (drawn.name == "si_interp")
            drawn.params = {{"tau", starts(tau)},
                            {"kappa", starts(kappa)},
                            {"p", starts(p)},
                            {"b", starts(b)},
                            {"c", starts(c)}};
        return drawn;
    }

    int64_t below(int64_t n) { return static_cast<int64_t>(rng_.below(drawn_++, static_cast<uint64_t>(n))); }
    bool flag() { return below(2) == 1; }
    bool one_in(int64_t n) { return below(n) == 0; }
    double between(double low, double high) { return low + (high - low) * rng_.uniform(drawn_++); }

    Rng rng_;
    uint32_t stream_;
    uint64_t drawn_ = 0, drawn_of_latents_ = 0, drawn_of_differences_ = 0;
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
        add("gau", a.mixer == "gau");
        add("grouped", a.heads != a.kv());
        const model::LatentConfig latent = a.own<model::LatentConfig>();
        add("latent", latent.width > 0);
        if (latent) add("latent.shared", latent.shared > 0);
        if (latent) add("latent.queries", latent.queries > 0);
        add("window", a.window > 0);
        add("chunk", a.chunk > 0);
        add("angle", a.written_angle());
        add("qk.kind", a.qk.kind);
        if (a.qk.kind == model::QkKind::qk_rms_eps) add("eps_per_head", a.qk.eps_per_head);
        add("score_base", a.score_base > 0);
        const std::vector<std::string> laws = reference::laws_of(a);
        add("laws", std::min<size_t>(laws.size(), 3));
        for (const std::string& text : laws) {
            const std::string law = law_of(text);
            add("law", law);
            const bool counts = std::find(count_laws.begin(), count_laws.end(), law) != count_laws.end();
            if (counts) add("written", text != law);
            const auto learn = [&](const char* name) { return a.params.at(name).learn; };
            if (counts) add("score_count", a.score_count);
            if (law == "logn_bias")
                add("learned b", learn(text == law ? "b" : "shift") != model::Learning::no);
            if (law == "scale_invariant" || law == "log_bias") {
                add("learned tau", learn("tau") == model::Learning::layer);
                add("learned c", learn("c") == model::Learning::layer);
            }
            const std::string r = law == "factor" ? "r" : counts ? factor_parameter(law) : "";
            if (r.empty()) continue;
            add("learning", a.params.at(r).learn);
            const json::Value& init = a.params.at(r).init;
            add("first factor", init.is_null() ? "of the law" : init.is_string() ? "parity" : "value");
        }
        add("sink", a.sink);
        if (a.conv.size > 0) {
            add("conv.size", a.conv.size);
            add("conv.queries", a.conv.queries);
            add("conv.keys", a.conv.keys);
            add("conv.values", a.conv.values);
        }
        add("differential", a.differential);
        add("output_norm", a.output_norm.kind);
        if (a.output_norm.kind != model::OutputNorm::none) add("output_norm.gain", a.output_norm.gain);
        add("gate.kind", a.gate.kind);
        if (a.gate.kind != model::GateKind::none) {
            add("gate.doubled", a.gate.doubled);
            add("gate.zero_init", a.gate.zero_init);
        }
        add("forget", !reference::terms_of(a).empty());
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
                            "eps_per_head",
                            "score_base",
                            "written",
                            "learned b",
                            "learned tau",
                            "learned c",
                            "conv.queries",
                            "conv.keys",
                            "conv.values",
                            "differential",
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
    for (const char* key : {"norm.placement", "softcap", "sink", "output_norm"}) values(key, 0, 3);
    values("gau", 0, 2);
    values("loops", 0, 2);
    values("mlp.kind", 0, 4);
    values("gate.kind", 0, 4);
    values("conv.size", 2, 3);
    values("score_count", 0, 4);
    values("laws", 0, 4);
    values("learning", 0, 6);
    values("qk.kind", 0, 12);
    for (const std::vector<std::string>& laws :
         {count_laws, distance_laws, std::vector<std::string>{"softcap", "factor", "forgetting"}})
        for (const std::string& law : laws) all.push_back("law=" + law);
    for (const char* angle : {"rope", "p_rope", "p_rope_linspace", "nope"})
        all.push_back(fmt::format("angle={}", angle));
    for (const char* start : {"of the law", "parity", "value"})
        all.push_back(fmt::format("first factor={}", start));
    return all;
}

}  // namespace longreach::test
