// The reference model against hand calculation and its derivatives against central differences.
#include <doctest/doctest.h>

#include <fmt/format.h>

#include "base/rng.h"
#include "model/laws.h"
#include "reference/evaluate.h"

using namespace longreach;
using namespace longreach::reference;
using doctest::Approx;

namespace {

constexpr size_t C = 4, F = 8;

model::ModelConfig small_config(int64_t layers = 1) {
    model::ModelConfig m;
    m.layers = layers;
    m.width = int64_t(C);
    m.vocab_size = 3;
    m.mlp.hidden = int64_t(F);
    m.attention.heads = 1;
    m.attention.head_dim = 4;
    m.attention.angle = "nope";
    m.attention.qk.kind = model::QkKind::none;
    return m;
}

std::vector<double> identity(double scale = 1) {
    std::vector<double> w(C * C, 0.0);
    for (size_t i = 0; i < C; ++i) w[i * C + i] = scale;
    return w;
}

// Every matrix zero but the embedding, so that the residual stream stays the normed embedding.
Params<double> empty_params(const model::ModelConfig& m) {
    Params<double> p;
    p["embedding.weight"] = {1, 1, 1, 1, 2, 0, 0, 0, 0, 3, 0, 4};
    p["head.weight"] = std::vector<double>(3 * C, 0.0);
    for (int64_t l = 0; l < m.layers; ++l) {
        const std::string name = fmt::format("layers.{}.", l);
        for (const char* w : {"q", "k", "v", "o"})
            p[name + "attention." + w + ".weight"] = std::vector<double>(C * C, 0.0);
        for (const char* w : {"up", "down", "gate"})
            p[name + "mlp." + w + ".weight"] = std::vector<double>(C * F, 0.0);
        p[name + "attention.value_mix"] = {0.5};
        p[name + "skip_mix"] = {1};
        p[name + "x_mix"] = {1};
        p[name + "x0_mix"] = {0};
    }
    return p;
}

Example three_tokens() {
    return {1, 3, {0, 1, 2}, {1, -1, 0}, {}};
}

}  // namespace

TEST_CASE("reference: a head of zeros gives log V, unscored tokens give 0") {
    const model::ModelConfig m = small_config();
    const std::vector<double> losses = reference::losses(m, empty_params(m), three_tokens());
    CHECK(losses.size() == 3);
    CHECK(losses[0] == Approx(std::log(3)));
    CHECK(losses[1] == 0);
    CHECK(losses[2] == Approx(std::log(3)));
}

TEST_CASE("reference: logits, softcaps and z-loss by hand") {
    model::ModelConfig m = small_config();
    Params<double> p = empty_params(m);
    p["head.weight"] = {1, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0.5};
    // Token 2, (0, 3, 0, 4): mean square 25/4, so the normed row is (0, 1.2, 0, 1.6) and stays it
    // in the final norm.
    const double y1 = 2.4, y2 = 0.8, lse = std::log(1 + std::exp(y1) + std::exp(y2));
    const Example e{1, 1, {2}, {1}, {}};
    CHECK(reference::losses(m, p, e)[0] == Approx(lse - y1));
    m.head.z_loss = 0.1;
    CHECK(reference::losses(m, p, e)[0] == Approx(lse - y1 + 0.1 * lse * lse));

    m.head.softcap.kind = Softcap::tanh;
    m.head.softcap.cap = 2;
    CHECK(reference::logits(m, p, {2}, {})[0][1] == Approx(2 * std::tanh(1.2)));
    // 30 sigmoid(x / 7.5) = 15 tanh(x / 15) + 15
    m.head.softcap = {Softcap::sigmoid, 30, 0, 7.5};
    CHECK(reference::logits(m, p, {2}, {})[0][1] == Approx(15 * std::tanh(y1 / 15) + 15));
    m.head.softcap = {Softcap::sigmoid, 23, 5, 7.5};
    CHECK(reference::logits(m, p, {2}, {})[0][2] == Approx(23 / (1 + std::exp(-5.8 / 7.5))));
}

