// Formulas: what they mean, how they are written back, and their derivatives.
#include <doctest/doctest.h>

#include <cmath>
#include <map>

#include "base/rng.h"
#include "law/law.h"

using namespace longreach;
using doctest::Approx;
using law::Formula;
using law::Variable;

namespace {

const std::vector<std::string> names = {"a", "b", "w"};

Formula parsed(const std::string& text) {
    return law::parse(text, law::score_variables, names);
}

// z = 2, dot = 16, n = 10, t = 3, h = 1, H = 4, a = 0.5, b = 3, w = {10, 20, 30}.
double value(const Formula& f, double a = 0.5, double b = 3) {
    law::Values v;
    v[Variable::z] = 2;
    v[Variable::dot] = 16;
    v[Variable::n] = 10;
    v[Variable::t] = 3;
    v[Variable::h] = 1;
    v[Variable::H] = 4;
    const std::vector<double> w = {10, 20, 30};
    v.parameters = {std::span(&a, 1), std::span(&b, 1), w};
    return law::evaluate(f, v);
}
double value(const std::string& text) {
    return value(parsed(text));
}

}  // namespace

TEST_CASE("formula: operators bind as in mathematics") {
    const std::map<std::string, double> cases = {
        {"1 + 2*3", 7},     {"(1 + 2)*3", 9}, {"2^3^2", 512},         {"-2^2", -4},      {"(-2)^2", 4},
        {"2^-1", 0.5},      {"-z^2", -4},     {"8/4/2", 1},           {"8 - 4 - 2", 2},  {"2*-3", -6},
        {"--3", 3},         {"1 < 2", 1},     {"2 <= 1", 0},          {"1 + 1 == 2", 1}, {"1 != 1", 0},
        {".5 + 1e-1", 0.6}, {"1.5e3", 1500},  {"e^1", std::exp(1.0)}, {"cos(pi)", -1},
    };
    for (const auto& [text, wanted] : cases) {
        CAPTURE(text);
        CHECK(value(text) == Approx(wanted).epsilon(1e-15));
    }
}

TEST_CASE("formula: functions and names") {
    const std::map<std::string, double> cases = {
        {"where(t < 5, 1, log(-1))", 1},
        {"min(z, n) + max(z, n)", 12},
        {"clamp(n, 1, 4)", 4},
        {"clamp(-n, 1, 4)", 1},
        {"floor(2.7) + ceil(2.2) + abs(-1)", 6},
        {"exp(1) - expm1(1)", 1},
        {"log(n) - log1p(n - 1)", 0},
        {"log2(8)", 3},
        {"sqrt(dot)", 4},
        {"tanh(0) + erf(0) + sin(0)", 0},
        {"sigmoid(0)", 0.5},
        {"softplus(0)", std::log(2.0)},
        {"softplus(800)", 800},
        {"lookup(w, 1)", 20},
        {"lookup(w, t)", 30},
        {"lookup(w, -1)", 10},
        {"lookup(w, 0.99)", 10},
        {"a*b", 1.5},
        {"h/H", 0.25},
        {"gaussian_scale(16, 2)", 2.7407},
        {"cosine_scale(16, 64, 4)", 1.163},
        {"max_normal(2)", 1 / std::sqrt(3.14159265358979)},
        {"egamma", 0.57721566490153},
    };
    for (const auto& [text, wanted] : cases) {
        CAPTURE(text);
        CHECK(value(text) == Approx(wanted).epsilon(2e-4));
    }
}

TEST_CASE("formula: what is written parses to the same text and value") {
    for (const std::string text :
         {"z*sqrt(1 + 2*log1p(t/a)) - b*2*log1p(t/a)", "-(a + b)^2", "(-a)^2", "a - (b - z)", "a/(b*z)",
          "(a/b)*z", "2^(-8*(h + 1)/H)", "where(n > 3, a, b)*z", "(1 < 2) + 1", "(a^b)^2", "a^b^2",
          "lookup(w, min(2, floor(log2(1 + t))))", "a*(b + -1)", "1e-05*a"}) {
        CAPTURE(text);
        const Formula f = parsed(text);
        const std::string once = law::write(f, names);
        CHECK(law::write(parsed(once), names) == once);
        CHECK(value(parsed(once)) == value(f));
    }
    CHECK(law::write(parsed("((z))*(2)"), names) == "z*2");
    CHECK(law::write(parsed("a-(b+z)"), names) == "a - (b + z)");
    CHECK(law::write(parsed("a--(-z)^2"), names) == "a - -(-z)^2");
    CHECK(law::write(parsed(std::string(90, '-') + "z"), names) == std::string(90, '-') + "z");
}

