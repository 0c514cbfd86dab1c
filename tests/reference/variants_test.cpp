// The reference's variants: identities between them, derivatives against central differences.
#include <doctest/doctest.h>

#include <fmt/format.h>

#include "base/rng.h"
#include "model/small_variants.h"
#include "reference/evaluate.h"
#include "reference/parameters.h"
#include "reference/weights.h"

using namespace longreach;
using namespace longreach::reference;
using doctest::Approx;
using test::SmallModel;
using test::tiny_model;

namespace {

Params<double> random_params(const model::ModelConfig& m, double scatter = 0.3) {
    const Rng rng(23, Purpose::test);
    uint64_t drawn = 0;
    return first_values(
        m, [&] { return rng.uniform(drawn++); }, [&] { return rng.normal(drawn++); }, scatter);
}

Example random_tokens(const model::ModelConfig& m, int64_t length, bool documents = false) {
    const Rng rng(29, Purpose::test);
    Example e{1, length, {}, {}, {}};
    for (int64_t p = 0; p < length; ++p) {
        const uint64_t i = static_cast<uint64_t>(3 * p), vocabulary = static_cast<uint64_t>(m.vocab_size);
        e.tokens.push_back(static_cast<int32_t>(rng.below(i, vocabulary)));
        e.targets.push_back(static_cast<int32_t>(rng.below(i + 1, vocabulary)));
        if (documents) e.doc_start.push_back(p % 5 == 0 ? int32_t(p) : e.doc_start.back());
    }
    return e;
}

// Both models on the same tokens, the second with parameters made from the first's: losses agree to rounding.
void check_same(const model::ModelConfig& a, const Params<double>& pa, const model::ModelConfig& b,
                const Params<double>& pb, double tolerance = 1e-12, const PostHoc& change = {}) {
    for (bool documents : {false, true}) {
        const Example e = random_tokens(a, 14, documents);
        const auto x = losses(a, pa, e), y = losses(b, pb, e, change);
        for (size_t n = 0; n < x.size(); ++n) CHECK(x[n] == Approx(y[n]).epsilon(tolerance));
    }
}
bool differs(const model::ModelConfig& a, const Params<double>& pa, const model::ModelConfig& b,
             const Params<double>& pb, const PostHoc& change = {}) {
    const Example e = random_tokens(a, 14);
    const auto x = losses(a, pa, e), y = losses(b, pb, e, change);
    double largest = 0;
    for (size_t n = 0; n < x.size(); ++n) largest = std::max(largest, std::abs(x[n] - y[n]));
    return largest > 1e-4;
}
void set_all(Params<double>& p, const std::string& part, double value) {
    for (auto& [name, values] : p)
        if (name.find(part) != std::string::npos) values.assign(values.size(), value);
}
void scale_all(Params<double>& p, const std::string& part, double factor) {
    for (auto& [name, values] : p)
        if (name.find(part) != std::string::npos)
            for (double& v : values) v *= factor;
}

}  // namespace

TEST_CASE("reference: variants that start as nothing are nothing") {
    model::ModelConfig m = tiny_model(2);
    const Params<double> p = random_params(m);
    const auto nothing = [&](const char* what, auto change) {
        CAPTURE(what);
        model::ModelConfig changed = m;
        changed.train_context = 16;
        change(changed);
        Params<double> q = p;
        for (const auto& [name, values] : random_params(changed, 0))
            if (q.count(name) == 0) q[name] = values;
        check_same(m, p, changed, q);
        // Off its first values it is something.
        for (const auto& [name, values] : random_params(changed, 0.3))
            if (p.count(name) == 0) q[name] = values;
        CHECK(differs(m, p, changed, q));
    };
    for (const model::GateKind kind :
         {model::GateKind::headwise, model::GateKind::elementwise, model::GateKind::sparse})
        nothing("doubled gate", [&](model::ModelConfig& c) { c.attention.gate = {kind, true, true}; });
    nothing("convolution", [](model::ModelConfig& c) { c.attention.conv.size = 3; });
    nothing("smear", [](model::ModelConfig& c) { c.residual.smear = true; });
    nothing("plain factor", [](model::ModelConfig& c) {
        test::add_law(c.attention, "z * r", {{"r", test::starts(1, model::Learning::head)}});
    });
    nothing("gains", [](model::ModelConfig& c) { c.attention.qk.kind = model::QkKind::qk_rms_w; });
}

