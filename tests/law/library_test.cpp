// The named laws, against published formulas and those of the reference.
#include <doctest/doctest.h>

#include <cmath>
#include <functional>
#include <set>

#include "law/library.h"
#include "reference/scores.h"

using namespace longreach;
using doctest::Approx;

namespace {

constexpr law::ModelNumbers model_numbers{.heads = 6, .head_dim = 64, .train_context = 512};
constexpr int64_t longest = 65536;

law::BoundLaw bound(const char* name, const law::ModelNumbers& model = model_numbers) {
    int64_t stage = 0;
    const law::NamedLaw* named = law::find_law(name);
    REQUIRE(named != nullptr);
    return {law::stages_of({named->formula}, named->parameters.size()), named->parameters, model, stage,
            named->terms};
}

}  // namespace

TEST_CASE("library: names are unique, formulas are laws, every parameter has a value") {
    std::set<std::string> names;
    for (const law::NamedLaw& named : law::library()) {
        CAPTURE(std::string(named.name));
        CHECK(names.insert(named.name).second);
        const law::BoundLaw law = bound(named.name);
        for (int64_t h : {0, 5})
            for (const auto& table : {law.row(h, 600), law.gain(h, 600), law.bias(h, 600)})
                for (const double v : table) CHECK(std::isfinite(v));
        for (size_t p = 0; p < named.parameters.size(); ++p) CHECK(std::isfinite(law.value(0, p)));
    }
    CHECK(law::find_law("logm") == nullptr);
}

TEST_CASE("library: tables by distance have the bits of the published formulas in double") {
    struct Case {
        const char* name;
        std::function<double(double)> gain, bias;
    };
    const auto m = [](double t) { return std::log1p(t / 10); };
    const auto one = [](double) { return 1.0; };
    for (const Case& c :
         {Case{"scale_invariant", [&](double t) { return std::sqrt(1 + 2 * m(t)); },
               [&](double t) { return -2 * m(t); }},
          Case{"log_bias", one, [&](double t) { return -m(t); }},
          // u(t), which row_square completes; kappa = p = 1/2
          Case{"si_interp", [&](double t) { return 1 + m(t); }, [&](double t) { return -m(t); }}}) {
        CAPTURE(std::string(c.name));
        const law::BoundLaw law = bound(c.name);
        const std::vector<double> gain = law.gain(0, longest), bias = law.bias(0, longest);
        int64_t different = 0;
        for (size_t t = 0; t < gain.size(); ++t)
            different += static_cast<float>(gain[t]) != static_cast<float>(c.gain(static_cast<double>(t))) ||
                         static_cast<float>(bias[t]) != static_cast<float>(c.bias(static_cast<double>(t)));
        CHECK(different == 0);
    }
    const std::vector<double> square = bound("si_interp").row_square(0, longest);
    for (int64_t n = 1; n <= longest; ++n)
        REQUIRE(static_cast<float>(square[static_cast<size_t>(n - 1)]) ==
                static_cast<float>(std::log(0.1 * static_cast<double>(n) + 1.9)));
    const std::vector<double> slopes = reference::alibi_slopes(6);
    for (const int64_t h : {0, 3, 4, 5}) {
        const std::vector<double> bias = bound("alibi").bias(h, longest);
        for (size_t t = 0; t < bias.size(); ++t)
            REQUIRE(bias[t] == -slopes[static_cast<size_t>(h)] * static_cast<double>(t));
    }
}

TEST_CASE("library: factors by the number of keys are those of the reference") {
    for (const char* name :
         {"logn", "logn_bias", "logn_fixed04", "logn_abc", "entinv", "qwen_logn", "llama4", "grok2",
          "sqrt2logn", "sqrt2lognp1", "sqrt_abc", "maxterm2", "beta_pow", "solve_c", "gammalogn",
          "cosa_const", "cosa_logn", "gradmax_gauss", "qknorm_g"}) {
        CAPTURE(std::string(name));
        const law::BoundLaw law = bound(name);
        model::ModelConfig m;
        m.layers = 1;
        m.train_context = model_numbers.train_context;
        m.attention.heads = model_numbers.heads;
        m.attention.head_dim = model_numbers.head_dim;
        m.attention.score = name;
        if (law.law().of_dot) m.attention.qk.kind = model::QkKind::qk_l2;
        reference::Values<double> values;
        for (const reference::ScoreParameter& p : reference::score_parameters(m.attention))
            values[p.name] = reference::first_value(m, m.attention, 0, p, 0);
        reference::Place at{.head_dim = model_numbers.head_dim,
                            .trained = static_cast<double>(model_numbers.train_context)};
        const std::vector<double> row = law.row(0, longest);
        // The solver of the reference is slow.
        const bool solved = m.attention.score == json::Value("solve_c");
        const int64_t step = solved ? 9001 : 7;
        const double error = solved ? 1e-4 : 1e-13;
        for (int64_t n = 1; n <= longest; n += step) {
            at.n = static_cast<double>(n);
            const double expected = reference::factor_of(*reference::law_named(name), at, values);
            REQUIRE(std::abs(row[static_cast<size_t>(n - 1)] - expected) <=
                    error * std::abs(expected) + 1e-15);
        }
    }
}