TEST_CASE("reference: equal scores average the visible values; window and documents choose them") {
    model::ModelConfig m = small_config();
    Params<double> p = empty_params(m);
    p["layers.0.attention.v.weight"] = identity();
    p["layers.0.attention.o.weight"] = identity();
    p["head.weight"] = identity();
    p["head.weight"].resize(3 * C);
    m.norm.eps = m.norm.eps * 1e-6;  // so that norms of norms agree to many digits
    // Normed embeddings of the three tokens.
    const std::vector<std::vector<double>> x = {{1, 1, 1, 1}, {2, 0, 0, 0}, {0, 1.2, 0, 1.6}};
    const auto expected = [&](std::vector<size_t> keys) {
        std::vector<double> row = x[2];
        for (size_t j : keys)
            for (size_t c = 0; c < C; ++c) row[c] += x[j][c] / double(keys.size());
        double squares = 0;
        for (double v : row) squares += v * v / double(C);
        for (double& v : row) v /= std::sqrt(squares);
        return row;
    };
    const auto check_row = [&](const std::vector<int32_t>& doc_start, std::vector<size_t> keys) {
        const auto logits = reference::logits(m, p, {0, 1, 2}, doc_start)[2];
        const auto row = expected(keys);
        for (size_t v = 0; v < 3; ++v) CHECK(logits[v] == Approx(row[v]).epsilon(1e-9));
    };
    check_row({}, {0, 1, 2});
    check_row({0, 1, 1}, {1, 2});
    check_row({0, 0, 2}, {2});
    m.attention.window = 2;
    check_row({}, {1, 2});
    check_row({0, 0, 2}, {2});
    m.attention.window = 3;
    check_row({}, {0, 1, 2});
}

TEST_CASE("reference: scores with rotary, query/key norm and the distance transform by hand") {
    model::ModelConfig m = small_config();
    m.norm.eps = 1e-300;
    Params<double> p = empty_params(m);
    p["embedding.weight"] = {2, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 2};
    p["layers.0.attention.q.weight"] = identity(0.5);
    p["layers.0.attention.k.weight"] = identity(0.5);
    // Token 0 carries value 1 in channel 1, token 1 in channel 2.
    p["layers.0.attention.v.weight"] = std::vector<double>(C * C, 0.0);
    p["layers.0.attention.v.weight"][1 * C + 0] = 0.5;
    p["layers.0.attention.o.weight"] = identity();
    p["head.weight"] = {1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 1};
    // Both tokens are (2, 0, 0, 0); query 1 sees key 0 at distance 1 and itself,
    // plus token 2 = (0, 0, 0, 2) at the end. Weight of the third key (value 0) against the first two
    // (value 1 in channel 1) shows the scores.
    const auto mass = [&](double score_0, double score_1, double score_2) {
        const double e0 = std::exp(score_0), e1 = std::exp(score_1), e2 = std::exp(score_2);
        return (e0 + e1) / (e0 + e1 + e2);
    };
    const auto measured = [&] {
        // Row 2: x = (0, w, 0, 2) with w the mass on the first two keys; the final norm keeps the ratio.
        const auto logits = reference::logits(m, p, {0, 1, 2}, {})[2];
        return 2 * logits[1] / logits[2];
    };
    // q_2 = (0, 0, 0, 1), k = (1, 0, 0, 0) twice and (0, 0, 0, 1): z = 0, 0, 1/2.
    CHECK(measured() == Approx(mass(0, 0, 0.5)));
    m.attention.score = "scale_invariant";  // tau 10
    const auto y = [](double z, double t) {
        const double shift = 2 * std::log(1 + t / 10);
        return std::sqrt(1 + shift) * z - shift;
    };
    CHECK(measured() == Approx(mass(y(0, 2), y(0, 1), y(0.5, 0))));
    m.attention.qk = {model::QkKind::qk_rms, 1e-300};  // |q| = |k| = 2: z = 0, 0, 2
    CHECK(measured() == Approx(mass(y(0, 2), y(0, 1), y(2, 0))));
}

