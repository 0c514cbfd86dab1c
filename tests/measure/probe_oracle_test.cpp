// What a probe measures where theory knows the answer: scores that are independent N(0, 1), equal logits, a
// single key, vectors at known angles.
#include <doctest/doctest.h>

#include <cmath>
#include <numbers>
#include <tuple>

#include "measure/probe_layer.h"

using namespace longreach;
using namespace longreach::test;

namespace {

struct Expected {
    const char* statistic;
    double value;
};

// Means over heads against published ones. A head's value is a mean over batch * 16 rows that no other head
// shares, so the spread of heads tells the error of their mean. Besides five of those (a false alarm in 2
// million): 1% that the published values are uncertain by and half a digit they were rounded to, at most 0.5%
// more, and 0.75%, for the sixteen queries see n to n + 15 keys and nothing listed grows faster than n.
void check_values(const Layer& layer, const std::vector<Expected>& expected) {
    for (const Expected& e : expected) {
        INFO(std::string(e.statistic));
        const auto found = layer.values.find(e.statistic);
        REQUIRE(found != layer.values.end());
        const std::vector<double>& of_heads = found->second;
        const double n = double(of_heads.size());
        double mean = 0, squares = 0;
        for (const double x : of_heads) mean += x / n;
        for (const double x : of_heads) squares += (x - mean) * (x - mean);
        const double error = std::sqrt(squares / (n - 1) / n);
        CAPTURE(mean);
        CAPTURE(error);
        CHECK(std::abs(mean - e.value) <= 5 * error + 0.0225 * e.value);
        // Sharp enough to see a wrong definition.
        CHECK(error < 0.05 * e.value);
    }
}

double si_gain(double t) {
    return std::sqrt(1 + 2 * std::log1p(t / 10));
}
double si_bias(double t) {
    return -2 * std::log1p(t / 10);
}
double one(double) {
    return 1;
}

}  // namespace

TEST_CASE("independent normal scores, 1024 keys: without scaling") {
    Layer layer(4, 1039, 40);
    layer.measure(1024);
    check_values(layer, {{"inverse_top_weight", 69.0},
                         {"participation", 0.002636},
                         {"entropy", 6.433},
                         {"mass_100", 0.0976},
                         {"entropy_1", 1.829},
                         {"entropy_10", 4.019},
                         {"entropy_100", 6.304}});
}

TEST_CASE("independent normal scores, 1024 keys: 0.4 log n") {
    Layer layer(4, 1039, 40);
    layer.scale_rows([](double n) { return 0.4 * std::log(n); });
    layer.measure(1024);
    check_values(layer, {{"inverse_top_weight", 6.03},
                         {"participation", 0.105},
                         {"entropy", 3.756},
                         {"mass_100", 0.0977},
                         {"entropy_1", 0.968},
                         {"entropy_10", 2.160},
                         {"entropy_100", 3.66}});
}

TEST_CASE("independent normal scores, 1024 keys: sqrt(2 log n), whole and half") {
    for (const bool half : {false, true}) {
        Layer layer(4, 1039, 40);
        layer.scale_rows([=](double n) { return (half ? 0.5 : 1.0) * std::sqrt(2 * std::log(n)); });
        layer.measure(1024);
        if (half)
            check_values(layer, {{"inverse_top_weight", 15.43},
                                 {"participation", 0.0209},
                                 {"entropy", 5.258},
                                 {"mass_100", 0.0977},
                                 {"entropy_1", 1.334},
                                 {"entropy_10", 3.066},
                                 {"entropy_100", 5.135}});
        else
            check_values(layer, {{"inverse_top_weight", 3.50},
                                 {"participation", 0.236},
                                 {"entropy", 2.594},
                                 {"mass_100", 0.0977},
                                 {"entropy_1", 0.732},
                                 {"entropy_10", 1.552},
                                 {"entropy_100", 2.533}});
    }
}

TEST_CASE("independent normal scores: scale-invariant attention, 1024 and 4096 keys") {
    Layer layer(4, 1039, 40);
    layer.by_distance(si_gain, si_bias);
    layer.measure(1024);
    check_values(layer, {{"inverse_top_weight", 6.69},
                         {"participation", 0.0841},
                         {"entropy", 3.743},
                         {"mass_100", 0.542},
                         {"entropy_1", 1.623},
                         {"entropy_10", 2.791},
                         {"entropy_100", 3.434}});
    Layer longer(2, 4111, 32);
    longer.by_distance(si_gain, si_bias);
    longer.measure(4096);
    check_values(longer, {{"inverse_top_weight", 7.31},
                          {"participation", 0.0752},
                          {"entropy", 4.070},
                          {"mass_100", 0.4255},
                          {"entropy_1", 1.621},
                          {"entropy_10", 2.790},
                          {"entropy_100", 3.428}});
}

