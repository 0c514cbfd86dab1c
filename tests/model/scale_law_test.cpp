// Length scales against the published values of every formula.
#include <doctest/doctest.h>

#include <cmath>
#include <functional>

#include "base/error.h"
#include "base/rng.h"
#include "law/extreme_values.h"
#include "model/post_hoc.h"
#include "model/printed.h"
#include "model/laws_of_configs.h"

using namespace longreach;
using namespace longreach::test;
using doctest::Approx;

namespace {

const std::vector<double> fixture_n = {1, 2, 4, 16, 64, 256, 1024, 4096, 16384, 65536};

// A law with everything else at its default, head size and L_train where the law asks for them.
double shape(const std::string& law, double n, int64_t train_context = 2048, int64_t head_dim = 64) {
    return scale_shape(law, head_dim, train_context, n);
}

void check_row(const std::function<double(double)>& f, const std::vector<std::string>& row) {
    REQUIRE(row.size() == fixture_n.size());
    for (size_t i = 0; i < row.size(); ++i) {
        CAPTURE(fixture_n[i]);
        CAPTURE(row[i]);
        CHECK(prints_as(f(fixture_n[i]), row[i]));
    }
}

// law "": none. init: of the factor of the law, if it has one; null: as the law has it.
model::AttentionConfig attention(const std::string& law, model::QkKind qk, int64_t head_dim, double base = 0,
                                 json::Value init = nullptr) {
    model::AttentionConfig a;
    a.head_dim = head_dim;
    a.qk.kind = qk;
    a.score_base = base;
    if (!law.empty()) add_law(a, law);
    const std::string r = law.empty() ? "" : factor_parameter(law);
    if (!init.is_null() && !r.empty()) a.params[r] = starts(std::move(init));
    return a;
}

}  // namespace

TEST_CASE("logn, logn_bias: published values with r = 0.43, the first r of the law") {
    const std::vector<std::string> row = {"0.00000", "0.29805", "0.59611", "1.19221", "1.78832",
                                          "2.38443", "2.98053", "3.57664", "4.17275", "4.76885"};
    for (const std::string law : {"logn", "logn_bias"}) {
        const double r = initial_r(attention(law, model::QkKind::qk_rms, 64), 2048);
        CHECK(r == 0.43);
        check_row([&](double n) { return r * shape(law, n); }, row);
    }
}

TEST_CASE("logn_fixed04: published values") {
    check_row([](double n) { return shape("logn_fixed04", n); },
              {"0.00000", "0.27726", "0.55452", "1.10904", "1.66355", "2.21807", "2.77259", "3.32711",
               "3.88162", "4.43614"});
}

TEST_CASE("sqrt2logn: published values") {
    check_row([](double n) { return shape("sqrt2logn", n); },
              {"0.00000", "1.17741", "1.66511", "2.35482", "2.88405", "3.33022", "3.72330", "4.07867",
               "4.40546", "4.70964"});
}

TEST_CASE("sqrt2lognp1: published values") {
    check_row([](double n) { return shape("sqrt2lognp1", n); },
              {"1.17741", "1.48230", "1.79412", "2.38043", "2.88942", "3.33139", "3.72356", "4.07873",
               "4.40548", "4.70964"});
}

TEST_CASE("sqrt_abc: published values of a = 0, b = 0.1, c = 1.9") {
    check_row([](double n) { return shape("sqrt_abc", n); },
              {"1.17741", "1.21814", "1.29067", "1.58289", "2.05731", "2.57456", "3.04870", "3.46982",
               "3.84776", "4.19239"});
    CHECK(scale_shape("sqrt_abc", 64, 2048, 4, {{"a", starts(0.75)}}) ==
          Approx(0.75 + std::sqrt(2 * std::log(2.3))).epsilon(1e-14));
}

TEST_CASE("logn_abc: log(b n + c), 0 where the argument is 1 up to rounding") {
    CHECK(shape("logn_abc", 1000) == Approx(std::log(101.9)).epsilon(1e-14));
    for (int i = 0; i <= 100; ++i) {
        const double b = i / 100.0;
        const double one = scale_shape("logn_abc", 64, 2048, 1, {{"b", starts(b)}, {"c", starts(1 - b)}});
        CHECK(one >= 0);
        CHECK(one < 1e-15);
    }
}

TEST_CASE("maxterm2: published values, positive and rising for every n") {
    check_row([](double n) { return shape("maxterm2", n); },
              {"0.74847", "0.98624", "1.27786", "1.87253", "2.40394", "2.86758", "3.27872", "3.65028",
               "3.99132", "4.30806"});
    double before = 0;
    for (const double now : scale_shapes("maxterm2", 64, 2048, 65536)) {
        REQUIRE(now > before);
        before = now;
    }
}