TEST_CASE("reference: rotary by hand") {
    model::ModelConfig m = small_config();
    m.norm.eps = 1e-300;
    m.attention.angle = "rope";
    Params<double> p = empty_params(m);
    // Tokens 0 and 1 have the same query (1, 0, 0, 0) and key (0, 0, 1, 0); token 0 alone has a
    // value, in channel 1.
    const double r = std::sqrt(2.0);
    p["embedding.weight"] = {1, 0, 0, 1, 1, 1, 0, 0, 0, 0, 0, 1};
    p["layers.0.attention.q.weight"][0 * C + 0] = 1 / r;
    p["layers.0.attention.k.weight"][2 * C + 0] = 1 / r;
    p["layers.0.attention.v.weight"][1 * C + 3] = 1 / r;
    p["layers.0.attention.o.weight"] = identity();
    p["head.weight"] = identity();
    p["head.weight"].resize(3 * C);
    // Pair (0, 2) turns by theta_0 = 1 per position: R_i q = (cos i, sin i), R_j k = (-sin j, cos j), so
    // z_ij = sin(i - j) / sqrt(d). The last row is (r, r + w, 0, 0), w the mass on token 0.
    const auto mass = [&] {
        const auto logits = reference::logits(m, p, {0, 1, 1}, {})[2];
        return r * (logits[1] / logits[0] - 1);
    };
    const double e2 = std::exp(std::sin(2.0) / 2), e1 = std::exp(std::sin(1.0) / 2);
    CHECK(mass() == Approx(e2 / (e2 + e1 + 1)));
    const auto turn = [&](const char* angle, double base, double fraction) {
        m.attention.angle = angle;
        m.attention.params = {{"base", test::starts(base)}, {"fraction", test::starts(fraction)}};
    };
    turn("p_rope", 10000, 0.5);  // one pair of two, theta 1
    CHECK(mass() == Approx(e2 / (e2 + e1 + 1)));
    turn("p_rope", 10000, 0.49);
    CHECK(mass() == Approx(1 / 3.0));
    // The same on pair (1, 3), which turns by base^(-1/2), or by 1/base when two pairs are spaced linearly.
    p["layers.0.attention.q.weight"] = p["layers.0.attention.k.weight"] = std::vector<double>(C * C, 0.0);
    p["layers.0.attention.q.weight"][1 * C + 0] = 1 / r;
    p["layers.0.attention.k.weight"][3 * C + 0] = 1 / r;
    const auto expected = [](double theta) {
        const double far = std::exp(std::sin(2 * theta) / 2), near = std::exp(std::sin(theta) / 2);
        return far / (far + near + 1);
    };
    turn("rope", 16, 0.5);
    CHECK(mass() == Approx(expected(0.25)));
    turn("p_rope", 16, 1);
    CHECK(mass() == Approx(expected(0.25)));
    turn("p_rope_linspace", 16, 1);
    CHECK(mass() == Approx(expected(0.0625)));
    turn("p_rope_linspace", 16, 0.5);
    CHECK(mass() == Approx(1 / 3.0));
}