TEST_CASE("library: parity makes the factor of z that of the unscaled model at half the trained length") {
    for (const char* name : {"sqrt2logn", "sqrt_abc", "maxterm2", "logn_power", "logn_learned_power",
                             "largest_normal", "gammalogn", "cosine_power", "cosine_growth"}) {
        CAPTURE(name);
        const law::BoundLaw law = bound(name);
        const double factor = law.row(0, 256)[255] * law.gain(0, 1)[0];
        CHECK(factor == Approx(law.law().of_dot ? 8.0 : 1.0).epsilon(1e-12));
    }
    const law::BoundLaw half = bound("half_heads_logn");
    CHECK(half.row(5, 256)[255] == Approx(1.0));
    CHECK(half.row(0, 256)[255] == Approx(0.43 * std::log(256.0)));
}

TEST_CASE("library: buckets of distance are exact below 16, then logarithmic") {
    int64_t stage = 0;
    const law::BoundLaw law({{"z + where(t < 16, t, min(31, 16 + floor(2*log2(t/16))))"}}, {}, model_numbers,
                            stage);
    const std::vector<double> bucket = law.bias(0, 5000);
    CHECK(bucket[0] == 0);
    CHECK(bucket[15] == 15);
    CHECK(bucket[16] == 16);
    CHECK(bucket[31] == 17);
    CHECK(bucket[32] == 18);
    CHECK(bucket[4999] == 31);
}

TEST_CASE("library: stages apply in order") {
    int64_t stage = 0;
    const law::BoundLaw rooted({{"z * 2*log(n)"}, {"z * sqrt(1 + t/8 + n/4) - t"}}, {}, model_numbers, stage);
    CHECK(rooted.row(0, 4)[3] == Approx(2 * std::log(4.0)));
    CHECK(rooted.gain(0, 9)[8] == 2);
    CHECK(rooted.row_square(0, 8)[7] == 2);
    const law::BoundLaw law({{"z * log(n)"}, {"z - t/8"}}, {}, model_numbers, stage);
    CHECK(law.row(0, 4)[3] == Approx(std::log(4.0)));
    CHECK(law.bias(0, 9)[8] == -1);
    const law::BoundLaw scaled({{"z - t/8"}, {"2*z"}}, {}, model_numbers, stage);
    CHECK(scaled.bias(0, 9)[8] == -2);
    CHECK(law::write(scaled.law().row, {}) == "2");
}

// Of normal scores z, E[e^(k (a z + b))] = exp(k^2 a^2 / 2 + k b).
TEST_CASE("library: moments of the weights by distance") {
    const auto moment = [](const char* name, int64_t t, double k) {
        const law::BoundLaw law = bound(name);
        const double a = law.gain(0, t + 1)[static_cast<size_t>(t)],
                     b = law.bias(0, t + 1)[static_cast<size_t>(t)];
        return std::exp(k * k * a * a / 2 + k * b);
    };
    for (const int64_t t : {0, 1, 10, 1000, 65535}) {
        const double fall = 1 / (1 + static_cast<double>(t) / 10);
        CHECK(moment("scale_invariant", t, 1) == Approx(std::exp(0.5) * fall));
        CHECK(moment("scale_invariant", t, 2) == Approx(std::exp(2.0)));
        CHECK(moment("second_moment", t, 2) == Approx(std::exp(2.0) * fall));
    }
}

TEST_CASE("library: speeds of decay are spread over the heads as powers") {
    const law::BoundLaw powers = bound("log_bias_heads"), taus = bound("scale_invariant_heads");
    for (const int64_t h : {0, 1, 2, 3, 4, 5}) {
        CHECK(powers.value(h, 0) == Approx(0.25 * std::pow(16, static_cast<double>(h) / 5)));
        CHECK(taus.value(h, 0) == Approx(std::pow(100, static_cast<double>(h) / 5)));
    }
    law::ModelNumbers one = model_numbers;
    one.heads = 1;
    CHECK(bound("log_bias_heads", one).value(0, 0) == 0.25);
}

TEST_CASE("library: a mixture of laws over the heads") {
    int64_t stage = 0;
    const law::BoundLaw law({{"where(h < H/2, z*0.4*log(n), z - 0.01*t)"}}, {}, model_numbers, stage);
    CHECK(law.row(2, 100)[99] == Approx(0.4 * std::log(100.0)));
    CHECK(law.bias(2, 100)[99] == 0);
    CHECK(law.row(3, 100)[99] == 1);
    CHECK(law.bias(3, 100)[99] == Approx(-0.99));
}

TEST_CASE("library: cosines grow with the distance as with the number of keys") {
    const law::BoundLaw law = bound("cosine_growth");
    const std::vector<double> gain = law.gain(0, 65536);
    CHECK(gain[65535] / gain[0] == Approx(std::pow(1 + 65535.0 / 10, 2.0 / 63)).epsilon(1e-12));
    CHECK(law.bias(0, 65536)[65535] == Approx(-std::log1p(65535.0 / 10)));
}