TEST_CASE("reference: variants at their limits") {
    model::ModelConfig m = tiny_model(2);
    m.train_context = 16;
    m.attention.heads = 4;
    m.attention.kv_heads = 2;
    Params<double> p = random_params(m);
    const auto changed = [&](auto change) {
        model::ModelConfig c = m;
        change(c);
        return c;
    };
    const auto with = [&](const std::string& law, const test::ScoreParameters& params = {}) {
        return changed([&](model::ModelConfig& x) { test::add_law(x.attention, law, params); });
    };
    SUBCASE("a sink far below is no sink; a sink of zero is a learned one at zero") {
        model::ModelConfig c =
            changed([](model::ModelConfig& x) { x.attention.sink = model::SinkKind::learned; });
        Params<double> q = random_params(c);
        for (auto& [name, values] : p) q[name] = values;
        set_all(q, ".sink", -1e30);
        check_same(m, p, c, q);
        set_all(q, ".sink", 0);
        CHECK(differs(m, p, c, q));
        check_same(changed([](model::ModelConfig& x) { x.attention.sink = model::SinkKind::zero; }), p, c, q);
    }
    SUBCASE("chunks as long as the sequence, p-rope at both ends, softcap far above") {
        check_same(m, p, changed([](model::ModelConfig& x) { x.attention.chunk = 14; }), p);
        CHECK(differs(m, p, changed([](model::ModelConfig& x) { x.attention.chunk = 13; }), p));
        model::ModelConfig c = changed([](model::ModelConfig& x) { x.attention.angle = "p_rope"; });
        c.attention.params["fraction"] = test::starts(1);
        check_same(m, p, c, p);
        c.attention.params["fraction"] = test::starts(0);
        check_same(changed([](model::ModelConfig& x) { x.attention.angle = "nope"; }), p, c, p);
        // c tanh(z / c) = z - z^3 / (3 c^2) + ...
        check_same(m, p, changed([](model::ModelConfig& x) { x.attention.score = "1e8*tanh(z/1e8)"; }), p,
                   1e-11);
    }
    SUBCASE("interpolation: kappa = 0, p = 1 is scale-invariant; kappa = 1, p = 0 is sqrt(2 log n)") {
        const model::ModelConfig si = with("scale_invariant", {{"tau", test::starts(3)}});
        model::ModelConfig c =
            with("si_interp", {{"tau", test::starts(3)}, {"kappa", test::starts(0)}, {"p", test::starts(1)}});
        check_same(si, p, c, p);
        // b = e^(-1/2), c = 0: a^2 = 1 + 2 (log n - 1/2) = 2 log n, and a constant per row.
        c.attention.params = {{"tau", test::starts(3)},
                              {"kappa", test::starts(1)},
                              {"p", test::starts(0)},
                              {"b", test::starts(std::exp(-0.5))},
                              {"c", test::starts(0)}};
        const model::ModelConfig root_n = with("sqrt2logn", {{"r", test::starts(1, model::Learning::no)}});
        // sqrt(1 + 2 (log(b n))) at n = 1 is the root of a rounding error of 1e-16: 1e-8 of one score that is
        // alone in its softmax.
        check_same(root_n, p, c, p, 1e-11);
    }
    SUBCASE("learned decay and tau at the values of the static form") {
        for (const std::string kind : {"scale_invariant", "log_bias"}) {
            const model::ModelConfig fixed = with(kind, {{"tau", test::starts(3)}});
            const model::ModelConfig c = with(kind, {{"tau", test::starts(3, model::Learning::layer, true)},
                                                     {"c", test::starts(1, model::Learning::layer)}});
            Params<double> q = random_params(c);
            for (auto& [name, values] : p) q[name] = values;
            set_all(q, "score.c", 1);
            set_all(q, "score.log_tau", std::log(3));
            check_same(fixed, p, c, q);
            set_all(q, "score.c", 0);
            if (kind == "log_bias") check_same(m, p, c, q);
        }
        // KERPLE's logarithm with p = 1 and a = 1 / tau is the logarithmic bias.
        const model::ModelConfig bias = with("log_bias", {{"tau", test::starts(3)}}), c = with("kerple_log");
        Params<double> q = random_params(c);
        for (auto& [name, values] : p) q[name] = values;
        set_all(q, "score.p", 1);
        set_all(q, "score.a", 1 / 3.0);
        check_same(bias, p, c, q);
    }
    SUBCASE("norms of queries or keys do not see the size of their matrices") {
        const auto check_scale = [&](model::QkKind kind, const char* which, bool same) {
            model::ModelConfig c = changed([&](model::ModelConfig& x) { x.attention.qk.kind = kind; });
            if (kind == model::QkKind::cosa) c.attention.score = "cosa_const";
            Params<double> q = p;
            scale_all(q, fmt::format("attention.{}.weight", which), 3);
            CAPTURE(which);
            // |x| is kept off zero by 1e-12 of a square of size 1e-1 and more.
            if (same) check_same(c, p, c, q, 1e-9);
            CHECK(differs(c, p, c, q) != same);
        };
        check_scale(model::QkKind::kna, "k", true);
        check_scale(model::QkKind::kna, "q", false);
        check_scale(model::QkKind::qna, "q", true);
        check_scale(model::QkKind::qna, "k", false);
        for (const char* which : {"q", "k"}) {
            check_scale(model::QkKind::qk_l2, which, true);
            check_scale(model::QkKind::cosa, which, true);
        }
        // Unit vectors times sqrt(d) are the parameter-free RMS norm without eps.
        model::ModelConfig rms = m, unit = m;
        rms.attention.qk = {model::QkKind::qk_rms, 1e-300};
        unit.attention.qk.kind = model::QkKind::qk_l2;
        check_same(rms, p, unit, p, 1e-9);
    }
    SUBCASE("placements") {
        // A norm after attention alone, or after both: with gains of zero the module is not there.
        model::ModelConfig c =
            changed([](model::ModelConfig& x) { x.norm.placement = model::NormPlacement::peri; });
        Params<double> q = random_params(c), silent = p;
        for (auto& [name, values] : p) q[name] = values;
        set_all(q, "post_norm.gain", 0);
        for (const char* which : {"attention.o.weight", "mlp.down.weight"}) set_all(silent, which, 0);
        check_same(m, silent, c, q);
        c = changed([](model::ModelConfig& x) { x.attention.post_norm = true; });
        silent = p;
        set_all(silent, "attention.o.weight", 0);
        check_same(m, silent, c, q);
        // Hybrid: with silent modules every layer norms the stream once more, which is one norm in the end.
        c = changed([](model::ModelConfig& x) {
            x.norm.placement = model::NormPlacement::hybrid;
            x.norm.eps = 1e-300;
            x.attention.qk.kind = model::QkKind::qkv_rms_w;
        });
        model::ModelConfig tiny_eps = m;
        tiny_eps.norm.eps = 1e-300;
        q = random_params(c);
        silent = p;
        for (const char* which : {"attention.o.weight", "mlp.down.weight"}) set_all(silent, which, 0);
        for (auto& [name, values] : silent) q[name] = values;
        check_same(tiny_eps, silent, c, q);
        // One layer, silent attention: x = n + mlp(n) is the pre-norm block of a normed stream.
        c.layers = tiny_eps.layers = 1;
        for (auto& [name, values] : p)
            if (name.find("mlp.") != std::string::npos) q[name] = silent[name] = values;
        check_same(tiny_eps, silent, c, q);
    }
    SUBCASE("backout, value embeddings") {
        // Taking back the last layer's output whole leaves 1 - lambda of the stream, which the head norms.
        model::ModelConfig c = changed([](model::ModelConfig& x) {
            x.residual.backout = 1;
            x.norm.eps = 1e-300;
        });
        Params<double> q = p;
        q["backout_mix"] = {0.3};
        model::ModelConfig tiny_eps = m;
        tiny_eps.norm.eps = 1e-300;
        check_same(tiny_eps, p, c, q);
        c.residual.backout = 0;
        CHECK(differs(tiny_eps, p, c, q));

        c = changed([](model::ModelConfig& x) { x.residual.value_embeddings = 1; });
        q = random_params(c);
        for (auto& [name, values] : p) q[name] = values;
        set_all(q, "own_value_mix", 1);
        set_all(q, "value_embedding_mix", 0);
        check_same(m, p, c, q);
        // A table whose rows are all the same adds it to every average.
        set_all(q, "value_embedding_mix", 1);
        set_all(q, "value_embeddings.0", 0);
        check_same(m, p, c, q);
    }
}

