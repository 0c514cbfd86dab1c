// Phase diagram of one attention layer: closed forms, the Jacobian by finite differences, limits.
#include <doctest/doctest.h>

#include <cmath>
#include <string>

#include "model/printed.h"
#include "theory/phase.h"

using namespace longreach;
using namespace longreach::test;
using doctest::Approx;

namespace {

// n tokens of length 1 with cosine rho: a common direction and one of its own each.
theory::Tokens simplex(int64_t n, double rho) {
    const int64_t d = n + 1;
    theory::Tokens tokens{n, d, std::vector<double>(static_cast<size_t>(n * d))};
    for (int64_t i = 0; i < n; ++i) {
        tokens.x[static_cast<size_t>(i * d)] = std::sqrt(rho);
        tokens.x[static_cast<size_t>(i * d + i + 1)] = std::sqrt(1 - rho);
    }
    return tokens;
}

// x' as its definition says.
std::vector<double> attention(const theory::Tokens& tokens, double beta) {
    const size_t n = static_cast<size_t>(tokens.n), d = static_cast<size_t>(tokens.d);
    std::vector<double> y = tokens.x, out(n * d);
    for (size_t i = 0; i < n; ++i) {
        double length = 0;
        for (size_t k = 0; k < d; ++k) length += y[i * d + k] * y[i * d + k];
        for (size_t k = 0; k < d; ++k) y[i * d + k] /= std::sqrt(length);
    }
    for (size_t i = 0; i < n; ++i) {
        double sum = 0;
        for (size_t j = 0; j < n; ++j) {
            double score = 0;
            for (size_t k = 0; k < d; ++k) score += y[i * d + k] * y[j * d + k];
            const double w = std::exp(beta * score);
            sum += w;
            for (size_t k = 0; k < d; ++k) out[i * d + k] += w * y[j * d + k];
        }
        for (size_t k = 0; k < d; ++k) out[i * d + k] /= sum;
    }
    return out;
}

double mean_inverse_square(const theory::Tokens& tokens) {
    double sum = 0;
    for (int64_t i = 0; i < tokens.n; ++i) {
        double length2 = 0;
        for (int64_t k = 0; k < tokens.d; ++k)
            length2 += tokens.x[static_cast<size_t>(i * tokens.d + k)] *
                       tokens.x[static_cast<size_t>(i * tokens.d + k)];
        sum += 1 / length2;
    }
    return sum / static_cast<double>(tokens.n);
}

}  // namespace

TEST_CASE("angle ratio of a simplex: published values") {
    struct Case {
        double n, rho;
        std::vector<std::string> values;  // gamma over its critical value 0.5, 0.8, 1, 1.2, 1.5
        std::string limit;
    };
    const std::vector<double> factors = {0.5, 0.8, 1, 1.2, 1.5};
    for (const Case& c : {Case{1024, 0.2, {"0.0043", "0.1709", "0.6238", "0.8985", "0.9874"}, "0.6250"},
                          Case{1024, 0.5, {"0.0017", "0.0764", "0.3995", "0.7803", "0.9692"}, "0.4000"},
                          Case{1024, 0.8, {"0.0011", "0.0492", "0.2938", "0.6895", "0.9517"}, "0.2941"},
                          Case{65536, 0.5, {"0.0000", "0.0191", "0.4000", "0.8971", "0.9961"}, "0.4000"}}) {
        for (size_t i = 0; i < factors.size(); ++i) {
            CAPTURE(c.n);
            CAPTURE(c.rho);
            CAPTURE(factors[i]);
            CHECK(
                prints_as(theory::simplex_angle_ratio(c.n, c.rho, factors[i] * theory::critical_gamma(c.rho)),
                          c.values[i]));
        }
        CHECK(prints_as(theory::simplex_angle_ratio_limit(c.rho, theory::critical_gamma(c.rho)), c.limit));
    }
}

