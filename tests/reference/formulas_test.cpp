// The reference's formulas by hand and against published values: length scales, frequencies,
// scores of one head.
#include <doctest/doctest.h>

#include <fmt/format.h>

#include <functional>

#include "base/rng.h"
#include "model/laws.h"
#include "model/small_models.h"
#include "reference/attention.h"

using namespace longreach;
using namespace longreach::reference;
using doctest::Approx;
using test::starts;
using test::tiny_model;

namespace {

// Softmax weights of one head whose positions are unit vectors: W_v = W_o = 1, so that row i of the output is
// P_i, and <q_i, k_j> = logits[i][j] before rotary and norms.
constexpr size_t T = 8;
struct OneHead {
    model::ModelConfig m = tiny_model(1);
    Params<double> params;
    std::vector<int32_t> doc_start;
    PostHoc change;

    OneHead() {
        m.width = T;
        m.train_context = 1 << 20;
        a().heads = 1;
        a().head_dim = T;
        a().qk.kind = model::QkKind::none;
        a().angle = "nope";
        const Rng rng(31, Purpose::test);
        for (const char* name : {"q", "k", "v", "o"}) {
            std::vector<double>& w = params[fmt::format("layers.0.attention.{}.weight", name)];
            for (size_t i = 0; i < T * T; ++i)
                w.push_back(name[0] == 'q' ? rng.normal(i) : i % (T + 1) == 0 ? 1.0 : 0.0);
        }
    }
    model::AttentionConfig& a() { return m.attention; }
    void set_laws(const std::vector<std::string>& laws, const test::ScoreParameters& with = {}) {
        a().score = nullptr;
        a().params = with;
        for (const std::string& law : laws) test::add_law(a(), law);
    }
    void set(const std::string& name, std::vector<double> values) {
        params["layers.0.attention." + name] = std::move(values);
    }
    // <q_i, k_j>: q_i is column i of W_q, k_j the unit vector j.
    double dot(size_t i, size_t j) const { return params.at("layers.0.attention.q.weight")[j * T + i]; }
    Rows<double> output() const {
        Rows<double> x(T, Row<double>(T, 0.0));
        for (size_t i = 0; i < T; ++i) x[i][i] = 1;
        const Weights<double> weights(params);
        Sequence<double> sequence{{}, doc_start, {}, {}, 0};
        return Attention<double>(m, m.attention, "", 0, weights, change).forward(x, sequence);
    }
    // The weights against a formula for the scores of visible pairs.
    void check(
        const std::function<double(double dot, double n, double t)>& score,
        const std::function<bool(size_t i, size_t j)>& visible = [](size_t i, size_t j) { return j <= i; },
        double sink_weight = 0) const {
        const Rows<double> p = output();
        for (size_t i = 0; i < T; ++i) {
            double total = sink_weight;
            std::vector<double> e(T, 0.0);
            for (size_t j = 0; j < T; ++j)
                if (visible(i, j))
                    total += e[j] = std::exp(score(dot(i, j), double(i + 1), double(i) - double(j)));
            for (size_t j = 0; j < T; ++j) CHECK(p[i][j] == Approx(e[j] / total).epsilon(1e-10));
        }
    }
};
const double root = std::sqrt(double(T));

// A factor by n; parameters that learn are 1.
double factor(const std::string& law, Place at, Values<double> params = {}) {
    for (const ScoreParameter& p : parameters_of(*law_named(law)))
        if (params.count(p.name) == 0) params[p.name] = p.learned() ? 1 : std::stod(p.init);
    return factor_of(*law_named(law), at, params);
}

// The first value of the parameter of a law's factor.
double first_factor(const std::string& law, const std::string& parameter, model::AttentionConfig a) {
    model::ModelConfig m;
    m.layers = 1;
    m.train_context = 512;
    a.score = law;
    for (const ScoreParameter& p : score_parameters(a))
        if (p.name == parameter) return first_value(m, a, 0, p, 0);
    throw std::logic_error("no parameter " + parameter);
}

void scale_all(Params<double>& p, const std::string& name, double factor) {
    for (double& v : p.at("layers.0." + name)) v *= factor;
}

}  // namespace