TEST_CASE("llama4: published values; steps at multiples of 8192") {
    check_row([](double n) { return shape("llama4", n); },
              {"1.00000", "1.00000", "1.00000", "1.00000", "1.00000", "1.00000", "1.00000", "1.00000",
               "1.10986", "1.21972"});
    CHECK(shape("llama4", 8191) == 1);
    CHECK(shape("llama4", 8192) == 1 + 0.1 * std::log1p(1.0));
    CHECK(shape("llama4", 16383) == 1 + 0.1 * std::log1p(1.0));
    CHECK(shape("llama4", 16384) == 1 + 0.1 * std::log1p(2.0));
}

TEST_CASE("grok2: published values; strictly beyond the length, by the 0-based position") {
    check_row([](double n) { return shape("grok2", n); },
              {"1.00000", "1.00000", "1.00000", "1.00000", "1.00000", "1.00000", "1.00000", "1.19996",
               "1.39999", "1.60000"});
    CHECK(shape("grok2", 1025) == 1);  // position 1024
    CHECK(shape("grok2", 1026) == std::log2(1025.0) / 10);
    CHECK(shape("grok2", 1026) > 1);
}

TEST_CASE("qwen_logn: published values; beyond the trained length") {
    check_row([](double n) { return shape("qwen_logn", n, 2048); },
              {"1.00000", "1.00000", "1.00000", "1.00000", "1.00000", "1.00000", "1.00000", "1.09091",
               "1.27273", "1.45455"});
    CHECK(shape("qwen_logn", 2048, 2048) == 1);
    CHECK(shape("qwen_logn", 2049, 2048) == std::log(2049.0) / std::log(2048.0));
    CHECK(shape("qwen_logn", 2049, 2048) > 1);
}

TEST_CASE("clip_logn: published values; qwen_logn by another name") {
    int64_t stage = 0;
    const law::BoundLaw law({{law::find_law("clip_logn")->formula}}, {}, {.train_context = 512}, stage);
    const std::vector<double> table = law.row(0, 65536);
    check_row([&](double n) { return table[static_cast<size_t>(n) - 1]; },
              {"1.00000", "1.00000", "1.00000", "1.00000", "1.00000", "1.00000", "1.11111", "1.33333",
               "1.55556", "1.77778"});
    CHECK(table == scale_shapes("qwen_logn", 64, 512, 65536));
}

TEST_CASE("entinv: published values") {
    check_row([](double n) { return shape("entinv", n, 512); },
              {"0.00000", "0.11111", "0.22222", "0.44444", "0.66667", "0.88889", "1.11111", "1.33333",
               "1.55556", "1.77778"});
}

TEST_CASE("laws on cosines, beta_pow, gradmax_gauss: values") {
    CHECK(prints_as(shape("cosa_const", 1, 512), "22.1807"));
    CHECK(shape("cosa_const", 1, 512) == shape("cosa_const", 9999, 512));
    CHECK(prints_as(shape("cosa_logn", 256), "22.1807"));
    CHECK(shape("gammalogn", 777) == std::log(777.0));
    CHECK(shape("qknorm_g", 777) == 1);
    // 0.84 sqrt(log n) fits the maximising scale 2.6782 of n = 20000 to a percent.
    CHECK(shape("gradmax_gauss", 20000) == Approx(2.6782).epsilon(0.015));
    CHECK(shape("gradmax_gauss", 1024) == Approx(0.84 * std::sqrt(10 * std::log(2.0))));
    // n^(2/(d-1)) with d = 5 is a square root.
    CHECK(shape("beta_pow", 4096, 2048, 5) == Approx(64));
    CHECK(shape("beta_pow", 1) == 1);
    for (const std::string& law : count_laws) {
        CAPTURE(law);
        CHECK(shape_of(law, 64, 2048).law.law().of_dot == is_for_cosines(law));
    }
}

TEST_CASE("one visible key: laws in log n are exactly 0 there, and every law is finite") {
    for (const std::string law : {"logn", "logn_bias", "logn_fixed04", "entinv", "sqrt2logn", "solve_c",
                                  "solve_c_cos", "gammalogn", "cosa_logn", "gradmax_gauss"})
        CHECK(shape(law, 1) == 0);
    for (const std::string& law : count_laws) CHECK(std::isfinite(shape(law, 1)));
}

TEST_CASE("scale tables hold the shape at n = 1, 2, ...") {
    for (const std::string& law : count_laws) {
        CAPTURE(law);
        const std::vector<double> table = scale_shapes(law, 64, 100, 64);
        REQUIRE(table.size() == 64);
        // solve_c laws are exact up to here; solve_c_cos pays for a grid with every single call.
        const int64_t step = law == "solve_c_cos" ? 21 : 1;
        for (int64_t n = 1; n <= 64; n += step)
            CHECK(table[static_cast<size_t>(n - 1)] == scale_shape(law, 64, 100, static_cast<double>(n)));
    }
}