TEST_CASE("angle ratio of a simplex reaches its limit with growing n") {
    for (double rho : {0.1, 0.5, 0.9})
        for (double factor : {0.7, 1.0, 1.4}) {
            CAPTURE(rho);
            CAPTURE(factor);
            const double gamma = factor * theory::critical_gamma(rho);
            CHECK(theory::simplex_angle_ratio(1e30, rho, gamma) ==
                  Approx(theory::simplex_angle_ratio_limit(rho, gamma)).epsilon(1e-6));
        }
}

TEST_CASE("tokens that are a simplex have the angle ratio of the closed form") {
    // 1 - cosine is taken of numbers near 1: 1e-16 of rounding, some tens of operations, over at least 1e-4.
    for (int64_t n : {2, 17, 150})
        for (double rho : {0.0, 0.3, 0.8})
            for (double gamma : {0.5, 1.0, 2.0, 6.0}) {
                CAPTURE(n);
                CAPTURE(rho);
                CAPTURE(gamma);
                const theory::PhaseModel model(simplex(n, rho));
                const double log_n = std::log(static_cast<double>(n));
                CHECK(model.at(gamma * log_n).angle_ratio ==
                      Approx(theory::simplex_angle_ratio(static_cast<double>(n), rho, gamma)).epsilon(1e-10));
            }
}

TEST_CASE("gradient norm: central differences of every input") {
    for (double beta : {0.0, 0.7, 3.0, 12.0}) {
        CAPTURE(beta);
        const theory::Tokens tokens = theory::overlapping_tokens(19, 5, 0.4, 3);
        const double h = 1e-5;
        double sum = 0;
        for (size_t i = 0; i < tokens.x.size(); ++i) {
            theory::Tokens up = tokens, down = tokens;
            up.x[i] += h;
            down.x[i] -= h;
            const std::vector<double> a = attention(up, beta), b = attention(down, beta);
            for (size_t k = 0; k < a.size(); ++k) {
                const double slope = (a[k] - b[k]) / (2 * h);
                sum += slope * slope;
            }
        }
        // Off by h^2 times third derivatives over first ones: (beta + 1/|x|)^2, a thousand at most.
        CHECK(theory::PhaseModel(tokens).at(beta).gradient_norm ==
              Approx(sum / static_cast<double>(tokens.x.size())).epsilon(1e-6));
    }
}

TEST_CASE("angle ratio: as its definition says") {
    const theory::Tokens tokens = theory::overlapping_tokens(21, 6, 0.3, 4);
    for (double beta : {0.5, 4.0}) {
        theory::Tokens moved = tokens;
        moved.x = attention(tokens, beta);
        const theory::PhaseModel before(tokens), after(moved);
        double sum = 0;
        for (int64_t i = 0; i < 21; ++i)
            for (int64_t j = 0; j < i; ++j)
                sum += (1 - after.inner_product(i, j)) / (1 - before.inner_product(i, j));
        CHECK(before.at(beta).angle_ratio == Approx(sum / 210).epsilon(1e-10));
    }
}

TEST_CASE("no scale: every token attends to all alike and becomes the same") {
    // Sizes beyond one block of rows and one strip of columns, not multiples of either.
    const theory::Tokens tokens = theory::overlapping_tokens(151, 131, 0.5, 5);
    const theory::PhasePoint point = theory::PhaseModel(tokens).at(0);
    CHECK(std::abs(point.angle_ratio) < 1e-12);
    // dx'_i/dx_m = P_m / (n |x_m|) for all n^2 pairs.
    CHECK(point.gradient_norm == Approx(mean_inverse_square(tokens) * (1 - 1 / 131.0) / 151).epsilon(1e-10));
}

TEST_CASE("huge scale: tokens stay as they are and all gradient passes") {
    const theory::Tokens tokens = theory::overlapping_tokens(64, 64, 0.5, 6);
    const theory::PhasePoint point = theory::PhaseModel(tokens).at(400);
    CHECK(point.angle_ratio == Approx(1).epsilon(1e-9));
    CHECK(point.gradient_norm == Approx(mean_inverse_square(tokens) * (1 - 1 / 64.0)).epsilon(1e-8));
}