TEST_CASE("reference: length scales have their published values") {
    const auto at = [](const std::string& law, double n, double trained = 512) {
        return factor(law, {.n = n, .trained = trained});
    };
    const double fine = 5e-6;  // five decimals
    CHECK(std::abs(0.43 * at("logn", 64) - 1.78832) < fine);
    CHECK(std::abs(at("logn_fixed04", 4096) - 3.32711) < fine);
    CHECK(at("sqrt2logn", 1) == 0);
    CHECK(std::abs(at("sqrt2logn", 256) - 3.33022) < fine);
    CHECK(std::abs(at("sqrt2lognp1", 1) - 1.17741) < fine);
    CHECK(std::abs(at("sqrt2lognp1", 16) - 2.38043) < fine);
    CHECK(std::abs(at("sqrt_abc", 64) - 2.05731) < fine);
    CHECK(std::abs(factor("sqrt_abc", {.n = 64}, {{"a", 0.5}}) - 2.55731) < fine);
    CHECK(at("logn_abc", 64) == Approx(std::log(8.3)));
    CHECK(std::abs(at("maxterm2", 1) - 0.74847) < fine);
    CHECK(std::abs(at("maxterm2", 1024) - 3.27872) < fine);
    CHECK(at("llama4", 8191) == 1);
    CHECK(at("llama4", 8192) == Approx(1 + 0.1 * std::log(2)));
    CHECK(std::abs(at("llama4", 65536) - 1.21972) < fine);
    CHECK(at("grok2", 1025) == 1);  // p = 1024 is not beyond 1024
    CHECK(std::abs(at("grok2", 16384) - 1.39999) < fine);
    CHECK(at("qwen_logn", 2048, 2048) == 1);
    CHECK(std::abs(at("qwen_logn", 16384, 2048) - 1.27273) < fine);
    CHECK(std::abs(at("entinv", 2) - 0.11111) < fine);
    CHECK(std::abs(at("entinv", 4096) - 1.33333) < fine);
    CHECK(std::abs(at("cosa_const", 7) - 22.1807) < 5e-5);
    CHECK(at("cosa_logn", 7) == Approx(4 * std::log(7)));
    CHECK(at("gammalogn", 7) == Approx(std::log(7)));
    CHECK(at("gradmax_gauss", 7) == Approx(0.84 * std::sqrt(std::log(7))));
    CHECK(factor("beta_pow", {.n = 10, .head_dim = 16}) == Approx(std::pow(10, 2 / 15.0)));
}

TEST_CASE("reference: multipliers that let softmax attend to C keys have their published values") {
    const auto at = [](const std::string& law, int64_t head_dim, double target, double n) {
        return factor(law, {.n = n, .head_dim = head_dim}, {{"C", target}});
    };
    // Four decimals for normal scores, three for cosines.
    CHECK(std::abs(at("solve_c", 64, 2, 16) - 2.7407) < 6e-5);
    CHECK(std::abs(at("solve_c", 64, 8, 16) - 0.4579) < 6e-5);
    CHECK(std::abs(at("solve_c", 64, 4, 256) - 2.7969) < 6e-5);
    CHECK(at("solve_c", 64, 16, 16) == 0);
    CHECK(std::abs(at("solve_c_cos", 64, 4, 16) - 1.163) < 6e-4);
    CHECK(std::abs(at("solve_c_cos", 16, 4, 16) - 1.182) < 6e-4);
    CHECK(std::abs(at("solve_c_cos", 16, 4, 256) - 3.383) < 6e-4);
    CHECK(at("solve_c_cos", 16, 4, 4) == 0);
    // Two keys: E[1/w] = 1 + E exp(-A |z_1 - z_2|), the gap sqrt(2) times a half-normal.
    const double alpha = at("solve_c", 64, 1.5, 2);
    const double gap = 2 * std::exp(alpha * alpha) * 0.5 * std::erfc(alpha);
    CHECK(1 + gap == Approx(1.5).epsilon(1e-9));
}