TEST_CASE("solve_c: the table is within 1e-5 of the exact solution, and 0 where there is none") {
    const Rng rng(1, Purpose::test);
    for (double target : {1.5, 2.0, 4.0, 16.0, 100.9, 1000.0}) {
        CAPTURE(target);
        const std::vector<double> table = scale_shapes("solve_c", 64, 2048, 65536, {{"C", starts(target)}});
        const auto error = [&](int64_t n) {
            return std::abs(table[static_cast<size_t>(n - 1)] -
                            law::solve_gaussian_scale(static_cast<double>(n), target));
        };
        for (int64_t n = 1; n <= static_cast<int64_t>(target); ++n)
            CHECK(table[static_cast<size_t>(n - 1)] == 0);
        for (int64_t n = 1; n <= 64; ++n) CHECK(error(n) == 0);
        CHECK(error(65536) == 0);
        CHECK(error(static_cast<int64_t>(target) + 1) == 0);
        // Entries between grid points; relative steps of 3 to 20 thousandths, so that every piece is hit.
        for (int64_t n = 65; n < 65536;
             n +=
             1 + static_cast<int64_t>(0.02 * rng.uniform(static_cast<uint64_t>(n)) * static_cast<double>(n)))
            CHECK(error(n) < 1e-5);
    }
    for (double s : scale_shapes("solve_c", 64, 2048, 5000, {{"C", starts(1e6)}})) CHECK(s == 0);
}

TEST_CASE("solve_c_cos: the table is within 1e-5 of the exact solution") {
    const Rng rng(2, Purpose::test);
    const std::vector<std::pair<int64_t, double>> cases = {{16, 4}, {64, 1.5}};
    for (const auto& [head_dim, target] : cases) {
        CAPTURE(head_dim);
        const std::vector<double> table =
            scale_shapes("solve_c_cos", head_dim, 2048, 65536, {{"C", starts(target)}});
        const law::CosineScores scores(head_dim);
        for (int64_t n = 61; n < 65536;
             n +=
             1 + static_cast<int64_t>(0.2 * rng.uniform(static_cast<uint64_t>(n)) * static_cast<double>(n))) {
            const double exact = scores.solve_scale(static_cast<double>(n), target);
            CHECK(std::abs(table[static_cast<size_t>(n - 1)] - exact) < 1e-5 * std::max(1.0, exact));
        }
    }
}

TEST_CASE("score base: by the treatment of queries and keys, by score_base, by the law") {
    const auto base = [](const std::string& law, model::QkKind qk, double b = 0,
                         const json::Value& init = nullptr) {
        return score_base(attention(law, qk, 256, b, init));
    };
    for (model::QkKind qk :
         {model::QkKind::none, model::QkKind::qk_rms, model::QkKind::qk_rms_w, model::QkKind::qk_ln,
          model::QkKind::qk_rms_eps, model::QkKind::qkv_rms_w, model::QkKind::qkv_ln}) {
        CHECK(base("", qk) == 1.0 / 16);
        CHECK(base("", qk, 0.12) == 0.12);
        CHECK(base("sqrt2logn", qk, 0.12) == 1.0 / 16);  // there base goes into r
        CHECK(base("sqrt2logn", qk, 0.12, 1) == 0.12);
        CHECK(base("scale_invariant", qk, 0.12) == 0.12);
    }
    for (model::QkKind qk : {model::QkKind::qna, model::QkKind::kna, model::QkKind::kna_w}) {
        CHECK(base("", qk) == 1);
        CHECK(base("", qk, 0.5) == 0.5);
        CHECK(base("logn", qk, 0.5) == 0.5);
        CHECK(base("logn", qk, 0.5, "parity") == 1);
    }
    CHECK(base("", model::QkKind::qk_l2) == 16);  // sqrt(d): an RMS norm with eps 0
    CHECK(base("", model::QkKind::qk_l2, 0.12) == 0.12 * 256);
    CHECK(base("sqrt2logn", model::QkKind::qk_l2, 0.12) == 16);
    for (const std::string law : {"gammalogn", "cosa_const", "cosa_logn", "qknorm_g"})
        for (model::QkKind qk : {model::QkKind::qk_l2, model::QkKind::cosa}) CHECK(base(law, qk) == 1);
}