TEST_CASE("simplex: gradient norm on both sides of the critical scale, and a quarter at it") {
    // Deviations are powers of n with logarithms of n in front: far off the critical value they are small.
    const double rho = 0.2, log_n = std::log(400.0), critical = theory::critical_gamma(rho);
    const theory::PhaseModel model(simplex(400, rho));
    const auto limit = [&](double factor) {
        return theory::simplex_gradient_norm_limit(401, rho, factor * critical);
    };
    CHECK(model.at(0.4 * critical * log_n).gradient_norm < 0.02);
    CHECK(limit(0.4) == 0);
    CHECK(model.at(3 * critical * log_n).gradient_norm == Approx(limit(3)).epsilon(1e-3));
    CHECK(model.at(critical * log_n).gradient_norm == Approx(limit(1)).epsilon(0.2));
    CHECK(limit(1) == Approx(0.25).epsilon(3e-3));
}

TEST_CASE("random tokens: moments, and the published angle ratio at the critical scale") {
    const double rho = 0.5, log_n = std::log(512.0);
    double mean = 0;
    for (uint64_t seed = 1; seed <= 2; ++seed) {
        const theory::Tokens tokens = theory::overlapping_tokens(512, 512, rho, seed);
        const theory::PhaseModel model(tokens);
        // Cosines have mean rho with an error of about sqrt(rho (1-rho) / n d) and corrections of 1/d.
        double cosine = 0;
        for (int64_t i = 1; i < 512; ++i) cosine += model.inner_product(i, i - 1) / 511;
        CHECK(cosine == Approx(rho).epsilon(0.02));
        const double ratio = model.at(theory::critical_gamma(rho) * log_n).angle_ratio;
        CHECK(std::abs(ratio - 0.391) < 4 * 0.006);  // .391 +- .006 over seeds
        mean += ratio / 2;
        const theory::PhasePoint below = model.at(0.5 * theory::critical_gamma(rho) * log_n),
                                 above = model.at(2 * theory::critical_gamma(rho) * log_n);
        CHECK(below.angle_ratio < 0.01);
        CHECK(below.gradient_norm < 0.01);
        CHECK(above.angle_ratio > 0.98);
        CHECK(above.gradient_norm > 0.95);
    }
    CHECK(std::abs(mean - 0.391) < 3 * 0.006);
}

TEST_CASE("phase diagram: every cell is its own point, the same each time") {
    int64_t columns = 0;
    const theory::PhaseDiagram diagram =
        theory::phase_diagram(24, 8, 3, 6, 9, [&](int64_t done) { CHECK(done == ++columns); });
    CHECK(columns == 3);
    for (int64_t row = 0; row < 3; ++row)
        for (int64_t column = 0; column < 3; ++column) {
            const theory::PhasePoint point =
                theory::PhaseModel(theory::overlapping_tokens(24, 8, diagram.rho(column), 9))
                    .at(diagram.gamma(row) * std::log(24.0));
            CHECK(diagram.angle_ratio[static_cast<size_t>(row * 3 + column)] == point.angle_ratio);
            CHECK(diagram.gradient_norm[static_cast<size_t>(row * 3 + column)] == point.gradient_norm);
        }
    CHECK(diagram.rho(1) == 0.5);
    CHECK(diagram.gamma(1) == 3);
}

TEST_CASE(
    "phase diagram: the transition lies where values pass one half, on average over the columns that do") {
    // Columns rho = 1/6, 1/2, 5/6; rows gamma = 1, 3, 5. Passed at 2, at 4.5 and never.
    theory::PhaseDiagram diagram{24, 8, 3, 6, {}, {}};
    const std::vector<double> values{0.25, 0, 0, 0.75, 0.2, 0.1, 1, 0.6, 0.4};
    CHECK(theory::transition(diagram, values) == Approx((2 * (1 - 1.0 / 6) + 4.5 * 0.5) / 2).epsilon(1e-12));
    CHECK(std::isnan(theory::transition(diagram, std::vector<double>(9, 0.1))));
}
