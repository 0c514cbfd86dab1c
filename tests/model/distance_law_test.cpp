// Distance laws: published values, exact expectations, and a simulation of one query over normal scores.
#include <doctest/doctest.h>

#include <array>
#include <cmath>
#include <functional>

#include "base/rng.h"
#include "law/extreme_values.h"
#include "model/printed.h"
#include "model/laws_of_configs.h"

using namespace longreach;
using namespace longreach::test;
using doctest::Approx;

TEST_CASE("scale_invariant: published values for tau = 10") {
    const ScoreParameters config{{"tau", starts(10)}}, decayed{{"tau", starts(10)}, {"c", starts(1.75)}};
    const std::vector<int64_t> t = {0, 1, 3, 15, 63, 255, 1023, 4095, 16383, 65535};
    const std::vector<double> a = {1,       1.09116, 1.23480, 1.68303, 2.23064,
                                   2.74851, 3.20551, 3.61037, 3.97543, 4.30997};
    const std::vector<double> m = {0,       .19062,  .52473,   1.83258,  3.97575,
                                   6.55429, 9.27527, 12.03475, 14.80405, 17.57581};
    for (size_t i = 0; i < t.size(); ++i) {
        const GainBias g = distance_transform("scale_invariant", config, t[i]);
        CHECK(std::abs(g.gain - a[i]) < 6e-6);
        CHECK(std::abs(g.bias + m[i]) < 6e-6);
    }
    for (int64_t distance : t) {
        const GainBias once = distance_transform("scale_invariant", config, distance);
        const GainBias more = distance_transform("scale_invariant", decayed, distance);
        CHECK(more.gain == once.gain);
        CHECK(more.bias == 1.75 * once.bias);
    }
    const model::LayerScore plain = score_of({});
    CHECK(value_at(plain.gain, law::Variable::t, 100) == 1);
    CHECK(value_at(plain.bias, law::Variable::t, 100) == 0);
}

TEST_CASE("scale_invariant: unit Gaussian scores have the expected mass per decade") {
    // E[exp(a z - m)] = exp(a^2 / 2 - m), summed over distances.
    const auto mass = [&](int64_t begin, int64_t end) {
        double total = 0;
        for (int64_t t = begin; t < end; ++t) {
            const GainBias g = distance_transform("scale_invariant", {}, t);
            total += std::exp(g.gain * g.gain / 2 + g.bias);
        }
        return total;
    };
    CHECK(mass(1, 10) == Approx(10.20182).epsilon(1e-6));
    CHECK(mass(10, 100) == Approx(28.44710).epsilon(1e-6));
    CHECK(mass(100, 1000) == Approx(36.62276).epsilon(1e-6));
    CHECK(mass(1000, 10000) == Approx(37.82298).epsilon(1e-6));
    CHECK(mass(10000, 100000) == Approx(37.94912).epsilon(1e-6));
}

TEST_CASE(
    "kernels may compute biases from gains where the law has them so at every distance, and nowhere else") {
    const auto of = [](auto change) {
        model::AttentionConfig a;
        a.heads = 2;
        change(a);
        return model::bias_of_gain(score_of(a), 4096);
    };
    const auto written = [&](const std::string& formula) {
        return of([&](model::AttentionConfig& a) { a.score = json::Value(formula); });
    };
    CHECK(written("scale_invariant") == Approx(-1).epsilon(1e-12));
    CHECK(of([](auto& a) {
              add_law(a, "logn");
              add_law(a, "scale_invariant", {{"tau", starts(1000)}, {"c", starts(0.75)}});
          }) == Approx(-0.75).epsilon(1e-12));
    CHECK(written("scale_invariant_heads") == Approx(-1).epsilon(1e-12));
    CHECK(written("z*sqrt(1 + t/8) - t/2") == Approx(-4).epsilon(1e-12));
    // Gains alone, biases alone, another power, another factor in each head, from some distance on, at one distance.
    CHECK(written("z*sqrt(1 + t/8)") == 0);
    CHECK(written("alibi") == 0);
    CHECK(written("log_bias") == 0);
    CHECK(written("z*(1 + log1p(t)) - log1p(t)") == 0);
    CHECK(written("z*sqrt(1 + t/8) - t*(h + 1)/8") == 0);
    CHECK(written("z*sqrt(1 + t/8) - where(t < 4000, t, 4000)/2") == 0);
    CHECK(written("z*sqrt(1 + t/8) - where(t == 1000, 0, t)/2") == 0);
    // What learns, and what changes with the length of the sequence.
    CHECK(of([](auto& a) {
              add_law(a, "scale_invariant", {{"c", starts(1, model::Learning::layer)}});
          }) == 0);
    CHECK(written("z*sqrt(1 + t/T) - t/T") == 0);
}