TEST_CASE("first r: at parity a query with L_train / 2 keys scores as in the unscaled model") {
    for (const std::string& law : count_laws)
        for (model::QkKind qk :
             {model::QkKind::none, model::QkKind::qk_rms, model::QkKind::qk_l2, model::QkKind::qna})
            for (double b : {0.0, 0.12}) {
                if (factor_parameter(law).empty()) continue;
                if (is_for_cosines(law) && qk != model::QkKind::qk_l2)
                    continue;  // what these laws are made for
                CAPTURE(law);
                CAPTURE(static_cast<int>(qk));
                const model::AttentionConfig scaled = attention(law, qk, 64, b, "parity");
                const double factor =
                    initial_r(scaled, 2048) * scale_shape(law, 64, 2048, 1024) * score_base(scaled);
                const double unscaled = score_base(attention("", qk, 64, b));
                CHECK(factor == Approx(unscaled).epsilon(1e-14));
            }
    // By numbers: m0 = 1, m0 = 0.12 * sqrt(256) = 1.92, and m0 sqrt(d) on cosines.
    CHECK(initial_r(attention("sqrt2logn", model::QkKind::qk_rms, 256), 2048) ==
          Approx(1 / 3.72330).epsilon(1e-5));
    CHECK(initial_r(attention("sqrt2logn", model::QkKind::qk_rms, 256, 0.12), 2048) ==
          Approx(1.92 / 3.72330).epsilon(1e-5));
    CHECK(initial_r(attention("gammalogn", model::QkKind::qk_l2, 256, 0.12), 2048) ==
          Approx(1.92 * 16 / std::log(1024.0)));
    // A constant factor is in the table by distance where there is one.
    model::AttentionConfig far = attention("qknorm_g", model::QkKind::qk_l2, 64, 0, "parity");
    add_law(far, "scale_invariant");
    CHECK(initial_r(far, 2048) == Approx(8));
    // What else is in the factor at the distance 0 takes its part.
    model::AttentionConfig both = attention("sqrt2logn", model::QkKind::qk_rms, 256);
    add_law(both, "si_interp");
    CHECK(initial_r(both, 2048) ==
          Approx(1 / (3.72330 * std::sqrt(1 + std::log(0.1 * 1024 + 1.9)))).epsilon(1e-5));
}

TEST_CASE("first r: by the law and by value") {
    const auto by_law = [](const std::string& law, int64_t trained = 2048) {
        return initial_r(attention(law, model::QkKind::qk_l2, 64), trained);
    };
    CHECK(by_law("qknorm_g", 128) == Approx(std::log2(128.0 * 127.0)));
    // Formulas without an r of their own are taken as they stand.
    for (const std::string law : {"", "logn_fixed04", "entinv", "qwen_logn", "llama4", "grok2", "solve_c",
                                  "solve_c_cos", "cosa_const", "cosa_logn", "gradmax_gauss"})
        CHECK(by_law(law, 65536) == 1);
    for (const std::string law : {"logn_abc", "sqrt2logn", "sqrt2lognp1", "sqrt_abc", "maxterm2", "beta_pow"})
        CHECK(by_law(law) == 1 / shape(law, 1024));
    for (const std::string& law : count_laws)
        CHECK(initial_r(attention(law, model::QkKind::qk_l2, 64, 0.12, -0.7), 2048) ==
              (factor_parameter(law).empty() ? 1 : -0.7));
}

TEST_CASE("first r: no parity where the shape is 0") {
    const model::AttentionConfig a = attention("logn", model::QkKind::qk_rms, 64, 0, "parity");
    try {
        initial_r(a, 2);
        FAIL("log 1 times no r is 1");
    } catch (const model::ScoreError& error) {
        CHECK(error.path("a") == "a.params.s.init");
    }
    CHECK(initial_r(a, 4096) > 0);
}

TEST_CASE("a parameter with the name of a term's place is refused: it would silently take the term's place") {
    model::AttentionConfig a;
    a.terms["f"].value = "tanh(x)";
    a.score = "z*f_q + between(f)";
    CHECK_NOTHROW(model::score_text(a));
    for (const char* name : {"f_q", "f_k"}) {
        model::AttentionConfig wrong = a;
        wrong.params[name].init = json::Value(1);
        try {
            model::score_text(wrong);
            FAIL(name);
        } catch (const model::ScoreError& error) {
            CHECK(error.path("a") == std::string("a.params.") + name);
        }
    }
}

TEST_CASE("the trained length matters where and only where uses_train_context says so") {
    for (const std::string& law : count_laws)
        for (const json::Value& init : {json::Value(), json::Value("parity"), json::Value(1)}) {
            CAPTURE(law);
            const model::AttentionConfig a = attention(law, model::QkKind::qk_l2, 64, 0, init);
            // 40000 is beyond where llama4 and grok2 leave 1.
            const bool depends = initial_r(a, 512) != initial_r(a, 40000) ||
                                 scale_shape(law, 64, 512, 1000) != scale_shape(law, 64, 40000, 1000);
            CHECK(uses_train_context(a) == depends);
        }
}
