// What is said about a law over the lengths that it will meet.
#include <doctest/doctest.h>

#include "law/library.h"

using namespace longreach;
using law::Parameter;
using law::Sharing;

namespace {

law::BoundLaw bound(const std::vector<std::string>& formulas, const std::vector<Parameter>& parameters = {},
                    const law::ModelNumbers& model =
                        {.heads = 4, .layer = 1, .layers = 2, .head_dim = 64, .train_context = 512},
                    const std::vector<law::Term>& terms = {}) {
    int64_t stage = 0;
    return {law::stages_of(formulas, parameters.size()), parameters, model, stage, terms};
}

std::string effect(const std::string& formula, Parameter p, int64_t longest = 1000,
                   std::vector<Parameter> others = {}) {
    others.insert(others.begin(), std::move(p));
    return bound({formula}, others).without_effect(0, longest);
}

}  // namespace

TEST_CASE("law checks: the first n or t that is not finite, and what is not finite there") {
    const auto first = [](const std::string& formula, const std::vector<Parameter>& parameters = {},
                          int64_t longest = 65536) {
        return bound({formula}, parameters).first_not_finite(longest);
    };
    CHECK(first("z*log(n)") == "");
    CHECK(first("z*log(log(n))") == "the factor of z is -inf at n = 1");
    CHECK(first("z*log(n - 5)") == "the factor of z is not a number at n = 1");
    CHECK(first("z*sqrt(100 - n)") == "the factor of z is not a number at n = 101");
    CHECK(first("z*sqrt(100 - n)", {}, 100) == "");
    CHECK(first("z/t") == "the factor of z is inf at t = 0");
    CHECK(first("z + log(t)") == "the bias is -inf at t = 0");
    CHECK(first("z - 1e40*(t == 65535)") == "the bias is -1e+40 at t = 65535");
    CHECK(first("z - 1e40*(t == 65535)", {}, 65535) == "");
    // Beyond 65536 entries, samples, and the last.
    CHECK(first("z - 1e40*(t == 70000)", {}, 70001) == "the bias is -1e+40 at t = 70000");
    CHECK(first("z - 1e40*(t >= 70000)", {}, 200000) == "the bias is -1e+40 at t = 70006");
    // f32 ends before double does.
    CHECK(first("z*exp(n)", {}, 88) == "");
    CHECK(first("z*exp(n)", {}, 100) == "the factor of z is 4.48961e+38 at n = 89");
    CHECK(first("z/h") == "the factor of z is inf at n = 1 in head 0");
    CHECK(first("z/(h - a)", {{.name = "a", .init = "2"}}) == "the factor of z is inf at n = 1 in head 2");
    CHECK(first("z - c*t", {{.name = "c", .init = "where(h < 2, 1, 1e36)"}}, 1000) ==
          "the bias is -3.41e+38 at t = 341 in head 2");
    CHECK(first("z*log(T - 1000)", {}, 1000) == "the factor of z is -inf at n = 1");
    CHECK(first("z/(l - 1)") == "the factor of z is inf at n = 1");
    // Solvers are 0 up to n = C.
    CHECK(first("z/gaussian_scale(n, 4)") == "the factor of z is inf at n = 1");
    CHECK(first("z*where(n > 4, 1/cosine_scale(n, d, 4), 1)") == "");
    CHECK(first("z*sqrt(1 + t/8 - log(n))", {}, 1000) ==
          "the factor of z is the root of -0.0986123 at n = 3");
}

TEST_CASE("law checks: derivatives must be finite where something learns") {
    const Parameter a{.name = "a", .init = "1", .learn = Sharing::head};
    CHECK(bound({"z - sqrt(a*t)"}, {a}).first_not_finite(64) ==
          "the derivative of the bias by a is not a number at t = 0");
    CHECK(bound({"z - where(t > 0, sqrt(a*t), 0)"}, {a}).first_not_finite(64) == "");
    CHECK(bound({"z - t^a"}, {a}).first_not_finite(64) == "");
    Parameter fixed = a;
    fixed.learn = Sharing::fixed;
    CHECK(bound({"z - sqrt(a*t)"}, {fixed}).first_not_finite(64) == "");
    // What a factor 0 hides at the start is there in the second step.
    const Parameter zero{.name = "c", .init = "0", .learn = Sharing::layer};
    CHECK(bound({"z - c*log(t)"}, {zero}).first_not_finite(64) == "the bias is not a number at t = 0");
}

