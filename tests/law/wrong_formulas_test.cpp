// Formulas that cannot be used: the message, and the part of the text that it points to.
#include <doctest/doctest.h>

#include "law/library.h"

using namespace longreach;

namespace {

// "message | blamed part"
std::string refusal(const std::string& text) {
    const std::vector<law::Parameter> parameters = {{.name = "tau", .init = "10"},
                                                    {.name = "w", .init = "0", .size = 4}};
    int64_t stage = 0;
    try {
        law::BoundLaw(law::stages_of({text}, parameters.size()), parameters, {}, stage);
    } catch (const law::FormulaError& e) {
        return std::string(e.what()) + " | " + text.substr(std::min(e.begin, text.size()), e.end - e.begin);
    }
    return "accepted";
}

}  // namespace

TEST_CASE("wrong formulas: exact messages and the part to blame") {
    const std::pair<const char*, const char*> cases[] = {
        // syntax
        {"", "the formula is empty | "},
        {"   ", "the formula ends where an operand is expected | "},
        {"z +", "the formula ends where an operand is expected | "},
        {"z * + t", "an operand is expected, not '+' | +"},
        {"z * * t", "an operand is expected, not '*' | *"},
        {"z ** 2", "a power is written '^' | **"},
        {"(z + t", "')' is missing at the end | ("},
        {"z + t)", "')' without '(' | )"},
        {"()", "an operand is expected, not ')' | )"},
        {"z t", "an operator is missing before 't' | t"},
        {"(z)(2)", "an operator is missing before '(' | ("},
        {"z = t", "'=' assigns nothing here; to compare, use '==' | ="},
        {"z * (1 < t < 2)", "comparisons do not chain: use parentheses | <"},
        {"2z", "a number and a name without an operator between them: use '*' | 2z"},
        {"z * 1e", "a number and a name without an operator between them: use '*' | 1e"},
        {"z * 1.2.3", "unexpected '.' | ."},
        {"z * .", "not a number | ."},
        {"z * 1e999", "this number does not fit into a double | 1e999"},
        {"z $ 2", "unexpected '$' | $"},
        {"z * \xC3\xA9", "an operand is expected, not byte 0xc3 | \xC3"},
        {"z * log n", "the function 'log' has no arguments here | log"},
        {"z * log(n", "')' is missing at the end | log"},
        {"z * log(n; 2)", "')' is expected before ';' | log"},
        {"z, t", "unexpected ',' | ,"},
        // names
        {"z * tua", "unknown name 'tua': did you mean tau or t? | tua"},
        {"z * Log(n)", "unknown function 'Log': did you mean log, log2 or cos? | Log"},
        {"z * ln(n)", "unknown function 'ln': did you mean log? | ln"},
        {"z * foobarbaz",
         "unknown name 'foobarbaz'; known are tau, w, z, dot, n, t, h, H, l, layers, d, L, T, pi, e, egamma "
         "| foobarbaz"},
        {"z * tau(n)", "unknown function 'tau': did you mean max or tanh? | tau"},
        {"z * p",
         "unknown name 'p'; known are tau, w, z, dot, n, t, h, H, l, layers, d, L, T, pi, e, egamma | p"},
        // arguments
        {"z * log(n, 2)", "log takes 1 argument, not 2 | log(n, 2)"},
        {"z * where(n > 2, 1)", "where takes 3 arguments, not 2 | where(n > 2, 1)"},
        {"z * clamp(n)", "clamp takes 3 arguments, not 1 | clamp(n)"},
        {"z * log()", "an operand is expected, not ')' | )"},
        {"z + lookup(t, w)", "the first argument of lookup is the name of a vector parameter | t"},
        // not a law
        {"t", "the score does not depend on z | t"},
        {"1", "the score does not depend on z | 1"},
        {"z + dot", "a score is a function of z or of dot, not of both: z = s_base*dot | z + dot"},
        {"z * z", "the score must be linear in z: this is a product of two z | z * z"},
        {"1 + z*(2 + z)", "the score must be linear in z: this is a product of two z | z*(2 + z)"},
        {"log(n)/z", "the score must be linear in z: z divides | z"},
        {"z + exp(z)", "the score must be linear in z: 'exp' of z cannot be a table | exp(z)"},
        {"tanh(z)*n",
         "the score must be linear in z: 'tanh' of z cannot be a table; a softcap is written c*tanh(z/c), c "
         "a number | tanh(z)"},
        {"z^2", "the score must be linear in z: '^' of z cannot be a table | z^2"},
        {"where(z > 0, z, 0)", "a condition cannot depend on z | z > 0"},
        {"z * log(n + t)",
         "the factor of z must be a product of a function of n and a function of t, or sqrt of a sum of two "
         "such functions; this mixes them | log(n + t)"},
        {"z * (n + t)",
         "the factor of z must be a product of a function of n and a function of t, or sqrt of a sum of two "
         "such functions; this mixes them | (n + t)"},
        {"z * sqrt(n*t)",
         "the factor of z must be a product of a function of n and a function of t, or sqrt of a sum of two "
         "such functions; this mixes them | sqrt(n*t)"},
        {"z - t/n", "a summand without z may depend on t or on n, not on both: this mixes them | t/n"},
        {"z + where(t < n, 1, 0)",
         "a summand without z may depend on t or on n, not on both: this mixes them | where(t < n, 1, 0)"},
        // solvers
        {"z * gaussian_scale(t + 1, 4)", "gaussian_scale takes n, or a number in its place | t + 1"},
        {"z * gaussian_scale(n, n)",
         "gaussian_scale needs a number above 1 for C, the keys that attention spreads over | n"},
        {"z * gaussian_scale(n, tau/10)",
         "gaussian_scale needs a number above 1 for C, the keys that attention spreads over | tau/10"},
        {"z * gaussian_scale(n, log(-1))",
         "gaussian_scale needs a number above 1 for C, the keys that attention spreads over | log(-1)"},
        {"z * cosine_scale(n, 1, 4)", "cosine_scale needs a number of dimensions from 2 to 65536 | 1"},
        {"z * cosine_scale(n, d, 1)",
         "cosine_scale needs a number above 1 for C, the keys that attention spreads over | 1"},
        {"z * cosine_scale(1024, d, tau)", "accepted"},
        {"z * -", "the formula ends where an operand is expected | "},
    };
    CHECK(std::size(cases) >= 50);
    for (const auto& [text, wanted] : cases) {
        CAPTURE(std::string(text));
        CHECK(refusal(text) == wanted);
    }
}