TEST_CASE("reference: the first multiplier keeps the scale of the unscaled model") {
    model::AttentionConfig a;
    a.head_dim = 16;
    CHECK(first_factor("sqrt2lognp1", "r", a) == Approx(1 / std::sqrt(2 * std::log(257))));
    a.score_base = 0.5;  // m0 = 0.5 * sqrt(16)
    CHECK(first_factor("sqrt2lognp1", "r", a) == Approx(2 / std::sqrt(2 * std::log(257))));
    a.params["r"] = starts(0.7);
    CHECK(first_factor("sqrt2lognp1", "r", a) == 0.7);
    a.score_base = 0;
    a.params = {};
    CHECK(first_factor("logn", "s", a) == 0.43);
    a.params["s"] = starts("parity");
    CHECK(first_factor("logn", "s", a) == Approx(1 / std::log(256)));
    a.params["b"] = starts(0.25);
    CHECK(first_factor("logn_bias", "s", a) == Approx(0.75 / std::log(256)));
    a.params = {};
    a.qk.kind = model::QkKind::qk_l2;
    CHECK(first_factor("gammalogn", "gamma", a) ==
          Approx(4 / std::log(256)));  // on cosines: sqrt(d) at L / 2
    CHECK(first_factor("qknorm_g", "g", a) == Approx(std::log2(512.0 * 512 - 512)));
    a.params["g"] = starts("parity");
    CHECK(first_factor("qknorm_g", "g", a) == 4);
}

TEST_CASE("reference: ALiBi's slopes") {
    CHECK(alibi_slopes(4) == std::vector{0.25, 0.0625, 0.015625, 0.00390625});
    CHECK(alibi_slopes(6) == std::vector{0.25, 0.0625, 0.015625, 0.00390625, 0.5, 0.125});
    const auto twelve = alibi_slopes(12);
    CHECK(twelve[7] == 0.00390625);
    CHECK(twelve[8] == Approx(0.707107).epsilon(1e-6));
    CHECK(twelve[11] == Approx(0.0883883).epsilon(1e-6));
    CHECK(alibi_slopes(1) == std::vector{0.00390625});
}

TEST_CASE("reference: frequencies after a change have their published values") {
    const auto theta = frequencies({}, 128);
    PostHoc change;
    change.kind = PostHoc::Kind::ntk;
    auto t = changed_frequencies(theta, change, 4096, 65536);
    CHECK(t[1] == Approx(std::pow(167198.739, -2 / 128.0)).epsilon(1e-9));
    CHECK(t[63] == Approx(theta[63] / 16));  // the slowest pair is interpolated
    change.factor = 8;
    CHECK(changed_frequencies(theta, change, 4096, 65536)[5] ==
          Approx(std::pow(82684.62, -10 / 128.0)).epsilon(1e-8));
    change = {PostHoc::Kind::yarn};
    t = changed_frequencies(theta, change, 4096, 65536);
    CHECK(t[0] == 1);
    CHECK(t[20] == Approx(0.0562341).epsilon(1e-6));
    CHECK(t[33] == Approx(0.00460044).epsilon(1e-6));
    CHECK(t[46] == Approx(8.33451e-5).epsilon(1e-6));
    CHECK(t[63] == Approx(7.21739e-6).epsilon(1e-6));
    CHECK(yarn_magnitude(change, 4096, 65536) == Approx(1.277259).epsilon(1e-6));
    CHECK(yarn_magnitude(change, 4096, 4096) == 1);
    change = {PostHoc::Kind::pi};
    CHECK(changed_frequencies(theta, change, 4096, 65536)[9] == Approx(theta[9] / 16));
    // lambda^(d/2) = k: pair m (from 1) is divided by k^(m / (d/2)); the last one by k, however spread.
    change = {PostHoc::Kind::ntk_su, 8};
    CHECK(changed_frequencies(theta, change, 512, 4096)[31] == Approx(theta[31] / std::sqrt(8)));
    change = {PostHoc::Kind::ntk_mixed, 8};
    CHECK(changed_frequencies(theta, change, 512, 4096)[63] == Approx(theta[63] / 8));
    CHECK(changed_frequencies(theta, change, 512, 4096)[31] ==
          Approx(theta[31] * std::exp(-std::log(8) * std::pow(0.5, 0.625))));
    change = {PostHoc::Kind::ntk_old, 8};
    CHECK(changed_frequencies(theta, change, 512, 4096)[32] == Approx(theta[32] / std::sqrt(8)));
    // k = 2 at eight times the length: 2 * 8 - 1 = 15; k = 1: as fixed NTK.
    change = {PostHoc::Kind::ntk_dynamic, 2};
    CHECK(changed_frequencies(theta, change, 512, 4096)[63] == Approx(theta[63] / 15));
    // Rotated channels alone count: the slowest rotated pair is interpolated, the others stay at zero.
    model::AttentionConfig half;
    half.angle = "p_rope";
    change = {PostHoc::Kind::ntk};
    const auto kept = frequencies(half, 128);
    CHECK(kept.size() == 32);
    CHECK(changed_frequencies(kept, change, 512, 4096)[31] == Approx(kept[31] / 8));
    CHECK(changed_frequencies(kept, change, 512, 512) == kept);
}

