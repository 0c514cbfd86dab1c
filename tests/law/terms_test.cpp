// Scores that read tokens: the parts into which they are taken apart, and what is refused.
#include <doctest/doctest.h>

#include <cmath>

#include "law/library.h"

using namespace longreach;
using law::Parameter;
using law::Term;

namespace {

const std::vector<Term> terms = {{.name = "f", .formula = "log_sigmoid(x)"},
                                 {.name = "u", .formula = "a*tanh(x)", .parameters = {0}, .init = "h + 1"}};
const std::vector<Parameter> parameters = {{.name = "a", .init = "2"}};

law::BoundLaw bound(const std::string& formula, const std::vector<Term>& of = terms) {
    int64_t stage = 0;
    return {law::stages_of({formula}, parameters.size()),
            parameters,
            {.heads = 4, .layer = 1, .layers = 2, .head_dim = 64, .train_context = 512},
            stage,
            of};
}

// The message and what it blames.
std::string refused(const std::string& formula, const std::vector<Term>& of = terms) {
    try {
        bound(formula, of);
    } catch (const law::FormulaError& e) {
        return std::string(e.what()) + ": " + law::marked(formula, e);
    }
    return "";
}

std::string refused_term(const Term& term) {
    int64_t stage = 0;
    try {
        law::BoundLaw(law::stages_of({"z + between(f)"}, 1), parameters, {}, stage, {term});
    } catch (const law::FormulaError& e) {
        return std::to_string(stage) + " " + e.what();
    }
    return "";
}

}  // namespace

TEST_CASE(
    "terms: a score is a factor of the query, a table by distance, a sum between and a bias of the key") {
    const law::BoundLaw law =
        bound("2*(z*sqrt(1 + u_q^2)*log(n) - t/8 + 3*(between(f) - u_k) + u_k*f_k) - n*u_q");
    const law::Law& l = law.law();
    CHECK(l.row_of_token);
    CHECK(law.written(l.row) == "2*(sqrt(1 + (a*tanh(x_u))^2)*log(n))");
    CHECK(law.written(l.gain) == "1");
    CHECK(law.written(l.bias) == "2*-(t/8)");
    CHECK(law.written(l.between) == "2*(3*log_sigmoid(x_f))");
    CHECK(law.written(l.key) == "2*(3*-(a*tanh(x_u)) + a*tanh(x_u)*log_sigmoid(x_f))");
    REQUIRE(l.cancelled.size() == 1);
    CHECK(law.written(l.cancelled[0]) == "n*(a*tanh(x_u))");
    CHECK(law.first_bias(2, 1) == 3);
    CHECK(law.unused(0) == "");
    CHECK(law.without_effect(0, 4096) == "");
    CHECK(law.first_not_finite(65536) == "");
}

TEST_CASE("terms: what the kernels cannot compute is refused where it stands") {
    CHECK(refused("z*f_k") == "a factor of z may depend on the query, not on the key: z*[f_k]");
    CHECK(refused("z*(1 + between(f))") ==
          "a sum between key and query can be added to z, but not multiply it: z*(1 + [between(f)])");
    CHECK(refused("z + log(n)*between(f)")
              .starts_with("a sum between key and query may be multiplied by what is equal"));
    CHECK(refused("z + between(f)*f_q")
              .starts_with("a sum between key and query may be multiplied by what is equal"));
    CHECK(refused("z + exp(between(f))").ends_with("write the rest into the term: z + [exp(between(f))]"));
    CHECK(refused("z + f_k*t") ==
          "a summand may depend on the key alone, on t alone or on n alone: this mixes them: z + [f_k*t]");
    CHECK(refused("z + f_k*u_q").starts_with("a summand may depend on the key alone"));
    CHECK(refused("z*sqrt(u_q + t)").starts_with("the factor of z must be a product"));
    CHECK(refused("z + between(2*f)") ==
          "between takes the name of a term alone; write what is summed into the term: z + between([2]*f)");
    CHECK(refused("z + between(g)") == "between takes the name of a term: f or u: z + [between(g])");
    CHECK(refused("z + between(f)", {}) ==
          "between takes the name of a term, and there are no terms: z + [between(f])");
    CHECK(refused("z + f").starts_with("unknown name 'f'"));
    CHECK(refused("z*lookup(f_q, n)") ==
          "a term is one number; lookup reads a vector of params: z*lookup([f_q], n)");
}

TEST_CASE("terms: a wrong term is blamed by its number after the formulas") {
    CHECK(refused_term({.name = "f", .formula = "1"}) == "1 a term is a formula of x");
    CHECK(refused_term({.name = "f", .formula = "x*t"}).starts_with("1 unknown name 't'"));
    CHECK(refused_term({.name = "f", .formula = "x", .init = "1/0"}) == "2 the first value is not finite");
    CHECK(law::name_problem("x") == "this is the name of a variable: choose another");
    CHECK(law::name_problem("between") == "this is the name of a function: choose another");
}

TEST_CASE("terms: the first n at which a term overflows") {
    const auto overflow = [](const std::string& formula, const std::string& term,
                             const std::string& init = "0") {
        return bound(formula, {{.name = "f", .formula = term, .init = init}}).first_overflow_of_terms(65536);
    };
    CHECK(overflow("z*2^(f_q*n/500)", "exp(x)") == "the factor of z is 3.40282e+38 at n = 64000");
    CHECK(overflow("z*(1 + f_q*log(n))", "softplus(x)").empty());
    CHECK(overflow("z + between(f)", "log_sigmoid(x)").empty());
    CHECK(overflow("z + between(f)", "exp(x)", "80") ==
          "the sum between key and query is 3.40305e+38 over 6142 tokens");
    CHECK(overflow("z + f_k", "exp(x)", "90*h") == "the bias of the key is 1.2204e+39 at n = 1 in head 1");
    CHECK(bound("z*2^(n/2)", {}).first_overflow_of_terms(65536).empty());  // first_not_finite says it
}

TEST_CASE("terms: log_sigmoid is accurate at both ends") {
    const law::Formula f = law::parse("log_sigmoid(n)", law::score_variables, {});
    law::Values v;
    for (const double x : {-800.0, -40.0, -1.0, 0.0, 1.0, 40.0, 800.0}) {
        v[law::Variable::n] = x;
        const double exact = x > 30 ? -std::exp(-x) : std::log(1 / (1 + std::exp(-x)));
        CHECK(law::evaluate(f, v) == doctest::Approx(x < -700 ? x : exact).epsilon(1e-13));
    }
}

TEST_CASE("terms: z_between(w) is z to the formula, and names the term that fades channels") {
    using Names = std::vector<std::string>;
    CHECK(law::faded_by("2*z_between( w ) - z_between(v_1)") == Names{"w", "v_1"});
    CHECK(law::faded_by("z + between(f) + xz_between(w)").empty());
    const law::BoundLaw law = bound("z_between(w)*log(n) + between(f) - t/8 + a*u_k");
    CHECK(law.written(law.law().row) == "log(n)");
    CHECK(law.written(law.law().bias) == "-(t/8)");
    CHECK(law.written(law.law().between) == "log_sigmoid(x_f)");
    CHECK(refused("z_between(2*w)") ==
          "z_between takes the name of a term alone; write what is summed into the term: z_between([2]*w)");
    CHECK(refused("z_between + 1") == "the function 'z_between' has no arguments here: [z_between] + 1");
    CHECK(law::name_problem("z_between") == "this is the name of a function: choose another");
}