TEST_CASE("reference: changes at evaluation act beyond L_train alone, and their limits are rope") {
    model::ModelConfig m = tiny_model(2);
    m.train_context = 14;
    const Params<double> p = random_params(m);
    using Kind = PostHoc::Kind;
    for (int kind = 0; kind <= int(Kind::leaky_rerope); ++kind) {
        CAPTURE(kind);
        PostHoc change;
        change.kind = Kind(kind);
        change.window = 4;
        change.leak = 3;
        change.clip_logn = true;
        m.train_context = 14;
        check_same(m, p, m, p, 1e-12, change);
        m.train_context = 7;
        CHECK(differs(m, p, m, p, change));
        change.clip_logn = false;
        CHECK(differs(m, p, m, p, change) == (change.kind != Kind::none));
    }
    PostHoc change{Kind::leaky_rerope};
    change.window = 4;
    check_same(m, p, m, p, 1e-12, change);  // leak 1
    change.window = 14;
    change.leak = 5;
    check_same(m, p, m, p, 1e-12, change);
    change.kind = Kind::rerope;
    check_same(m, p, m, p, 1e-12, change);
    change.window = 5;
    PostHoc leaky{Kind::leaky_rerope};
    leaky.window = 5;
    leaky.leak = 1e300;
    const Example e = random_tokens(m, 14);
    const auto x = losses(m, p, e, change), y = losses(m, p, e, leaky);
    for (size_t n = 0; n < x.size(); ++n) CHECK(x[n] == Approx(y[n]).epsilon(1e-12));
}