TEST_CASE("reference: scores by hand") {
    OneHead one;
    one.check([](double dot, double, double) { return dot / root; });
    one.a().score_base = 0.3;
    one.check([](double dot, double, double) { return 0.3 * dot; });
    one.a().score_base = 0;
    const std::string cap = "0.5*tanh(z/0.5)";
    one.set_laws({cap});
    one.check([](double dot, double, double) { return 0.5 * std::tanh(dot / root / 0.5); });
    using enum model::Learning;
    one.set_laws({cap, "sqrt2logn"}, {{"r", starts(1.5, layout)}});
    one.params["attention.score.r"] = {1.5};
    const auto growing = [](double n) { return 1.5 * std::sqrt(2 * std::log(n)); };
    one.check([&](double dot, double n, double) { return growing(n) * 0.5 * std::tanh(dot / root / 0.5); });
    one.a().params["r"].learn = no;
    one.params.erase("attention.score.r");
    one.check([&](double dot, double n, double) { return growing(n) * 0.5 * std::tanh(dot / root / 0.5); });
    one.set_laws({"logn_bias"}, {{"s", starts(1.5, no)}, {"b", starts(0.25, no)}});
    one.check([&](double dot, double n, double) { return (1.5 * std::log(n) + 0.25) * dot / root; });
    one.set_laws({"logn_bias"});
    one.set("score.s", {0.6});
    one.set("score.b", {-0.1});
    one.check([&](double dot, double n, double) { return (0.6 * std::log(n) - 0.1) * dot / root; });

    // b of this factor and c of the distances: a formula keeps them apart.
    const std::string factor_of_n = "z * (s*log(n) + shift)";
    const auto after_factor = [&](const std::string& law, test::ScoreParameters with = {}) {
        with["s"] = starts(0.6);
        with["shift"] = starts(-0.1);
        one.set_laws({factor_of_n, law}, with);
    };
    const auto f = [](double n) { return 0.6 * std::log(n) - 0.1; };
    after_factor("scale_invariant", {{"tau", starts(3, layer, true)}, {"c", starts(1, layer)}});
    one.set("score.log_tau", {std::log(4)});
    one.set("score.c", {1.7});
    one.check([&](double dot, double n, double t) {
        const double m = 2 * std::log(1 + t / 4);
        return std::sqrt(1 + m) * f(n) * dot / root - 1.7 * m;
    });
    after_factor("scale_invariant", {{"tau", starts(3)}, {"c", starts(0.8)}});
    one.check([&](double dot, double n, double t) {
        const double m = 2 * std::log(1 + t / 3);
        return std::sqrt(1 + m) * f(n) * dot / root - 0.8 * m;
    });
    after_factor("log_bias", {{"tau", starts(3)}, {"c", starts(0.8)}});
    one.check([&](double dot, double n, double t) { return f(n) * dot / root - 0.8 * std::log(1 + t / 3); });
    after_factor("si_interp", {{"tau", starts(3)},
                               {"kappa", starts(0.3)},
                               {"p", starts(0.4)},
                               {"b", starts(0.2)},
                               {"c", starts(1.1)}});
    one.check([&](double dot, double n, double t) {
        const double square = 1 + 2 * (0.7 * std::log(1 + t / 3) + 0.3 * std::log(0.2 * n + 1.1));
        return std::sqrt(square) * f(n) * dot / root - (square - 1) / 2 - 0.4 * std::log(1 + t / 3);
    });
    after_factor("alibi");
    one.check([&](double dot, double n, double t) { return f(n) * dot / root - t / 256; });
    after_factor("kerple_log");
    one.set("score.p", {0.9});
    one.set("score.a", {0.005});  // below its bound of 0.01
    one.check(
        [&](double dot, double n, double t) { return f(n) * dot / root - 0.9 * std::log(1 + 0.01 * t); });
    after_factor("kerple_power");
    one.set("score.a", {0.4});
    one.check([&](double dot, double n, double t) { return f(n) * dot / root - 0.4 * std::pow(t, 0.9); });
    one.set("score.p", {2.5});  // at most 2
    one.check([&](double dot, double n, double t) { return f(n) * dot / root - 0.4 * t * t; });
}