TEST_CASE("independent normal scores: biases by distance") {
    Layer layer(4, 1039, 40);
    layer.by_distance(one, [](double t) { return -std::log1p(t / 10); });
    layer.measure(1024);
    check_values(layer, {{"inverse_top_weight", 20.33},
                         {"participation", 0.01167},
                         {"entropy", 5.661},
                         {"mass_100", 0.518},
                         {"entropy_1", 1.818},
                         {"entropy_10", 3.907},
                         {"entropy_100", 6.109}});
    Layer alibi(2, 4111, 32);
    alibi.by_distance(one, [](double t) { return -t / 256; });
    alibi.measure(4096);
    check_values(alibi, {{"inverse_top_weight", 38.7},
                         {"participation", 0.0052},
                         {"entropy", 6.05},
                         {"mass_100", 0.322},
                         {"entropy_1", 1.828},
                         {"entropy_10", 4.013},
                         {"entropy_100", 5.912}});
}

TEST_CASE("moments and quantiles of normal scores are the normal distribution's") {
    Layer layer(4, 1039, 8);
    std::map<std::string, double> mean;
    for (const measure::ProbeRow& r : layer.probe())
        if (r.bin == 0 && r.head >= 0) mean[r.statistic] += r.value / 8;
    // 8 heads of 4 * 1039 * 16 numbers, the early ones of each sequence in more pairs than the late: a number
    // that is weighed by 1 - x, x uniform, counts 3/4. Bounds are six standard errors, of the mean 1/sqrt(m),
    // the deviation 1/sqrt(2m), skew sqrt(6/m), kurtosis sqrt(24/m), and of a quantile over m'
    // samples of the pairs.
    const double m = 0.75 * 8 * 4 * 1039 * 16, samples = 8 * 16384 * m / (m + 8 * 16384);
    CHECK(std::abs(mean["logit_mean"]) <= 6 / std::sqrt(m));
    CHECK(std::abs(mean["logit_sd"] - 1) <= 6 / std::sqrt(2 * m));
    CHECK(std::abs(mean["logit_skew"]) <= 6 * std::sqrt(6 / m));
    CHECK(std::abs(mean["logit_kurtosis"] - 3) <= 6 * std::sqrt(24 / m));
    const std::map<int, double> normal_quantiles = {{1, -2.326348}, {5, -1.644854}, {25, -0.674490}, {50, 0},
                                                    {75, 0.674490}, {95, 1.644854}, {99, 2.326348}};
    for (const auto& [percent, z] : normal_quantiles) {
        CAPTURE(percent);
        const double p = percent / 100.0;
        const double density = std::exp(-z * z / 2) / std::sqrt(2 * std::numbers::pi);
        CHECK(std::abs(mean[fmt::format("logit_q{:02}", percent)] - z) <=
              6 * std::sqrt(p * (1 - p) / samples) / density);
    }
}

TEST_CASE("equal logits and a single key") {
    Layer layer(1, 300, 2);
    for (int64_t i = 0; i < layer.q.count(); ++i) layer.q[i] = 0;
    std::map<std::pair<std::string, int64_t>, measure::ProbeRow> rows;
    for (const measure::ProbeRow& r : layer.probe())
        if (r.head <= 0) rows[{r.statistic, r.bin}] = r;
    const auto value = [&](const char* name, int64_t bin) { return rows.at({name, bin}).value; };
    // Bin 1 holds the query of one key; of bin 128 the means of log n, 1/n, n and 100/n are over 128 .. 255.
    CHECK(value("inverse_top_weight", 1) == doctest::Approx(1).epsilon(1e-5));
    CHECK(std::abs(value("entropy", 1)) < 1e-5);
    CHECK(value("participation", 1) == doctest::Approx(1).epsilon(1e-5));
    double log_n = 0, inverse = 0;
    for (int n = 128; n < 256; ++n) log_n += std::log(n) / 128, inverse += 1.0 / n / 128;
    CHECK(value("entropy", 128) == doctest::Approx(log_n).epsilon(1e-5));
    CHECK(value("participation", 128) == doctest::Approx(inverse).epsilon(1e-5));
    CHECK(value("inverse_top_weight", 128) == doctest::Approx(191.5).epsilon(1e-5));
    CHECK(value("mass_100", 128) == doctest::Approx(100 * inverse).epsilon(1e-5));
    CHECK(value("mass_100", 32) == doctest::Approx(1).epsilon(1e-5));
    CHECK(value("sink_mass", 128) == doctest::Approx(inverse).epsilon(1e-5));
    CHECK(value("max_score", 128) == 0);
    // A decade counts where all of it is seen: [10, 100) from n = 100 on.
    CHECK(rows.at({"entropy_10", 64}).count == 128 - 100);
    CHECK(value("entropy_10", 128) == doctest::Approx(std::log(90)).epsilon(1e-5));
    CHECK(rows.count({"entropy_100", 256}) == 0);
    CHECK(rows.count({"logit_skew", 128}) == 0);  // of equal scores
    CHECK(rows.at({"entropy", 0}).count == 300);
    CHECK(rows.at({"entropy", 256}).count == 45);
    CHECK(rows.at({"logit_mean", 4}).count == 2 + 3 + 4 + 5);
}

