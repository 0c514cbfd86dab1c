// Student's quantiles against printed tables, intervals and paired differences against hand-computed values.
#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <numbers>

#include "base/rng.h"
#include "io/temp_dir.h"
#include "decide/paired.h"

using namespace longreach;
using namespace longreach::test;

TEST_CASE("student: quantiles are those of the printed tables") {
    // Two-sided 90%, 95% and 99%, as tables print them: three decimals, so within half of the last.
    const struct {
        int64_t degrees;
        double t90, t95, t99;
    } table[] = {{1, 6.314, 12.706, 63.657}, {2, 2.920, 4.303, 9.925},  {3, 2.353, 3.182, 5.841},
                 {4, 2.132, 2.776, 4.604},   {5, 2.015, 2.571, 4.032},  {9, 1.833, 2.262, 3.250},
                 {30, 1.697, 2.042, 2.750},  {120, 1.658, 1.980, 2.617}};
    for (const auto& row : table) {
        CAPTURE(row.degrees);
        CHECK(std::abs(decide::student_quantile(0.90, row.degrees) - row.t90) <= 0.0005);
        CHECK(std::abs(decide::student_quantile(0.95, row.degrees) - row.t95) <= 0.0005);
        CHECK(std::abs(decide::student_quantile(0.99, row.degrees) - row.t99) <= 0.0005);
    }
    CHECK(decide::student_quantile(0, 3) == doctest::Approx(0));
}

TEST_CASE("student: one and two degrees of freedom have closed forms, many approach the normal") {
    for (const double confidence : {0.1, 0.5, 0.9, 0.95, 0.999}) {
        // The Cauchy distribution, and F(t) = t / sqrt(2 + t^2). The angle is found to an ulp of about 2e-16;
        // the slope of the tangent at 0.999 is 4e5 while its value is 637, so 1e-12 relative leaves room.
        CHECK(decide::student_quantile(confidence, 1) ==
              doctest::Approx(std::tan(std::numbers::pi / 2 * confidence)).epsilon(1e-12));
        CHECK(decide::student_quantile(confidence, 2) ==
              doctest::Approx(confidence * std::sqrt(2 / (1 - confidence * confidence))).epsilon(1e-12));
    }
    // t exceeds the normal quantile z by (z^3 + z) / (4 degrees) to first order: 2.4e-5 at 1e5 degrees.
    CHECK(std::abs(decide::student_quantile(0.95, 100000) - 1.959963984540054) < 3e-5);
    for (const int64_t degrees : {1, 2, 3, 4, 7, 8, 50})
        for (const double confidence : {0.2, 0.95})
            CHECK(decide::student_within(decide::student_quantile(confidence, degrees), degrees) ==
                  doctest::Approx(confidence).epsilon(1e-13));
}

TEST_CASE("mean: the interval of three values, by hand") {
    // Mean 2; squares 1 + 0 + 1 over 2 degrees of freedom: deviation 1, error 1/sqrt(3); t
    // = 4.302652730 at 95%.
    const decide::MeanInterval m = decide::mean_interval(std::vector<double>{1, 3, 2});
    CHECK(m.count == 3);
    CHECK(m.mean == 2);
    CHECK(m.standard_deviation == 1);
    CHECK(m.standard_error == doctest::Approx(0.5773502691896258).epsilon(1e-15));
    CHECK(m.low == doctest::Approx(2 - 2.4841377117).epsilon(1e-9));
    CHECK(m.high == doctest::Approx(2 + 2.4841377117).epsilon(1e-9));
    CHECK(m.has_interval());
    CHECK_FALSE(m.excludes_zero());
    CHECK(decide::mean_interval(std::vector<double>{1, 3, 2}, 0.5).excludes_zero());  // t = 0.816: 2 -+ 0.47
    CHECK(decide::mean_interval(std::vector<double>{-1, -3, -2}, 0.5).excludes_zero());
    // A common offset of a million costs only the digits it takes: an ulp of 1e6 is 1.2e-10.
    const decide::MeanInterval far = decide::mean_interval(std::vector<double>{1e6 + 1, 1e6 + 3, 1e6 + 2});
    CHECK(far.standard_deviation == doctest::Approx(1).epsilon(1e-9));
}

TEST_CASE("mean: too few values and values that are not finite leave unknown what they leave unknown") {
    const decide::MeanInterval none = decide::mean_interval(std::vector<double>{});
    CHECK(none.count == 0);
    CHECK(std::isnan(none.mean));
    const decide::MeanInterval one = decide::mean_interval(std::vector<double>{2.5});
    CHECK(one.count == 1);
    CHECK(one.mean == 2.5);
    CHECK(std::isnan(one.standard_error));
    CHECK_FALSE(one.has_interval());
    CHECK_FALSE(one.excludes_zero());
    for (const double odd : {static_cast<double>(NAN), static_cast<double>(INFINITY)}) {
        const decide::MeanInterval m = decide::mean_interval(std::vector<double>{1, odd, 3});
        CHECK(m.count == 3);
        CHECK(std::isnan(m.mean));
        CHECK_FALSE(m.excludes_zero());
    }
}