TEST_CASE("reference: masks, counts and sinks by hand") {
    OneHead one;
    const auto plain = [](double dot, double, double) { return dot / root; };
    one.a().chunk = 3;
    one.check(plain, [](size_t i, size_t j) { return j <= i && i / 3 == j / 3; });
    one.a().chunk = 0;
    one.a().window = 3;
    one.a().sink = model::SinkKind::zero;
    const auto near = [](size_t i, size_t j) { return j <= i && i - j < 3; };
    one.check(plain, near, 1);
    one.a().sink = model::SinkKind::learned;
    one.set("sink", {0.7});
    one.check(plain, near, std::exp(0.7));

    one.a().sink = model::SinkKind::none;
    one.a().score = "logn_fixed04";
    one.doc_start = {0, 0, 2, 2, 2, 2, 2, 2};
    const auto visible = [](size_t i, size_t j) { return j <= i && i - j < 3 && (i < 2 || j >= 2); };
    const auto scaled = [&](auto count) {
        one.check([&](double dot, double n, double) { return 0.4 * std::log(count(n)) * dot / root; },
                  visible);
    };
    one.a().score_count = model::ScoreCount::sequence;
    scaled([](double n) { return n; });
    const auto in_document = [](double n) { return n > 2 ? n - 2 : n; };
    one.a().score_count = model::ScoreCount::document;
    scaled(in_document);
    one.a().score_count = model::ScoreCount::automatic;
    scaled(in_document);
    one.a().score_count = model::ScoreCount::visible;
    scaled([&](double n) { return std::min(in_document(n), 3.0); });
}

TEST_CASE("reference: treatments of queries and keys by hand") {
    OneHead one;
    // Keys are 2 times unit vectors, queries whatever they are.
    scale_all(one.params, "attention.k.weight", 2);
    const auto length = [&](size_t i) {
        double squares = 0;
        for (size_t j = 0; j < T; ++j) squares += one.dot(i, j) * one.dot(i, j);
        return std::sqrt(squares);
    };
    const auto by_query = [&](auto score) {
        one.check([&](double dot, double n, double) { return score(dot, size_t(n) - 1); });
    };
    one.a().qk.kind = model::QkKind::qna;
    by_query([&](double dot, size_t i) { return 2 * dot / length(i); });
    one.a().qk.kind = model::QkKind::kna;
    by_query([&](double dot, size_t) { return dot; });
    one.a().qk.kind = model::QkKind::qk_l2;
    by_query([&](double dot, size_t i) { return root * dot / length(i); });
    one.a().score_base = 0.2;
    by_query([&](double dot, size_t i) { return 0.2 * double(T) * dot / length(i); });
    one.a().score_base = 0;
    one.a().qk.kind = model::QkKind::cosa;
    one.a().score = "cosa_logn";
    by_query([&](double dot, size_t i) { return 4 * std::log(double(i + 1)) * dot / length(i); });
    one.a().score = nullptr;
    // Learned eps: |q| / sqrt(d) against sqrt(mean square + eps).
    one.a().qk.kind = model::QkKind::qk_rms_eps;
    one.set("q_norm.log_eps", {std::log(0.3)});
    one.set("k_norm.log_eps", {std::log(0.7)});
    const double d = double(T);
    const double key = 2 / std::sqrt(4 / d + 0.7);
    by_query(
        [&](double dot, size_t i) { return dot / std::sqrt(length(i) * length(i) / d + 0.3) * key / root; });
    one.a().qk = {model::QkKind::qk_rms_w, 0.3};
    one.set("q_norm.gain", std::vector<double>(T, 0.5));
    one.set("k_norm.gain", std::vector<double>(T, 3));
    by_query([&](double dot, size_t i) {
        return 1.5 * dot / std::sqrt(length(i) * length(i) / d + 0.3) * 2 / std::sqrt(4 / d + 0.3) / root;
    });
    // Layer norm: the key's bias is common to all keys and has no effect, its centring neither.
    one.a().qk = {model::QkKind::qk_ln, 0.3};
    one.set("q_norm.bias", std::vector<double>(T, 0));
    one.set("k_norm.bias", std::vector<double>(T, 5));
    by_query([&](double dot, size_t i) {
        double mean = 0;
        for (size_t j = 0; j < T; ++j) mean += one.dot(i, j) / d;
        const double variance = length(i) * length(i) / d - mean * mean;
        const double key_variance = 4 / d - 4 / (d * d);
        return 1.5 * (dot - mean) / std::sqrt(variance + 0.3) * 2 / std::sqrt(key_variance + 0.3) / root;
    });
}

