// The named laws: each equals the kind of the config that it replaces.
#include <doctest/doctest.h>

#include <cmath>
#include <set>

#include "law/library.h"
#include "model/distance_law.h"
#include "model/scale_law.h"

using namespace longreach;
using doctest::Approx;

namespace {

constexpr law::ModelNumbers model_numbers{.heads = 6, .head_dim = 64, .train_context = 512};
constexpr int64_t longest = 65536;

law::BoundLaw bound(const char* name, const law::ModelNumbers& model = model_numbers) {
    int64_t stage = 0;
    const law::NamedLaw* named = law::find_law(name);
    REQUIRE(named != nullptr);
    return {{named->formula}, named->parameters, model, stage};
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

TEST_CASE("library: tables by distance have the bits of the kinds they replace") {
    struct Case {
        const char* name;
        model::DistanceKind kind;
    };
    for (const Case& c :
         {Case{"scale_invariant", model::DistanceKind::scale_invariant},
          Case{"log_bias", model::DistanceKind::log_bias}, Case{"alibi", model::DistanceKind::alibi},
          Case{"si_interp", model::DistanceKind::si_interp}}) {
        CAPTURE(std::string(c.name));
        const law::BoundLaw law = bound(c.name);
        model::DistanceConfig config;
        config.kind = c.kind;
        for (int64_t h : {0, 3, 4, 5}) {
            const std::vector<double> gain = law.gain(h, longest), bias = law.bias(h, longest);
            int64_t different = 0;
            for (int64_t t = 0; t < longest; ++t) {
                const model::GainBias old = model::distance_transform(config, t, h, model_numbers.heads);
                const auto i = static_cast<size_t>(t);
                different += static_cast<float>(gain[i]) != static_cast<float>(old.gain) ||
                             static_cast<float>(bias[i]) != static_cast<float>(old.bias);
            }
            CHECK(different == 0);
        }
        if (c.kind != model::DistanceKind::si_interp) continue;
        const std::vector<double> square = law.row_square(0, longest);
        for (int64_t n = 1; n <= longest; ++n)
            REQUIRE(static_cast<float>(square[static_cast<size_t>(n - 1)]) ==
                    static_cast<float>(model::si_interp_row(config, static_cast<double>(n))));
    }
}

TEST_CASE("library: factors by the number of keys equal r times the shape of the kinds they replace") {
    using model::ScaleKind;
    struct Case {
        const char* name;
        ScaleKind kind;
    };
    for (const Case& c : {Case{"logn", ScaleKind::logn},
                          Case{"logn_bias", ScaleKind::logn_bias},
                          Case{"logn_fixed04", ScaleKind::logn_fixed04},
                          Case{"logn_abc", ScaleKind::logn_abc},
                          Case{"entinv", ScaleKind::entinv},
                          Case{"qwen_logn", ScaleKind::qwen_logn},
                          Case{"llama4", ScaleKind::llama4},
                          Case{"grok2", ScaleKind::grok2},
                          Case{"sqrt2logn", ScaleKind::sqrt2logn},
                          Case{"sqrt2lognp1", ScaleKind::sqrt2lognp1},
                          Case{"sqrt_abc", ScaleKind::sqrt_abc},
                          Case{"maxterm2", ScaleKind::maxterm2},
                          Case{"beta_pow", ScaleKind::beta_pow},
                          Case{"solve_c", ScaleKind::solve_c},
                          Case{"solve_c_cos", ScaleKind::solve_c_cos},
                          Case{"gammalogn", ScaleKind::gammalogn},
                          Case{"cosa_const", ScaleKind::cosa_const},
                          Case{"cosa_logn", ScaleKind::cosa_logn},
                          Case{"gradmax_gauss", ScaleKind::gradmax_gauss},
                          Case{"qknorm_g", ScaleKind::qknorm_g}}) {
        CAPTURE(std::string(c.name));
        const law::BoundLaw law = bound(c.name);
        model::AttentionConfig config;
        config.heads = model_numbers.heads;
        config.head_dim = model_numbers.head_dim;
        config.scale.kind = c.kind;
        if (law.law().of_dot) config.qk.kind = model::QkKind::qk_l2;
        CHECK(law.law().of_dot == model::acts_on_cosines(c.kind));
        const double r = model::initial_r(config, model_numbers.train_context);
        const std::vector<double> row = law.row(0, longest);
        const std::vector<double> shape =
            model::scale_shapes(config.scale, model_numbers.head_dim, model_numbers.train_context, longest);
        // Today's factor is one f32 fma of a rounded shape and a rounded r: three roundings.
        for (size_t i = 0; i < row.size(); ++i) {
            const float today = std::fma(static_cast<float>(r), static_cast<float>(shape[i]), 0.0f);
            REQUIRE(std::abs(today - row[i]) <= 3 * std::ldexp(1.0, -24) * std::abs(r * shape[i]));
        }
    }
}

TEST_CASE("library: parity makes the factor of z that of the unscaled model at half the trained length") {
    for (const char* name :
         {"sqrt2logn", "sqrt_abc", "maxterm2", "logn_power", "largest_normal", "gammalogn", "cosine_power"}) {
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
    law::Parameter w{.name = "w", .init = "0", .size = 32};
    const law::BoundLaw law({"z + where(t < 16, t, min(31, 16 + floor(2*log2(t/16))))"}, {}, model_numbers,
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
    const law::BoundLaw law({"z * log(n)", "z - t/8"}, {}, model_numbers, stage);
    CHECK(law.row(0, 4)[3] == Approx(std::log(4.0)));
    CHECK(law.bias(0, 9)[8] == -1);
    const law::BoundLaw scaled({"z - t/8", "2*z"}, {}, model_numbers, stage);
    CHECK(scaled.bias(0, 9)[8] == -2);
    CHECK(law::write(scaled.law().row, {}) == "2");
}