TEST_CASE("reference: derivatives of every variant agree with central differences") {
    for (const SmallModel& small : test::small_variants()) {
        CAPTURE(small.name);
        const model::ModelConfig& m = small.config;
        const Params<double> p = random_params(m);
        const Example e = random_tokens(m, 12, small.documents);
        const Rng rng(37, Purpose::test);
        uint64_t drawn = 0;
        Params<double> direction;
        for (const auto& [name, values] : p)
            for (size_t i = 0; i < values.size(); ++i) direction[name].push_back(rng.normal(drawn++));
        const auto losses_at = [&](double step) {
            Params<double> moved = p;
            for (auto& [name, values] : moved)
                for (size_t i = 0; i < values.size(); ++i) values[i] += step * direction.at(name)[i];
            return losses(m, moved, e);
        };
        // Truncation is h^2 times the third derivative along a direction of length 40, h times the jumps of
        // relu2's second derivative, and nothing where a bound of KERPLE is crossed (none is); rounding is
        // 1e-16 / h. Slopes are of order ten.
        const double h = 1e-6;
        const auto plus = losses_at(h), minus = losses_at(-h);
        const Directional exact = directional_derivative(m, p, direction, e);
        for (size_t n = 0; n < plus.size(); ++n)
            CHECK(exact.slopes[n] == Approx((plus[n] - minus[n]) / (2 * h)).epsilon(3e-6).scale(1));

        // Copies of what decides scores that act on the denominator share its derivative.
        Params<double> split = p;
        std::vector<Coordinate> whole, halves;
        const bool latent = p.count("layers.1.attention.k_up.weight") > 0;
        for (const char* name :
             {p.count("layers.0.attention.q.weight") > 0 ? "layers.0.attention.q.weight"
                                                         : "layers.0.attention.q_up.weight",
              latent ? "layers.1.attention.k_up.weight" : "layers.1.attention.k.weight"}) {
            split[name + denominator_mark] = p.at(name);
            whole.push_back({name, 5});
            halves.push_back({name, 5});
            halves.push_back({name + denominator_mark, 5});
        }
        const auto a = token_derivatives(m, p, e, whole), b = token_derivatives(m, split, e, halves);
        for (size_t i = 0; i < whole.size(); ++i)
            for (size_t n = 0; n < plus.size(); ++n)
                CHECK(a[i][n] == Approx(b[2 * i][n] + b[2 * i + 1][n]).epsilon(1e-9));
    }
}