TEST_CASE("log_bias: a penalty of decay log(1 + t/tau) and no gain") {
    for (int64_t t : {0, 1, 10, 1000, 65535}) {
        const double m = distance_transform("scale_invariant", {}, t).bias;
        CHECK(distance_transform("log_bias", {}, t).gain == 1);
        CHECK(distance_transform("log_bias", {}, t).bias == m / 2);
        CHECK(distance_transform("log_bias", {{"c", starts(-0.5)}}, t).bias == -m / 4);
    }
    CHECK(prints_as(distance_transform("log_bias", {{"tau", starts(1)}}, 1).bias, "-0.693147"));
}

TEST_CASE("si_interp: kappa 0, p 1 is scale_invariant") {
    const ScoreParameters config{{"kappa", starts(0)}, {"p", starts(1)}};
    for (int64_t t : {0, 1, 5, 100, 65535})
        for (double n : {1.0, 100.0, 65536.0}) {
            const GainBias g = distance_transform("si_interp", config, t);
            const GainBias expected = distance_transform("scale_invariant", {}, t);
            CHECK(si_interp_row(config, n) == 0);
            CHECK(std::sqrt(g.gain) == expected.gain);
            CHECK(g.bias == expected.bias);
        }
}

TEST_CASE("si_interp: kappa 1, p 0, b = exp(-1/2), c 0 is sqrt2logn") {
    const ScoreParameters config{
        {"kappa", starts(1)}, {"p", starts(0)}, {"b", starts(std::exp(-0.5))}, {"c", starts(0)}};
    for (int64_t t : {0, 1, 5, 100, 65535}) {
        const GainBias g = distance_transform("si_interp", config, t);
        CHECK(g.gain == 1);
        CHECK(g.bias == 0);
        for (double n : {2.0, 3.0, 100.0, 65536.0})
            CHECK(std::sqrt(g.gain + si_interp_row(config, n)) ==
                  Approx(scale_shape("sqrt2logn", 64, 2048, n)).epsilon(1e-15));
        // n = 1: 0 up to rounding, either side.
        CHECK(std::abs(g.gain + si_interp_row(config, 1)) < 1e-15);
    }
}

TEST_CASE("si_interp: E[exp L] of a normal score is exp(1/2) (1 + t/tau)^-p for any kappa and n") {
    for (double kappa : {0.0, 0.3, 1.0})
        for (double p : {-0.5, 0.0, 0.7, 2.0})
            for (int64_t t : {0, 3, 500})
                for (double n : {1.0, 64.0, 5000.0}) {
                    const ScoreParameters config{
                        {"tau", starts(7)}, {"kappa", starts(kappa)}, {"p", starts(p)}};
                    const GainBias g = distance_transform("si_interp", config, t);
                    const double w = si_interp_row(config, n), square = g.gain + w;
                    const double expectation = std::exp(square / 2 + g.bias - w / 2);
                    CHECK(
                        expectation ==
                        Approx(std::exp(0.5) * std::pow(1 + static_cast<double>(t) / 7, -p)).epsilon(1e-13));
                }
}