TEST_CASE("a sink is one of the outcomes of a softmax, and no key") {
    Layer layer(1, 300, 1);
    for (int64_t i = 0; i < layer.q.count(); ++i) layer.q[i] = 0;
    Floats sink(1, 1);
    layer.spec.sink = sink.vector();  // as likely as a key
    std::map<std::string, double> value;
    for (const measure::ProbeRow& r : layer.probe())
        if (r.head == 0 && r.bin == 1) value[r.statistic] = r.value;
    CHECK(value["entropy"] == doctest::Approx(std::log(2)).epsilon(1e-5));
    CHECK(value["participation"] == doctest::Approx(0.5).epsilon(1e-5));
    CHECK(value["inverse_top_weight"] == doctest::Approx(2).epsilon(1e-5));
    CHECK(value["mass_100"] == doctest::Approx(0.5).epsilon(1e-5));
    CHECK(value["sink_mass"] == doctest::Approx(0.5).epsilon(1e-5));
    CHECK(value["learned_sink_mass"] == doctest::Approx(0.5).epsilon(1e-5));
}

TEST_CASE(
    "how sequences are spread over batches changes only how sums are rounded, and every sequence has samples "
    "of its own") {
    Layer layer(4, 50, 2);
    layer.input = normal(200, 32, 9);
    layer.scale_rows([](double n) { return std::log(n); });
    const std::vector<measure::ProbeRow> together = layer.probe();
    for (const int64_t batches : {2, 4}) {
        const std::vector<measure::ProbeRow> apart = layer.probe(batches);
        REQUIRE(apart.size() == together.size());
        for (size_t i = 0; i < apart.size(); ++i) {
            const measure::ProbeRow &a = apart[i], &b = together[i];
            CHECK(std::tie(a.layer, a.head, a.bin, a.statistic) ==
                  std::tie(b.layer, b.head, b.bin, b.statistic));
            CHECK(a.count == b.count);
            // Some thousand numbers are added, in another order: 1e-12 is 4500 times 2^-52.
            CHECK(a.value == doctest::Approx(b.value).epsilon(1e-12));
            if (a.statistic.starts_with("max_")) CHECK(a.value == b.value);
        }
    }
    // Four times the same sequence: the samples of one would repeat, and with them the mean cosine.
    for (int64_t n = 50; n < 200; ++n)
        for (int64_t c = 0; c < 32; ++c) layer.input.at(n, c) = layer.input.at(n % 50, c);
    const auto cosine = [&](Layer& of) {
        for (const measure::ProbeRow& r : of.probe())
            if (r.statistic == "pair_cosine") return r;
        return measure::ProbeRow{};
    };
    Layer alone(1, 50, 2);
    for (int64_t n = 0; n < 50; ++n)
        for (int64_t c = 0; c < 32; ++c) alone.input.at(n, c) = layer.input.at(n, c);
    CHECK(cosine(layer).count == 4096);
    CHECK(cosine(alone).count == 4096);
    // Both sample the same 4096 pairs of the same rows, numbered alike.
    CHECK(cosine(layer).value == doctest::Approx(cosine(alone).value).epsilon(1e-12));
}

TEST_CASE("norms, angles and cosines of vectors that are known") {
    Layer layer(1, 16, 1);
    // Values of one key each: o is that key. Inputs are orthogonal, outputs all at cosine 9/25.
    layer.spec.row_start = Tensor();
    Ints start(1, 16);
    for (int64_t i = 0; i < 16; ++i) {
        start[i] = static_cast<int32_t>(i);
        for (int64_t c = 0; c < 16; ++c) {
            layer.input.at(i, c) = i == c ? 2.0f : 0.0f;
            layer.k.at(i, c) = c == 0 ? 3.0f : c == i ? 4.0f : 0.0f;
        }
    }
    layer.k.at(0, 0) = 5;  // its own direction is the common one: cosine 3/5 with the others
    layer.spec.row_start = start.tensor();
    layer.projection = Floats(16, 16);
    for (int64_t c = 0; c < 16; ++c) layer.projection.at(c, c) = 1;
    layer.projected = Floats(16, 16);
    std::map<std::string, double> value;
    for (const measure::ProbeRow& r : layer.probe())
        if (r.bin == 0) value[r.statistic] = r.value;
    CHECK(value["output_norm"] == doctest::Approx(5));
    CHECK(value["projected_norm"] == doctest::Approx(5));
    CHECK(std::abs(value["pair_cosine"]) < 1e-12);
    // 15 of the 120 pairs have token 0; the share among 4096 samples is 1/8 to six errors of 0.0052.
    CHECK(value["angle_ratio"] > 0.64 * 0.875 + 0.4 * 0.125 - 0.24 * 0.031);
    CHECK(value["angle_ratio"] < 0.64 * 0.875 + 0.4 * 0.125 + 0.24 * 0.031);
}