TEST_CASE("wrong formulas: a constant part that is not finite is refused where it stands, not folded away") {
    const std::pair<const char*, const char*> cases[] = {
        {"z*(0/0)", "this is not a number everywhere | (0/0)"},
        {"z + 0*(1/0)*t", "this is inf everywhere | (1/0)"},
        {"z*(1 + 0*log(0))", "this is -inf everywhere | log(0)"},
        {"z*where(t < 2, 1, sqrt(1 - 2))", "this is not a number everywhere | sqrt(1 - 2)"},
        {"z + t*min(1, exp(1000))", "this is inf everywhere | exp(1000)"},
        {"z*max(1, 0/1)", "accepted"},
    };
    for (const auto& [text, expected] : cases) CHECK(refusal(text) == expected);
    // What is known only with the numbers of the model is not folded to 0 either.
    const auto first_not_finite = [](const std::string& text) {
        int64_t stage = 0;
        const law::BoundLaw law(law::stages_of({text}, 1), {{.name = "a", .init = "0"}}, {}, stage);
        return law.first_not_finite(8);
    };
    CHECK(first_not_finite("z*(1 + a/a)") == "the factor of z is not a number at n = 1");
    CHECK(first_not_finite("z*(1 + a*log(a))") == "the factor of z is not a number at n = 1");
    CHECK(first_not_finite("z*(1 + a*log(1 + a))") == "");
}

TEST_CASE("wrong formulas: size and depth") {
    CHECK(refusal(std::string(1 << 20, '1')) == "a formula of 1048576 bytes; the longest may have 4096 | 1");
    CHECK(refusal(std::string(200, '(') + "z" + std::string(200, ')')) == "nested more than 100 deep | (");
    CHECK(refusal(std::string(2000, '-') + "z") == "nested more than 100 deep | -");
    std::string sum = "z";
    while (sum.size() < 4000) sum += "+1";
    CHECK(refusal(sum) == "accepted");
    std::string powers = "z*2";
    while (powers.size() < 1000) powers += "^1";
    CHECK(refusal(powers) == "nested more than 100 deep | 1");
}

TEST_CASE("wrong formulas: what learns must be able to") {
    const std::vector<std::string> names = {"c", "w"};
    for (const auto& [text, wanted] :
         {std::pair("z*gaussian_scale(n, 2*c)", "what a solver is given cannot learn"),
          std::pair("z + lookup(w, c*t)", "an index cannot learn: it jumps from one element to the next")}) {
        CAPTURE(std::string(text));
        const law::Formula f = law::parse(text, law::score_variables, names);
        CHECK_THROWS_WITH_AS(law::derivative(f, 0), wanted, law::FormulaError);
    }
}

TEST_CASE("wrong formulas: the underline") {
    const law::FormulaError error("message", 4, 7);
    CHECK(law::underlined("z * tua + 1", error) == "z * tua + 1\n    ^^^");
    CHECK(law::underlined("z +", law::FormulaError("", 3, 4)) == "z +\n   ^");
    const std::string text = std::string(500, 'x') + "!";
    const std::string shown = law::underlined(text, law::FormulaError("", 500, 501));
    CHECK(shown.size() < 160);
    CHECK(shown.substr(0, 39) == std::string(38, 'x') + "!");
    CHECK(shown.substr(shown.find('\n')) == "\n" + std::string(38, ' ') + "^");
}
