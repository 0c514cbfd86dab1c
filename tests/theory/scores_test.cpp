// Softmax over independent scores: integrals against published values, against each
// other and against samples.
#include <doctest/doctest.h>

#include <cmath>
#include <numbers>
#include <utility>

#include "law/extreme_values.h"
#include "model/printed.h"
#include "theory/cosine.h"
#include "theory/gaussian.h"
#include "theory/gradient_scale.h"
#include "theory/score_law.h"

using namespace longreach;
using namespace longreach::test;
using doctest::Approx;

namespace {

// E over two scores of p(w) with w the first one's weight; scores differ by alpha D, D of the given density.
template <class Density, class F>
double over_differences(double reach, const Density& density, const F& f) {
    const double step = 1e-4;
    double sum = 0, total = 0;
    for (double d = -reach + step / 2; d < reach; d += step) {
        sum += density(d) * f(d);
        total += density(d);
    }
    return sum / total;
}

double squares_of_two(double x) {
    const double w = 1 / (1 + std::exp(-x));
    return w * w + (1 - w) * (1 - w);
}

double entropy_of_two(double x) {
    x = std::abs(x);
    const double small = 1 / (1 + std::exp(x));
    return std::log1p(std::exp(-x)) + small * x;
}

}  // namespace

TEST_CASE("entropy of normal scores: published samples") {
    // Relative noise of the samples: below 1% up to n = 1e4, about 3% at 65536.
    struct Case {
        double n, alpha, entropy, noise;
    };
    const auto root = [](double n) { return theory::freezing_scale(n); };
    for (const Case& c :
         {Case{1024, 1, 6.433, 0.01}, Case{16384, 1, 9.204, 0.03}, Case{65536, 1, 10.590, 0.03},
          Case{1024, 0.4 * std::log(1024), 3.756, 0.01}, Case{4096, 0.4 * std::log(4096), 3.873, 0.01},
          Case{65536, 0.4 * std::log(65536), 3.79, 0.03}, Case{1024, root(1024), 2.594, 0.01},
          Case{65536, root(65536), 3.42, 0.03}, Case{1024, root(1024) / 2, 5.258, 0.01}}) {
        CAPTURE(c.n);
        CAPTURE(c.alpha);
        CHECK(theory::gaussian_entropy(c.n, c.alpha) == Approx(c.entropy).epsilon(c.noise));
    }
}

TEST_CASE("participation ratio of normal scores: published samples") {
    // They are said to be a few percent high at large n.
    const std::vector<double> ns = {256, 1024, 4096, 16384, 65536};
    const std::vector<std::pair<double, std::vector<double>>> table = {
        {0.25, {0.007724, 0.002311, 6.894e-4, 2.053e-4, 6.11e-5}},
        {0.5, {0.0402, 0.0209, 0.0111, 0.0059, 0.0031}},
        {1, {0.264, 0.235, 0.215, 0.205, 0.20}},
        {2, {0.586, 0.574, 0.567, 0.565, 0.57}}};
    for (const auto& [r, row] : table)
        for (size_t i = 0; i < ns.size(); ++i) {
            CAPTURE(r);
            CAPTURE(ns[i]);
            const double exact = law::gaussian_participation_ratio(ns[i], r * theory::freezing_scale(ns[i]));
            CHECK(exact == Approx(row[i]).epsilon(ns[i] < 5000 ? 0.03 : 0.09));
        }
    const double slope =
        std::log(law::gaussian_participation_ratio(65536, 0.25 * theory::freezing_scale(65536)) /
                 law::gaussian_participation_ratio(256, 0.25 * theory::freezing_scale(256))) /
        std::log(256.0);
    CHECK(prints_as(slope, "-0.873"));
}

TEST_CASE("two ways to integrate the participation ratio of normal scores agree") {
    for (double alpha : {0.0, 0.4, 1.5, 6.0}) {
        const theory::ScoreLaw law = theory::gaussian_law(alpha);
        for (double n : {2.0, 50.0, 1e5}) {
            CAPTURE(n);
            CAPTURE(alpha);
            CHECK(theory::expected_participation(law, n, alpha) ==
                  Approx(law::gaussian_participation_ratio(n, alpha)).epsilon(1e-9));
        }
    }
}