TEST_CASE("reference: smearing takes the plain embedding before it, within the document") {
    model::ModelConfig m = tiny_model(1);
    m.vocab_size = 3;
    m.embedding_norm = false;
    m.residual.smear = true;
    Params<double> p = random_params(m);
    for (const char* silent :
         {"attention.o.weight", "mlp.down.weight", "smear.weight", "embedding.weight", "head.weight"})
        set_all(p, silent, 0);
    for (size_t token = 0; token < 3; ++token)  // token t is unit vector t
        p["embedding.weight"][token * 16 + token] = p["head.weight"][token * 16 + token] = 1;
    p["smear_mix"] = {0.8};
    p["smear.weight"][2] = 3;  // token 2 smears more
    const auto last = [&](const std::vector<int32_t>& doc_start) {
        return reference::logits(m, p, {0, 1, 2}, doc_start);
    };
    const auto x = last({});
    CHECK(x[0][1] == 0);
    CHECK(x[1][0] / x[1][1] == Approx(0.4));
    CHECK(x[2][1] / x[2][2] == Approx(0.8 / (1 + std::exp(-3))));
    CHECK(x[2][0] == 0);
    CHECK(last({0, 0, 2})[2][1] == 0);
    CHECK(last({0, 1, 1})[1][0] == 0);
    CHECK(last({0, 1, 1})[2][1] / last({0, 1, 1})[2][2] == Approx(0.8 / (1 + std::exp(-3))));
}

TEST_CASE("reference: every layer of a hybrid model leaves its stream normed") {
    model::ModelConfig m = tiny_model(2);
    m.embedding_norm = false;
    m.norm.placement = model::NormPlacement::hybrid;
    m.norm.eps = 0.5;
    m.attention.qk.kind = model::QkKind::qkv_rms_w;
    Params<double> p = random_params(m);
    for (const char* silent : {"attention.o.weight", "mlp.down.weight"}) set_all(p, silent, 0);
    Row<double> x = slice(p.at("embedding.weight"), 3 * 16, 16);
    for (int norms = 0; norms < 3; ++norms) x = rms_norm(x, 0.5);  // two layers and the head
    const auto logits = reference::logits(m, p, {3}, {})[0];
    for (size_t v = 0; v < logits.size(); ++v) {
        double expected = 0;
        for (size_t c = 0; c < 16; ++c) expected += p.at("head.weight")[v * 16 + c] * x[c];
        CHECK(logits[v] == Approx(expected));
    }
}

TEST_CASE("reference: value tables serve the first layers and, in the same order, the last") {
    model::ModelConfig m = tiny_model(5);
    m.residual.value_embeddings = 2;
    for (int layer = 0; layer < 5; ++layer) {
        // Only this layer listens to its table.
        Params<double> p = random_params(m);
        for (auto& [name, values] : p)
            if (name.ends_with(".value_embedding_mix") &&
                name != fmt::format("layers.{}.attention.value_embedding_mix", layer))
                values = {0};
        for (int table = 0; table < 2; ++table) {
            Params<double> q = p;
            scale_all(q, fmt::format("value_embeddings.{}.", table), 2);
            const bool serves = layer == table || layer == 3 + table;
            CHECK(differs(m, p, m, q) == serves);
        }
    }
}