TEST_CASE("reference: convolutions, output norms and gates by hand") {
    OneHead one;
    scale_all(one.params, "attention.q.weight", 0);  // equal scores
    one.doc_start = {0, 0, 0, 3, 3, 3, 3, 3};
    one.a().conv = {2, false, false, true};
    std::vector<double> w(2 * T, 0.25);
    for (size_t c = 0; c < T; ++c) w[c] = 0.5 + 0.1 * double(c);
    one.set("v_conv.weight", w);
    // v_p = w_0 e_p + 0.25 e_(p-1) within the document; averaged over it. Query 4 sees 3 and 4.
    CHECK(one.output()[4][3] == Approx((0.8 + 0.25) / 2));
    CHECK(one.output()[4][4] == Approx(0.9 / 2));
    CHECK(one.output()[4][2] == 0);
    CHECK(one.output()[3][3] == Approx(0.8));
    CHECK(one.output()[3][2] == 0);

    one.doc_start.clear();
    one.a().conv = {};
    one.a().output_norm = {model::OutputNorm::head, true};
    std::vector<double> gain;
    for (size_t c = 0; c < T; ++c) gain.push_back(double(c));
    one.set("output_norm.gain", gain);
    one.m.norm.eps = 0.01;
    // Row 3 is 1/4 four times, then 0: mean square (4/16)/8.
    CHECK(one.output()[3][2] == Approx(2 * 0.25 / std::sqrt(1 / 32.0 + 0.01)));
    one.a().heads = 2;  // the second head reads rows beyond: two heads of 4 channels
    one.a().head_dim = 4;
    gain.resize(4);
    one.set("output_norm.gain", gain);
    // Head 0 of row 3: 1/4 four times; head 1: zero.
    CHECK(one.output()[3][2] == Approx(2 * 0.25 / std::sqrt(1 / 16.0 + 0.01)));
    one.a().output_norm = {model::OutputNorm::all, false};
    CHECK(one.output()[3][2] == Approx(0.25 / std::sqrt(1 / 32.0 + 0.01)));

    one.a().output_norm = {};
    one.a().gate = {model::GateKind::headwise, true, true};
    w.assign(2 * T, 0.0);
    w[3] = -1;     // head 0, position 3
    w[T + 5] = 2;  // head 1, position 5
    one.set("gate.weight", w);
    CHECK(one.output()[3][2] == Approx(0.25 * 2 / (1 + std::exp(1))));
    CHECK(one.output()[5][2] == Approx(1 / 6.0));
    CHECK(one.output()[5][5] == Approx(1 / 6.0 * 2 / (1 + std::exp(-2))));
    one.a().gate.doubled = false;
    CHECK(one.output()[5][2] == Approx(1 / 12.0));
    one.a().gate.kind = model::GateKind::elementwise;
    w.assign(T * T, 0.0);
    w[2 * T + 5] = 3;
    one.set("gate.weight", w);
    CHECK(one.output()[5][2] == Approx(1 / 6.0 / (1 + std::exp(-3))));
    CHECK(one.output()[5][1] == Approx(1 / 12.0));
    // The norm comes first: row 5, head 0 is 1/6 four times.
    one.a().output_norm = {model::OutputNorm::head, false};
    CHECK(one.output()[5][2] == Approx(1 / 6.0 / std::sqrt(1 / 36.0 + 0.01) / (1 + std::exp(-3))));
}