TEST_CASE("law checks: every named law is finite and uses all of its parameters") {
    for (const law::NamedLaw& named : law::library()) {
        CAPTURE(std::string(named.name));
        const law::BoundLaw law = bound({named.formula}, named.parameters,
                                        {.heads = 6, .head_dim = 64, .train_context = 512}, named.terms);
        CHECK(law.first_not_finite(65536) == "");
        CHECK(law.first_coarse_bias(65536) == "");
        for (size_t p = 0; p < named.parameters.size(); ++p) {
            CAPTURE(named.parameters[p].name);
            CHECK(law.without_effect(p, 65536) == "");
        }
    }
}

TEST_CASE("law checks: parameters that change no score") {
    const Parameter c{.name = "c", .init = "2"};
    const std::string none = "no score changes with it at any n and t up to 1000";
    CHECK(effect("z - c*t", c) == "");
    CHECK(effect("z - t", c) == "no formula uses this parameter");
    CHECK(effect("z - t + c*log(n)", c) ==
          "c*log(n) is equal for all keys of a query and cancels in the softmax");
    // The summand that holds it is named, not the first one.
    CHECK(effect("z - t + log(n) + c", c) == "c is equal for all keys of a query and cancels in the softmax");
    CHECK(effect("z - 0*c*t", c) == none);
    CHECK(effect("z - t*(c - c)", c) == none);
    CHECK(effect("z - where(h < H, t, c*t)", c) == none);
    CHECK(effect("z - where(h == 3, c*t, t)", c) == "");
    CHECK(effect("z*where(l == 0, c, 1)", c) == none);
    CHECK(effect("z - c*max(0, t - 999)", c) == none);
    CHECK(effect("z - c*max(0, t - 999)", c, 1001) == "");
    CHECK(effect("z - c*(t == 517)", c) == "");
    CHECK(effect("z*log(n)^(0*c)", c) == none);
    CHECK(effect("z - floor(t/c)", c) == "");
    CHECK(effect("z*gaussian_scale(n, c)", c) == "");
    CHECK(effect("z*log(T - c)", c) == "");
    CHECK(effect("z - 1e-60*c*t", c) == none);  // 0 in f32
    Parameter held = c;
    held.least = held.most = 2;
    CHECK(effect("z - c*t", held) == none);
    Parameter vector{.name = "c", .init = "0", .learn = Sharing::head, .size = 4};
    CHECK(effect("z + lookup(c, t)", vector) == "");
    CHECK(effect("z + 0*lookup(c, t)", vector) == none);
}

TEST_CASE("law checks: what learns may leave its first value") {
    const Parameter tau{.name = "tau", .init = "10"};
    Parameter c{.name = "c", .init = "0"};
    CHECK(effect("z - c*log1p(t/tau)", tau, 1000, {c}) ==
          "no score changes with it at any n and t up to 1000");
    CHECK(effect("z - c*log1p(t/tau)", c, 1000, {tau}) == "");
    c.learn = Sharing::layer;
    CHECK(effect("z - c*log1p(t/tau)", tau, 1000, {c}) == "");
    Parameter positive = tau;
    positive.positive = true;
    positive.learn = Sharing::layer;
    CHECK(effect("z - c*log1p(t/tau)", positive, 1000, {c}) == "");
}

TEST_CASE("law checks: biases that f32 holds only coarsely where keys have weight") {
    const auto coarse = [](const std::string& formula, int64_t longest = 65536) {
        return bound({formula}).first_coarse_bias(longest);
    };
    // Multiples of 2^-11 begin at 4096 = 20*204.8.
    CHECK(coarse("z + 20*t") ==
          "from t = 205 on, f32 holds the bias only to multiples of 0.00049 (4100 at t = 205), "
          "and the weights to that relative error");
    CHECK(coarse("z + 20*t", 205) == "");
    CHECK(coarse("z + 4096*(t == 7)").starts_with("from t = 7 on"));
    CHECK(coarse("z + 4095*(t == 7)") == "");
    // Large, but 30 below the bias of a nearer key: no weight.
    CHECK(coarse("z - 20*t") == "");
    CHECK(coarse("z - 4100*(t > 0)") == "");
    // Large everywhere.
    CHECK(coarse("z - sqrt(1e8 + t)") ==
          "from t = 0 on, f32 holds the bias only to multiples of 0.00098 (-10000 at t "
          "= 0), and the weights to that relative error");
    // A constant cancels before it can do harm.
    CHECK(coarse("z - t - 1e8") == "");
    // The nearest key of any head: 3*1366 = 4098.
    CHECK(coarse("z + h*t").starts_with("from t = 1366 on in head 3, "));
    CHECK(coarse("z + (H - h)*t").starts_with("from t = 1024 on in head 0, "));
}