TEST_CASE("formula: derivatives against central differences") {
    for (const std::string text : {"a + b",
                                   "a - b*a",
                                   "a*b*z",
                                   "z/a",
                                   "a/(1 + a*b)",
                                   "a^b",
                                   "t^a",
                                   "(a + 1)^2.5",
                                   "-a",
                                   "exp(a*z)",
                                   "expm1(a)",
                                   "log(a*n)",
                                   "log1p(a*t)",
                                   "log2(a + n)",
                                   "sqrt(1 + a*t)",
                                   "tanh(a*z)",
                                   "sigmoid(a*z)",
                                   "softplus(a - b)",
                                   "erf(a*b)",
                                   "sin(a*t)",
                                   "cos(a*t + b)",
                                   "where(t > 2, a*a, b)",
                                   "min(a*a, b)",
                                   "max(a*a, b*a)",
                                   "clamp(a*a, 0, 1)",
                                   "clamp(a*a, 1, 2)",
                                   "abs(a - b)",
                                   "z*sqrt(1 + 2*log1p(t/a)) - b*2*log1p(t/a)",
                                   "-b*log1p(a*t)",
                                   "floor(n*0.3)*a",
                                   "z*where(h < H/2, a*log(n), b*sqrt(2*log(n + 1)))",
                                   "a*lookup(w, t)"}) {
        CAPTURE(text);
        const Formula f = parsed(text);
        for (const size_t parameter : {0, 1}) {
            const double step = 1e-6, d = value(law::derivative(f, parameter));
            const double a = parameter == 0 ? step : 0, b = parameter == 1 ? step : 0;
            const double difference = (value(f, 0.5 + a, 3 + b) - value(f, 0.5 - a, 3 - b)) / (2 * step);
            CHECK(d == Approx(difference).epsilon(1e-7).scale(1));
        }
    }
}

TEST_CASE("formula: a power of zero does not move with its exponent") {
    const Formula d = law::derivative(parsed("-a*t^b"), 1);
    law::Values v;
    const double a = 0.5, b = 0.7;
    v.parameters = {std::span(&a, 1), std::span(&b, 1)};
    CHECK(law::evaluate(d, v) == 0);
    v[Variable::t] = 4;
    CHECK(law::evaluate(d, v) == Approx(-0.5 * std::pow(4, 0.7) * std::log(4.0)));
}

TEST_CASE("formula: the derivative of a lookup is that of the element it reads") {
    CHECK(value(law::derivative(parsed("z + 2*lookup(w, min(1, t))"), 2)) == 2);
}

// Every function, nested at random, at parameters away from kinks: 200 formulas.
TEST_CASE("formula: derivatives of 200 random formulas") {
    const Rng rng(1, Purpose::test);
    uint64_t at = 0;
    const auto below = [&](uint64_t n) { return rng.below(at++, n); };
    const auto build = [&](const auto& self, int depth) -> std::string {
        if (depth == 0) {
            const char* leaves[] = {"a", "b", "z", "t", "n", "0.7", "1.3", "a", "b"};
            return leaves[below(std::size(leaves))];
        }
        const std::string x = self(self, depth - 1), y = self(self, depth - 1);
        switch (below(13)) {
            case 0:
                return "(" + x + " + " + y + ")";
            case 1:
                return "(" + x + " - " + y + ")";
            case 2:
                return x + "*" + y;
            case 3:
                return x + "/(1 + (" + y + ")*(" + y + "))";
            case 4:
                return "tanh(" + x + ")";
            case 5:
                return "log1p(abs(" + x + "))";
            case 6:
                return "sqrt(1 + (" + x + ")*(" + x + "))";
            case 7:
                return "exp(-abs(" + x + "))";
            case 8:
                return "sigmoid(" + x + ")";
            case 9:
                return "where(t > 2, " + x + ", " + y + ")";
            case 10:
                return "softplus(" + x + ")";
            case 11:
                return "(1 + tanh(" + x + ")^2)^tanh(" + y + ")";
            default:
                return "cos(" + x + ")";
        }
    };
    for (int i = 0; i < 200; ++i) {
        const std::string text = build(build, 4);
        CAPTURE(text);
        const Formula f = parsed(text);
        for (const size_t parameter : {0, 1}) {
            const double d = value(law::derivative(f, parameter), 0.5, 2.7);
            // Richardson's combination of two central differences: its own error is of the order of step^4.
            const auto difference = [&](double step) {
                const double a = parameter == 0 ? step : 0, b = parameter == 1 ? step : 0;
                return (value(f, 0.5 + a, 2.7 + b) - value(f, 0.5 - a, 2.7 - b)) / (2 * step);
            };
            const double fine = difference(1e-4), coarse = difference(2e-4);
            const double expected = (4 * fine - coarse) / 3;
            CHECK(d == Approx(expected).epsilon(1e-6).scale(1));
        }
    }
}

TEST_CASE("formula: constants fold, and a variable can be replaced") {
    const Formula f = law::resolve(parsed("z*2^(-8*(h + 1)/H)"), {{Variable::h, 0}, {Variable::H, 4}});
    CHECK(law::write(f, names) == "z*0.25");
    const Formula g = law::substitute(parsed("z + t"), Variable::z, parsed("a*z"));
    CHECK(law::write(g, names) == "a*z + t");
}