TEST_CASE("reference: value residual, x0 mixing and U-net by hand") {
    // With zero matrices only the mixes act: the stream is a multiple of the normed embedding, and the final
    // norm with a large eps shows which multiple.
    model::ModelConfig m = small_config(5);
    m.norm.eps = 100;
    m.embedding_norm = false;
    m.residual.x0 = true;
    m.residual.unet = true;
    Params<double> p = empty_params(m);
    p["head.weight"] = {1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0};
    double outputs[5], x = 1;
    for (int l = 0; l < 5; ++l) {
        const double skip = 0.3 + 0.1 * l, l0 = 0.9 - 0.1 * l, l1 = 0.05 * (l + 1);
        p[fmt::format("layers.{}.skip_mix", l)] = {skip};
        p[fmt::format("layers.{}.x_mix", l)] = {l0};
        p[fmt::format("layers.{}.x0_mix", l)] = {l1};
        if (l == 3) x += skip * outputs[1];
        if (l == 4) x += skip * outputs[0];
        x = l0 * x + l1;
        outputs[l] = x;
    }
    // Token 1 is (2, 0, 0, 0).
    CHECK(reference::logits(m, p, {1}, {})[0][0] == Approx(2 * x / std::sqrt(x * x + 100)));

    m = small_config(2);
    m.residual.values = model::ValueMix::first;
    m.norm.eps = 1e-300;
    p = empty_params(m);
    p["layers.0.attention.v.weight"][1 * C] = 0.5;  // first values (0, 1, 0, 0)
    p["layers.1.attention.v.weight"][2 * C] = 1;    // second values (0, 0, 2, 0)
    p["layers.1.attention.o.weight"] = identity();
    p["layers.1.attention.value_mix"] = {0.25};
    p["head.weight"] = identity();
    p["head.weight"].resize(3 * C);
    const auto logits = reference::logits(m, p, {1}, {})[0];  // x = (2, 0.25, 1.5, 0), normed
    CHECK(logits[1] / logits[0] == Approx(0.125));
    CHECK(logits[2] / logits[0] == Approx(0.75));
}

TEST_CASE("reference: activations and layer norm by hand") {
    model::ModelConfig m = small_config();
    m.norm = {NormKind::layer, true, 1e-300};
    Params<double> p = empty_params(m);
    p["embedding.weight"] = {1, 2, 3, 6, 0, 0, 0, 0, 0, 0, 0, 0};
    m.embedding_norm = false;
    p["final_norm.gain"] = {2, 1, 1, 1};
    p["final_norm.bias"] = {0, 0.5, 0, 0};
    p["layers.0.attention_norm.gain"] = p["layers.0.mlp_norm.gain"] = {1, 1, 1, 1};
    p["layers.0.attention_norm.bias"] = p["layers.0.mlp_norm.bias"] = {0, 0, 0, 0};
    p["head.weight"] = identity();
    p["head.weight"].resize(3 * C);
    // (1, 2, 3, 6): mean 3, variance (4 + 1 + 0 + 9) / 4 = 3.5
    const double s = std::sqrt(3.5);
    auto logits = reference::logits(m, p, {0}, {})[0];
    CHECK(logits[0] == Approx(2 * -2 / s));
    CHECK(logits[1] == Approx(-1 / s + 0.5));

    // One hidden unit reads channel 3 (3 / s after the norm) and its activation is written to channel 2.
    m.norm.gain = false;
    p["layers.0.mlp.up.weight"][3] = 1;
    p["layers.0.mlp.down.weight"][2 * F] = 10;
    const double a = 3 / s;
    const auto written = [&](model::MlpKind kind) {
        m.mlp.kind = kind;
        logits = reference::logits(m, p, {0}, {})[0];
        // The final layer norm keeps ratios of differences: (x2 - x0) / (x1 - x0) with x1 - x0 = 1.
        return (logits[2] - logits[0]) / (logits[1] - logits[0]) - 2;
    };
    CHECK(written(model::MlpKind::relu2) == Approx(10 * a * a));
    CHECK(written(model::MlpKind::gelu) == Approx(10 * a * 0.5 * std::erfc(-a / std::sqrt(2.0))));
    CHECK(written(model::MlpKind::gelu_tanh) ==
          Approx(5 * a * (1 + std::tanh(0.7978845608028654 * (a + 0.044715 * a * a * a)))));
    p["layers.0.mlp.gate.weight"][0] = -1;  // channel 0 is -2 / s: gate 2 / s
    const double gate = 2 / s;
    CHECK(written(model::MlpKind::swiglu) == Approx(10 * gate / (1 + std::exp(-gate)) * a));
    p["layers.0.mlp.up.weight"][3] = -1;
    CHECK(written(model::MlpKind::relu2) == Approx(0));
}