TEST_CASE("two scores by direct quadrature: normal, and cosines in two, three and four dimensions") {
    for (double alpha : {0.3, 1.0, 4.0}) {
        CAPTURE(alpha);
        const auto squares = [&](double d) { return squares_of_two(alpha * d); };
        const auto entropy = [&](double d) { return entropy_of_two(alpha * d); };
        const auto normal = [](double d) { return std::exp(-d * d / 4); };
        CHECK(theory::expected_participation(theory::gaussian_law(alpha), 2, alpha) ==
              Approx(over_differences(16, normal, squares)).epsilon(1e-9));
        CHECK(theory::gaussian_entropy(2, alpha) ==
              Approx(over_differences(16, normal, entropy)).epsilon(1e-8));
        // In three dimensions a cosine is uniform on [-1, 1]; scores are sqrt(3) times that. The midpoint
        // rule with step 1e-4 is off by about 1e-9.
        const double reach = 2 * std::sqrt(3.0);
        const auto triangle = [&](double d) { return reach - std::abs(d); };
        CHECK(theory::cosine_participation(3, 2, alpha) ==
              Approx(over_differences(reach, triangle, squares)).epsilon(1e-7));
        CHECK(theory::cosine_entropy(3, 2, alpha) ==
              Approx(over_differences(reach, triangle, entropy)).epsilon(1e-7));
        // In two, angles are uniform: equidistant nodes on the circle are exact up to rounding. Half a step
        // between the two grids keeps the nodes of both away from the ends.
        const int nodes = 400;
        double sum = 0, sum_entropy = 0, sum4 = 0, total4 = 0;
        for (int i = 0; i < nodes; ++i)
            for (int j = 0; j < nodes; ++j) {
                const double a = 2 * std::numbers::pi * i / nodes,
                             b = 2 * std::numbers::pi * (j + 0.5) / nodes;
                const double difference = alpha * (std::cos(a) - std::cos(b));
                sum += squares_of_two(std::sqrt(2.0) * difference);
                sum_entropy += entropy_of_two(std::sqrt(2.0) * difference);
                const double p = std::pow(std::sin(a) * std::sin(b), 2);
                sum4 += p * squares_of_two(2 * difference);
                total4 += p;
            }
        CHECK(theory::cosine_participation(2, 2, alpha) == Approx(sum / (nodes * nodes)).epsilon(1e-9));
        CHECK(theory::cosine_entropy(2, 2, alpha) == Approx(sum_entropy / (nodes * nodes)).epsilon(1e-9));
        CHECK(theory::cosine_participation(4, 2, alpha) == Approx(sum4 / total4).epsilon(1e-9));
    }
}

TEST_CASE("without a scale weights are uniform, with a huge one a single key has all") {
    for (double n : {2.0, 77.0, 65536.0}) {
        CAPTURE(n);
        CHECK(theory::gaussian_entropy(n, 0) == Approx(std::log(n)).epsilon(1e-10));
        CHECK(theory::cosine_entropy(64, n, 0) == Approx(std::log(n)).epsilon(1e-10));
        CHECK(theory::cosine_participation(64, n, 0) * n == Approx(1).epsilon(1e-9));
    }
    // Of two scores: the density of their difference at 0 times int of the entropy, pi^2 / 3, over alpha. The
    // density's curvature takes about 1.2 / alpha^2 of that.
    const double pi = std::numbers::pi;
    CHECK(theory::gaussian_entropy(2, 40) * 40 == Approx(pi * pi / 3 / std::sqrt(4 * pi)).epsilon(2e-3));
    CHECK(theory::gaussian_entropy(1, 3) == 0);
    CHECK(theory::cosine_participation(64, 1, 3) == 1);
}

TEST_CASE("cosines in many dimensions are normal scores") {
    // The fourth moment of sqrt(d) cos is 3 d / (d + 2): relative corrections of a few over d.
    for (double n : {16.0, 1024.0}) {
        CHECK(theory::cosine_entropy(4096, n, 1.5) == Approx(theory::gaussian_entropy(n, 1.5)).epsilon(3e-3));
        CHECK(theory::cosine_participation(4096, n, 1.5) ==
              Approx(law::gaussian_participation_ratio(n, 1.5)).epsilon(1e-2));
    }
}