TEST_CASE("alibi: slopes for any number of heads") {
    const auto check_slopes = [](const std::vector<std::string>& expected) {
        const std::vector<double> slopes = alibi_slopes(static_cast<int64_t>(expected.size()));
        REQUIRE(slopes.size() == expected.size());
        for (size_t h = 0; h < slopes.size(); ++h) CHECK(prints_as(slopes[h], expected[h]));
    };
    check_slopes({".25", ".0625", ".015625", ".00390625"});
    check_slopes({".25", ".0625", ".015625", ".00390625", ".5", ".125"});
    const std::vector<std::string> eight = {".5",     ".25",     ".125",     ".0625",
                                            ".03125", ".015625", ".0078125", ".00390625"};
    check_slopes(eight);
    std::vector<std::string> twelve = eight;
    twelve.insert(twelve.end(), {".707107", ".353553", ".176777", ".0883883"});
    check_slopes(twelve);
    check_slopes({".00390625"});
    check_slopes({".0625", ".00390625", ".25"});  // two heads, then the first of four

    for (int64_t heads = 1; heads <= 70; ++heads) {
        const std::vector<double> slopes = alibi_slopes(heads);
        for (size_t h = 0; h < slopes.size(); ++h) {
            CHECK(slopes[h] > 0);
            CHECK(slopes[h] < 1);
            for (size_t other = 0; other < h; ++other) CHECK(slopes[h] != slopes[other]);
        }
    }
}

TEST_CASE("alibi: a straight penalty with the slope of the head") {
    const std::vector<double> slopes = alibi_slopes(6);
    for (int64_t h = 0; h < 6; ++h)
        for (int64_t t : {0, 1, 17, 65535}) {
            const GainBias g = distance_transform("alibi", {}, t, h, 6);
            CHECK(g.gain == 1);
            CHECK(g.bias == -slopes[static_cast<size_t>(h)] * static_cast<double>(t));
        }
}

namespace {

struct Mean {
    double sum = 0, squares = 0, count = 0;
    void add(double x) {
        sum += x;
        squares += x * x;
        ++count;
    }
    double value() const { return sum / count; }
    double standard_error() const {
        return std::sqrt(std::max(0.0, squares / count - value() * value()) / (count - 1));
    }
};

// What the weights of one query look like, averaged over draws of its scores.
struct Simulated {
    Mean inverse_largest, participation, entropy, near_mass;
    std::array<Mean, 3> range_entropy;  // distances [1, 10), [10, 100), [100, 1000)
};

// One query with keys at distances 0 .. n-1 and scores N(0, 1), multiplied by f and transformed by distance.
// An empty name of a law leaves the scores as they are.
Simulated simulate(int64_t n, int draws, double f, const std::string& law, int64_t head = 0,
                   int64_t heads = 1) {
    const Rng rng(2024, Purpose::test, static_cast<uint32_t>(n));
    std::vector<double> gain, bias;
    for (int64_t t = 0; t < n; ++t) {
        const GainBias g = law.empty() ? GainBias() : distance_transform(law, {}, t, head, heads);
        gain.push_back(f * g.gain);
        bias.push_back(g.bias);
    }
    Simulated result;
    std::vector<double> w(static_cast<size_t>(n));
    for (int draw = 0; draw < draws; ++draw) {
        double highest = -1e300, total = 0;
        for (size_t t = 0; t < w.size(); ++t) {
            w[t] = gain[t] * rng.normal(static_cast<uint64_t>(draw) * w.size() + t) + bias[t];
            highest = std::max(highest, w[t]);
        }
        for (double& x : w) total += x = std::exp(x - highest);
        result.inverse_largest.add(total);
        double squares = 0;
        for (double& x : w) {
            x /= total;
            squares += x * x;
        }
        result.participation.add(squares);
        // Of weights renormalised within the range: -(sum w log w) / Z + log Z.
        const auto entropy = [&](size_t begin, size_t end) {
            double z = 0, sum = 0;
            for (size_t t = begin; t < end; ++t) {
                z += w[t];
                if (w[t] > 0) sum += w[t] * std::log(w[t]);
            }
            return -sum / z + std::log(z);
        };
        result.entropy.add(entropy(0, w.size()));
        double near = 0;
        for (size_t t = 0; t < std::min<size_t>(100, w.size()); ++t) near += w[t];
        result.near_mass.add(near);
        size_t begin = 1;
        for (Mean& range : result.range_entropy) {
            if (begin * 10 <= w.size()) range.add(entropy(begin, begin * 10));
            begin *= 10;
        }
    }
    return result;
}

// Against a published simulation: four standard errors of ours, 1% for theirs as stated with the table, and
// half of its last digit. "": the table has no such entry.
void check_published(const char* what, const Mean& ours, const std::string& published) {
    if (published.empty()) return;
    CAPTURE(what);
    CAPTURE(ours.value());
    CAPTURE(published);
    const double bound =
        4 * ours.standard_error() + 0.01 * std::abs(printed(published)) + half_digit(published);
    CHECK(std::abs(ours.value() - printed(published)) <= bound);
}

using Published = std::array<std::string, 7>;  // in the order of Simulated

void check_published(const Simulated& s, const Published& row) {
    check_published("E[1 / largest weight]", s.inverse_largest, row[0]);
    check_published("participation ratio", s.participation, row[1]);
    check_published("entropy", s.entropy, row[2]);
    check_published("mass on the last 100", s.near_mass, row[3]);
    check_published("entropy in [1, 10)", s.range_entropy[0], row[4]);
    check_published("entropy in [10, 100)", s.range_entropy[1], row[5]);
    check_published("entropy in [100, 1000)", s.range_entropy[2], row[6]);
}

void within_standard_errors(const char* what, const Mean& mean, double exact) {
    CAPTURE(what);
    CAPTURE(mean.value());
    CAPTURE(exact);
    CHECK(std::abs(mean.value() - exact) <= 4 * mean.standard_error() + 1e-12);
}

}  // namespace