TEST_CASE("paired: differences match by seed, whatever the order, and seeds of one side are left out") {
    const std::vector<decide::SeedValue> values{{3, 0.75}, {1, 0.5}, {9, 100}, {2, 0.5}};
    const std::vector<decide::SeedValue> baseline{{1, 1}, {2, 1.25}, {7, -100}, {3, 1.25}};
    const std::vector<decide::SeedValue> differences = decide::paired_differences(values, baseline);
    REQUIRE(differences.size() == 3);
    CHECK(differences[0].seed == 1);
    CHECK(differences[0].value == -0.5);
    CHECK(differences[1].seed == 2);
    CHECK(differences[1].value == -0.75);
    CHECK(differences[2].seed == 3);
    CHECK(differences[2].value == -0.5);
    // Mean -7/12; deviations 1/12, -1/6, 1/12: squares 1/24 over 2: 0.1443376; error 1/12; t = 4.302652730.
    const decide::MeanInterval m = decide::paired_difference(values, baseline);
    CHECK(m.mean == doctest::Approx(-7.0 / 12).epsilon(1e-14));
    CHECK(m.standard_error == doctest::Approx(1.0 / 12).epsilon(1e-14));
    CHECK(m.high == doctest::Approx(-7.0 / 12 + 4.302652729696 / 12).epsilon(1e-9));
    CHECK(m.excludes_zero());
    CHECK(decide::paired_difference(values, {}).count == 0);
}

TEST_CASE("paired: noise that the seeds share does not widen the interval") {
    const Rng rng(5, Purpose::test);
    std::vector<decide::SeedValue> values, baseline;
    for (int64_t seed = 1; seed <= 5; ++seed) {
        const double shared = rng.normal(static_cast<uint64_t>(seed));
        baseline.push_back({seed, shared});
        values.push_back({seed, shared - 0.01});
    }
    CHECK(decide::mean_interval(baseline).standard_error > 0.1);
    // Only the rounding of the sums is left: a few ulps of numbers around 1.
    CHECK(decide::paired_difference(values, baseline).standard_error < 1e-15);
    CHECK(decide::paired_difference(values, baseline).excludes_zero());
}

TEST_CASE(
    "spread: quantiles of chi-square are those of the printed tables, and the interval of a deviation "
    "follows") {
    const struct {
        int64_t degrees;
        double x, within;
    } table[] = {{1, 3.841, 0.95},   {2, 5.991, 0.95},   {3, 0.216, 0.025},  {3, 9.348, 0.975},
                 {4, 11.143, 0.975}, {9, 2.700, 0.025},  {10, 3.247, 0.025}, {19, 32.852, 0.975},
                 {19, 8.907, 0.025}, {60, 40.482, 0.025}};
    for (const auto& row : table) {
        CAPTURE(row.degrees);
        // x is rounded by at most 0.0005, and no density here exceeds 0.23.
        CHECK(std::abs(decide::chi_square_within(row.x, row.degrees) - row.within) <= 0.00012);
    }
    CHECK(decide::chi_square_within(0, 3) == 0);
    // Four values of deviation 1: sqrt(3 / 9.3484) and sqrt(3 / 0.2158).
    const decide::MeanInterval m =
        decide::mean_interval(std::vector<double>{1, 1, 2.7320508075688772, 2.7320508075688772});
    CHECK(m.standard_deviation == doctest::Approx(1));
    CHECK(decide::spread_interval(m).low == doctest::Approx(0.56649).epsilon(1e-4));
    CHECK(decide::spread_interval(m).high == doctest::Approx(3.72853).epsilon(1e-4));
    CHECK(std::isnan(decide::spread_interval(decide::mean_interval(std::vector<double>{1})).low));
}

TEST_CASE("spread: seeds for an interval of a width") {
    // t / sqrt(n) is 2.571 / sqrt(6) = 1.05 for six seeds, 2.447 / sqrt(7) = 0.92 for seven.
    CHECK(decide::seeds_for(0.05, 0.05) == 7);
    CHECK(decide::seeds_for(0.05, 0) == 2);
    CHECK(decide::seeds_for(0.05, 0.003) == 2);  // 12.706 * 0.003 / sqrt(2) = 0.027
    CHECK(decide::seeds_for(0.05, 1e6) == 1'000'000);
}