TEST_CASE("reference: derivatives agree with central differences") {
    model::ModelConfig m;
    m.layers = 3;
    m.width = 8;
    m.vocab_size = 7;
    m.norm = {NormKind::layer, true, 1e-6};
    m.mlp = {model::MlpKind::gelu, 12};
    m.residual = {true, true, model::ValueMix::first};
    m.head.z_loss = 0.1;
    m.head.softcap = {Softcap::sigmoid, 23, 5, 7.5};
    m.attention.heads = 4;
    m.attention.kv_heads = 2;
    m.attention.head_dim = 4;
    test::add_law(m.attention, "scale_invariant", {{"tau", test::starts(2)}});
    const Example e{2, 4, {0, 1, 2, 3, 4, 5, 6, 0}, {1, 2, 3, 4, 5, 6, -1, 1}, {0, 0, 2, 2, 0, 0, 0, 0}};

    const Rng rng(3, Purpose::test);
    uint64_t drawn = 0;
    Params<double> p, direction;
    const auto fill = [&](const std::string& name, size_t n) {
        for (size_t i = 0; i < n; ++i) {
            p[name].push_back(0.5 * rng.normal(drawn++));
            direction[name].push_back(rng.normal(drawn++));
        }
    };
    fill("embedding.weight", 56);
    fill("head.weight", 56);
    for (const std::string name :
         {"final_norm", "layers.0.attention_norm", "layers.1.attention_norm", "layers.2.attention_norm",
          "layers.0.mlp_norm", "layers.1.mlp_norm", "layers.2.mlp_norm"}) {
        fill(name + ".gain", 8);
        fill(name + ".bias", 8);
    }
    for (int l = 0; l < 3; ++l) {
        const std::string name = fmt::format("layers.{}.", l);
        fill(name + "attention.q.weight", 16 * 8);
        fill(name + "attention.k.weight", 8 * 8);
        fill(name + "attention.v.weight", 8 * 8);
        fill(name + "attention.o.weight", 8 * 16);
        fill(name + "mlp.up.weight", 12 * 8);
        fill(name + "mlp.gate.weight", 12 * 8);
        fill(name + "mlp.down.weight", 8 * 12);
        for (const char* scalar : {"attention.value_mix", "skip_mix", "x_mix", "x0_mix"})
            fill(name + scalar, 1);
    }
    const auto losses_at = [&](double step) {
        Params<double> moved = p;
        for (auto& [name, values] : moved)
            for (size_t i = 0; i < values.size(); ++i) values[i] += step * direction[name][i];
        return reference::losses(m, moved, e);
    };
    for (model::MlpKind kind :
         {model::MlpKind::relu2, model::MlpKind::gelu, model::MlpKind::gelu_tanh, model::MlpKind::swiglu})
        for (Softcap cap : {Softcap::none, Softcap::tanh, Softcap::sigmoid}) {
            m.mlp.kind = kind;
            m.head.softcap.kind = cap;
            // Central difference: truncation is h^2 times the third derivative along a direction of length 30
            // (1e4 and more) and h times the jumps of relu2's second derivative; rounding is 1e-16 / h.
            const double h = 1e-6;
            const auto plus = losses_at(h), minus = losses_at(-h);
            const Directional exact = directional_derivative(m, p, direction, e);
            for (size_t n = 0; n < 8; ++n) {
                CHECK(exact.losses[n] == Approx(losses_at(0)[n]).epsilon(1e-14));
                CHECK(exact.slopes[n] == Approx((plus[n] - minus[n]) / (2 * h)).epsilon(1e-6));
            }
        }

    // One coordinate at a time adds up to the direction.
    std::vector<Coordinate> all;
    for (const auto& [name, values] : p)
        for (size_t i = 0; i < values.size(); ++i) all.push_back({name, i});
    const auto slopes = token_derivatives(m, p, e, all);
    const Directional along = directional_derivative(m, p, direction, e);
    for (size_t n = 0; n < 8; ++n) {
        double total = 0;
        for (size_t i = 0; i < all.size(); ++i) total += direction[all[i].name][all[i].index] * slopes[i][n];
        CHECK(total == Approx(along.slopes[n]).epsilon(1e-12));
    }
}