TEST_CASE("simulated attention: length scales, against the published table and the exact integrals") {
    const auto shape = [](const char* law, double n) { return scale_shape(law, 64, 2048, n); };
    struct Case {
        const char* name;
        int64_t n;
        int draws;
        double f;
        Published row;
    };
    const Published unknown;
    const std::vector<Case> cases = {
        {"none", 100, 4000, 1, unknown},
        {"none", 1024, 1500, 1, {"69.0", ".002636", "6.433", ".0976", "1.829", "4.019", "6.304"}},
        {"0.4 log n",
         1024,
         1500,
         shape("logn_fixed04", 1024),
         {"6.03", ".105", "3.756", ".0977", ".968", "2.160", "3.66"}},
        {"0.4 log n",
         4096,
         800,
         shape("logn_fixed04", 4096),
         {"5.87", ".116", "3.873", ".0244", ".812", "1.764", "2.931"}},
        {"sqrt2logn",
         1024,
         1500,
         shape("sqrt2logn", 1024),
         {"3.50", ".236", "2.594", ".0977", ".732", "1.552", "2.533"}},
        {"sqrt2logn, r = 0.5",
         1024,
         1500,
         0.5 * shape("sqrt2logn", 1024),
         {"15.43", ".0209", "5.258", ".0977", "1.334", "3.066", "5.135"}}};
    for (const Case& c : cases) {
        CAPTURE(c.name);
        CAPTURE(c.n);
        const double n = static_cast<double>(c.n);
        const Simulated s = simulate(c.n, c.draws, c.f, "");
        check_published(s, c.row);
        within_standard_errors("E[1 / largest weight]", s.inverse_largest,
                               law::gaussian_inverse_largest_weight(n, c.f));
        within_standard_errors("participation ratio", s.participation,
                               law::gaussian_participation_ratio(n, c.f));
        within_standard_errors("mass on the last 100", s.near_mass, std::min(1.0, 100 / n));
    }
}

TEST_CASE("simulated attention: distance laws, against the published table") {
    SUBCASE("scale_invariant, 100 keys") {
        check_published(simulate(100, 4000, 1, "scale_invariant"),
                        {"5.16", ".1142", "2.987", "1", "1.623", "", ""});
    }
    SUBCASE("scale_invariant, 1024 keys") {
        check_published(simulate(1024, 1500, 1, "scale_invariant"),
                        {"6.69", ".0841", "3.743", ".542", "1.623", "2.791", "3.434"});
    }
    SUBCASE("scale_invariant, 4096 keys") {
        check_published(simulate(4096, 800, 1, "scale_invariant"),
                        {"7.31", ".0752", "4.070", ".4255", "1.621", "2.790", "3.428"});
    }
    SUBCASE("log_bias, 1024 keys") {
        check_published(simulate(1024, 1500, 1, "log_bias"),
                        {"20.33", ".01167", "5.661", ".518", "1.818", "3.907", "6.109"});
    }
    SUBCASE("alibi, the last of 8 heads (slope 2^-8), 4096 keys") {
        check_published(simulate(4096, 800, 1, "alibi", 7, 8),
                        {"38.7", ".0052", "6.05", ".322", "1.828", "4.013", "5.912"});
    }
}