TEST_CASE("samples agree with integrals within four standard errors") {
    const auto near = [](const theory::Estimate& sampled, double exact) {
        CAPTURE(exact);
        CHECK(sampled.error > 0);
        CHECK(std::abs(sampled.mean - exact) < 4 * sampled.error);
    };
    for (int64_t keys : {2, 64, 1024}) {
        const double n = static_cast<double>(keys);
        const std::vector<double> alphas = {0.5, 1.5, 0.4 * std::log(n), theory::freezing_scale(n)};
        const std::vector<theory::SoftmaxEstimates> sampled =
            theory::sampled_gaussian(keys, alphas, 2000, 11);
        for (size_t i = 0; i < alphas.size(); ++i) {
            CAPTURE(n);
            CAPTURE(alphas[i]);
            near(sampled[i].inverse_largest, law::gaussian_inverse_largest_weight(n, alphas[i]));
            near(sampled[i].participation, law::gaussian_participation_ratio(n, alphas[i]));
            near(sampled[i].entropy, theory::gaussian_entropy(n, alphas[i]));
        }
    }
    for (int dim : {2, 5, 16, 33}) {
        const law::CosineScores scores(dim);
        for (int64_t keys : {3, 200}) {
            const double n = static_cast<double>(keys), alpha = 2;
            CAPTURE(dim);
            CAPTURE(n);
            const theory::SoftmaxEstimates sampled = theory::sampled_cosine(dim, keys, {alpha}, 2000, 12)[0];
            near(sampled.inverse_largest, scores.inverse_largest_weight(n, alpha));
            near(sampled.participation, theory::cosine_participation(dim, n, alpha));
            near(sampled.entropy, theory::cosine_entropy(dim, n, alpha));
        }
    }
}

TEST_CASE("samples are a function of the seed; uniform weights have no error") {
    const theory::SoftmaxEstimates a = theory::sampled_gaussian(50, {1.0}, 40, 1)[0],
                                   b = theory::sampled_gaussian(50, {1.0}, 40, 1)[0];
    CHECK(a.entropy.mean == b.entropy.mean);
    CHECK(a.entropy.error == b.entropy.error);
    CHECK(theory::sampled_gaussian(50, {1.0}, 40, 2)[0].entropy.mean != a.entropy.mean);
    const theory::SoftmaxEstimates uniform = theory::sampled_gaussian(50, {0.0}, 40, 1)[0];
    CHECK(uniform.inverse_largest.mean == 50);
    CHECK(uniform.inverse_largest.error == 0);
    CHECK(uniform.entropy.mean == Approx(std::log(50.0)).epsilon(1e-14));
}

TEST_CASE("limits for many keys describe the exact values as well as they are said to") {
    CHECK(theory::inverse_largest_limit(1024, 0.25) ==
          Approx(law::gaussian_inverse_largest_weight(1024, 0.25 * theory::freezing_scale(1024)))
              .epsilon(0.03));
    CHECK(theory::inverse_largest_limit(1e9, 3) == 1.5);
    CHECK(std::isinf(theory::inverse_largest_limit(1e9, 1)));
    // Below r = 1/2 weights behave as their means: only fluctuations of relative size n^(...) are missing.
    CHECK(
        theory::participation_limit(65536, 0.25) ==
        Approx(law::gaussian_participation_ratio(65536, 0.25 * theory::freezing_scale(65536))).epsilon(0.01));
    CHECK(theory::entropy_limit(65536, 0.25) ==
          Approx(theory::gaussian_entropy(65536, 0.25 * theory::freezing_scale(65536))).epsilon(1e-3));
    CHECK(theory::participation_limit(65536, 2) == 0.5);
}

TEST_CASE("scale of most gradient: published values") {
    const std::vector<std::pair<double, std::string>> normal = {{64, "1.5494"},   {256, "1.8635"},
                                                                {512, "2.0084"},  {1024, "2.1465"},
                                                                {4096, "2.4055"}, {20000, "2.6782"}};
    for (const auto& [n, alpha] : normal) {
        CAPTURE(n);
        CHECK(prints_as(theory::gaussian_gradient_scale(n), alpha));
    }
    // Published for cosines on a grid of 0.1.
    const std::vector<std::pair<double, double>> cosine = {
        {128, 20.3}, {256, 22.3}, {512, 24.2}, {1024, 26.1}, {20000, 33.7}};
    for (const auto& [n, multiplier] : cosine) {
        CAPTURE(n);
        CHECK(std::abs(theory::cosine_gradient_scale(128, n) - multiplier) < 0.05);
    }
    CHECK(prints_as(theory::cosine_gradient_scale(64, 256) / std::log(256.0), "3.00"));
}

TEST_CASE("with the true participation ratio gradient keeps rising beyond that scale") {
    for (double n : {64.0, 4096.0}) {
        double before = theory::gaussian_gradient(n, theory::gaussian_gradient_scale(n));
        for (double r : {1.0, 1.5, 2.0, 3.0, 5.0}) {
            const double now = theory::gaussian_gradient(n, r * theory::freezing_scale(n));
            CHECK(now > before);
            before = now;
        }
    }
}
