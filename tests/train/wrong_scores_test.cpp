// Scores written as formulas: what is said about wrong ones.
#include "train/wrong.h"

using namespace longreach;
using namespace longreach::test;

TEST_CASE("wrong scores: syntax") {
    check_all({
        {R"({"stages": [{"steps": 1}], "model": {"attention": {"score": "z +"}}})",
         "model.attention.score (c.json:1:61): the formula ends where an operand is expected: z +[]"},
        {R"({"stages": [{"steps": 1}], "model": {"attention": {"score": "z * (t"}}})",
         "model.attention.score (c.json:1:61): ')' is missing at the end: z * [(]t"},
        {R"({"stages": [{"steps": 1}], "model": {"attention": {"score": "z t"}}})",
         "model.attention.score (c.json:1:61): an operator is missing before 't': z [t]"},
        {R"({"stages": [{"steps": 1}], "model": {"attention": {"score": "2z"}}})",
         "model.attention.score (c.json:1:61): a number and a name without an operator between them: use "
         "'*': [2z]"},
        {R"({"stages": [{"steps": 1}], "model": {"attention": {"score": "z ** 2"}}})",
         "model.attention.score (c.json:1:61): a power is written '^': z [**] 2"},
        {R"({"stages": [{"steps": 1}], "model": {"attention": {"score": "z = t"}}})",
         "model.attention.score (c.json:1:61): '=' assigns nothing here; to compare, use '==': z [=] t"},
        {R"({"stages": [{"steps": 1}], "model": {"attention": {"score": "z * 1 < t < 2"}}})",
         "model.attention.score (c.json:1:61): comparisons do not chain: use parentheses: z * 1 < t [<] 2"},
        {R"j({"stages": [{"steps": 1}], "model": {"attention": {"score": "z * ln(n)"}}})j",
         "model.attention.score (c.json:1:61): unknown function 'ln': did you mean log?: z * [ln](n)"},
        {R"j({"stages": [{"steps": 1}], "model": {"attention": {"score": "z * log(n, 2)"}}})j",
         "model.attention.score (c.json:1:61): log takes 1 argument, not 2: z * [log(n, 2)]"},
        {R"({"stages": [{"steps": 1}], "model": {"attention": {"score": "z * 1e999"}}})",
         "model.attention.score (c.json:1:61): this number does not fit into a double: z * [1e999]"},
        {R"({"stages": [{"steps": 1}], "model": {"attention": {"score": "z * \u00e9"}}})",
         "model.attention.score (c.json:1:61): an operand is expected, not byte 0xc3: z * [\\xc3]\\xa9"},
        {R"({"stages": [{"steps": 1}], "model": {"attention": {"score": "z\n+ $"}}})",
         "model.attention.score (c.json:1:61): an operand is expected, not '$': z\\n+ [$]"},
        {R"({"stages": [{"steps": 1}], "model": {"attention": {"score": ""}}})",
         "model.attention.score (c.json:1:61): the formula is empty: []"},
        {R"({"stages": [{"steps": 1}], "model": {"attention": {"score": 3}}})",
         "model.attention.score (c.json:1:61): expected a formula or the name of a law"},
        {R"({"stages": [{"steps": 1}], "model": {"attention": {"score": []}}})",
         "model.attention.score (c.json:1:61): expected a formula or the name of a law"},
        {R"({"stages": [{"steps": 1}], "model": {"attention": {"score": ["logn", 3]}}})",
         "model.attention.score.1 (c.json:1:70): expected a formula or the name of a law"},
        {R"({"stages": [{"steps": 1}], "model": {"attention": {"score": ["logn", "z +"]}}})",
         "model.attention.score.1 (c.json:1:70): the formula ends where an operand is expected: z +[]"},
        {R"({"stages": [{"steps": 1}], "model": {"attention": {"score": {"kind": "logn"}}}})",
         "model.attention.score (c.json:1:61): expected a formula or the name of a law"},
    });
}

TEST_CASE("wrong scores: names") {
    check_all({
        {R"({"stages": [{"steps": 1}], "model": {"attention": {"score": "scale_invariance"}}})",
         "model.attention.score (c.json:1:61): no law is named scale_invariance: did you mean "
         "scale_invariant?"},
        {R"({"stages": [{"steps": 1}], "model": {"attention": {"score": "logm"}}})",
         "model.attention.score (c.json:1:61): no law is named logm: did you mean logn?"},
        {R"({"stages": [{"steps": 1}], "model": {"attention": {"score": "alibi2"}}})",
         "model.attention.score (c.json:1:61): no law is named alibi2: did you mean alibi?"},
        {R"({"stages": [{"steps": 1}], "model": {"attention": {"score": "log"}}})",
         "model.attention.score (c.json:1:61): no law is named log: did you mean logn, logn_bias or "
         "logn_fixed04?"},
        {R"({"stages": [{"steps": 1}], "model": {"attention": {"score": "z * tua"}}})",
         "model.attention.score (c.json:1:61): unknown name 'tua': did you mean t?: z * [tua]"},
        {R"({"stages": [{"steps": 1}], "model": {"attention": {"score": "z * tua", "params": {"tau": {"init": 10}}}}})",
         "model.attention.score (c.json:1:61): unknown name 'tua': did you mean t?: z * [tua]"},
        {R"({"stages": [{"steps": 1}], "model": {"attention": {"score": "z - t*slope"}}})",
         "model.attention.score (c.json:1:61): unknown name 'slope'; known are z, dot, n, t, h, H, l, "
         "layers, d, L, T, pi, e, egamma: z - t*[slope]"},
        {R"({"stages": [{"steps": 1}], "model": {"attention": {"score": "z * p"}}})",
         "model.attention.score (c.json:1:61): unknown name 'p'; known are z, dot, n, t, h, H, l, layers, d, "
         "L, T, pi, e, egamma: z * [p]"},
        {R"({"stages": [{"steps": 1}], "model": {"attention": {"score": "logn * z"}}})",
         "model.attention.score (c.json:1:61): unknown name 'logn'; known are z, dot, n, t, h, H, l, layers, "
         "d, L, T, pi, e, egamma: [logn] * z"},
        {R"({"stages": [{"steps": 1}], "model": {"attention": {"score": ["logn", "logn"]}}})",
         "model.attention.score.1 (c.json:1:70): two laws have a parameter s: write one of them as a "
         "formula"},
    });
}

TEST_CASE("wrong scores: what cannot be separated") {
    check_all({
        {R"j({"stages": [{"steps": 1}], "model": {"attention": {"score": "z * log(n + t)"}}})j",
         "model.attention.score (c.json:1:61): the factor of z must be a product of a function of n and a "
         "function of t, or sqrt of a sum of two such functions; this mixes them: z * [log(n + t)]"},
        {R"({"stages": [{"steps": 1}], "model": {"attention": {"score": "z - t/n"}}})",
         "model.attention.score (c.json:1:61): a summand without z may depend on t or on n, not on both: "
         "this mixes them: z - [t/n]"},
        {R"({"stages": [{"steps": 1}], "model": {"attention": {"score": "z * z"}}})",
         "model.attention.score (c.json:1:61): the score must be linear in z: this is a product of two z: [z "
         "* z]"},
        {R"j({"stages": [{"steps": 1}], "model": {"attention": {"score": "log(z)"}}})j",
         "model.attention.score (c.json:1:61): the score must be linear in z: 'log' of z cannot be a table: "
         "[log(z)]"},
        {R"({"stages": [{"steps": 1}], "model": {"attention": {"score": "t"}}})",
         "model.attention.score (c.json:1:61): the score does not depend on z: [t]"},
        {R"({"stages": [{"steps": 1}], "model": {"attention": {"score": "z + dot"}}})",
         "model.attention.score (c.json:1:61): a score is a function of z or of dot, not of both: z = "
         "s_base*dot: [z + dot]"},
        {R"j({"stages": [{"steps": 1}], "model": {"attention": {"score": "tanh(z)"}}})j",
         "model.attention.score (c.json:1:61): the score must be linear in z: 'tanh' of z cannot be a table; "
         "a softcap is written c*tanh(z/c), c a number: [tanh(z)]"},
        {R"j({"stages": [{"steps": 1}], "model": {"attention": {"score": "where(z > 0, z, 0)"}}})j",
         "model.attention.score (c.json:1:61): a condition cannot depend on z: where([z > 0], z, 0)"},
        {R"({"stages": [{"steps": 1}], "model": {"attention": {"score": ["logn", "dot*2"]}}})",
         "model.attention.score.1 (c.json:1:70): only the first stage may use dot; z is the score of the "
         "stage before: [dot*2]"},
        {R"j({"stages": [{"steps": 1}], "model": {"attention": {"score": ["z - t", "5*tanh(z/5)"]}}})j",
         "model.attention.score.1 (c.json:1:71): a softcap belongs to the first stage: it comes before all "
         "factors: [5*tanh(z/5)]"},
        {R"j({"stages": [{"steps": 1}], "model": {"attention": {"score": "z * log(n)*sqrt(1 + t + n)*sqrt(2 + t + n)"}}})j",
         "model.attention.score (c.json:1:61): the factor of z must be a product of a function of n and a "
         "function of t, or sqrt of a sum of two such functions; this mixes them: z * [log(n)*sqrt(1 + t + "
         "n)*sqrt(2 + t + n)]"},
    });
}

TEST_CASE("wrong scores: not finite") {
    check_all({
        {R"j({"stages": [{"steps": 1}], "model": {"attention": {"score": "z * log(log(n))"}}})j",
         "model.attention.score (c.json:1:61): the factor of z is -inf at n = 1; scores and derivatives must "
         "be finite in f32 at every n and t up to 16384"},
        {R"j({"stages": [{"steps": 1}], "model": {"attention": {"score": "z * log(n - 1)"}}})j",
         "model.attention.score (c.json:1:61): the factor of z is -inf at n = 1; scores and derivatives must "
         "be finite in f32 at every n and t up to 16384"},
        {R"({"stages": [{"steps": 1}], "model": {"attention": {"score": "z - 1/t"}}})",
         "model.attention.score (c.json:1:61): the bias is -inf at t = 0; scores and derivatives must be "
         "finite in f32 at every n and t up to 16384"},
        {R"j({"stages": [{"steps": 1}], "model": {"attention": {"score": "z - 1e40*(t == 65535)"}}, "eval": {"lengths": [65536]}})j",
         "model.attention.score (c.json:1:61): the bias is -1e+40 at t = 65535; scores and derivatives must "
         "be finite in f32 at every n and t up to 65536"},
        {R"j({"stages": [{"steps": 1}], "model": {"attention": {"score": "z - 1e40*(t == 65535)"}}})j",
         "no problem"},
        {R"j({"stages": [{"steps": 1}], "model": {"attention": {"score": "z - sqrt(a*t)", "params": {"a": {"init": 1, "learn": "head"}}}}})j",
         "model.attention.score (c.json:1:61): the derivative of the bias by a is not a number at t = 0; "
         "scores and derivatives must be finite in f32 at every n and t up to 16384"},
        {R"j({"stages": [{"steps": 1}], "model": {"attention": {"score": "z / (h - 1)"}}})j",
         "model.attention.score (c.json:1:61): the factor of z is inf at n = 1 in head 1; scores and "
         "derivatives must be finite in f32 at every n and t up to 16384"},
        {R"j({"stages": [{"steps": 1}], "model": {"attention": {"score": "z * log(2 - l)"}}})j",
         "model.attention.score (c.json:1:61): the factor of z is -inf at n = 1 in layer 2; scores and "
         "derivatives must be finite in f32 at every n and t up to 16384"},
        {R"j({"stages": [{"steps": 1}], "model": {"attention": {"score": "z * log(T - 2000)"}}})j",
         "model.attention.score (c.json:1:61): the factor of z is not a number at n = 1, at T = 1024; scores "
         "and derivatives must be finite in f32 at every n and t up to 16384"},
        {R"j({"stages": [{"steps": 1}], "model": {"attention": {"score": "z*sqrt(t - log(n))"}}})j",
         "model.attention.score (c.json:1:61): the factor of z is the root of -0.693147 at n = 2; scores and "
         "derivatives must be finite in f32 at every n and t up to 16384"},
    });
}

TEST_CASE("wrong scores: summands that cancel, and sinks") {
    check_all({
        {R"({"stages": [{"steps": 1}], "model": {"attention": {"score": "z + log(n) - t", "sink": "zero"}}})",
         "model.attention.score (c.json:1:61): remove log(n): it is equal for all keys of a query and "
         "cancels in the softmax, but not against a sink"},
        {R"({"stages": [{"steps": 1}], "model": {"attention": {"score": "si_interp", "sink": "zero"}}})",
         "model.attention.score (c.json:1:61): sqrt of a sum over n and t is computed up to a number for each "
         "query, which cancels in the softmax, but not against a sink"},
        {R"({"stages": [{"steps": 1}], "model": {"attention": {"score": "z + 1", "sink": "learned"}}})",
         "model.attention.score (c.json:1:61): remove 1: it is equal for all keys of a query and cancels in "
         "the softmax, but not against a sink"},
        {R"({"stages": [{"steps": 1}], "model": {"attention": {"score": "z + log(n) - t"}}})", "no problem"},
        {R"({"stages": [{"steps": 1}], "model": {"attention": {"score": "z*log(n) - t/8", "sink": "learned"}}})",
         "no problem"},
    });
}

TEST_CASE("wrong scores: size and depth") {
    const auto score = [](const std::string& text) {
        return problems(
            {R"({"stages": [{"steps": 1}], "model": {"attention": {"score": ")" + text + R"("}}})", ""});
    };
    const std::string at = "model.attention.score (c.json:1:61): ";
    CHECK(score(std::string(1000000, '1')) ==
          at + "a formula of 1000000 bytes; the longest may have 4096: [1]" + std::string(40, '1') + "...");
    CHECK(score("z*" + std::string(200, '(') + "n" + std::string(200, ')')) ==
          at + "nested more than 100 deep: ..." + std::string(40, '(') + "[(]" + std::string(40, '(') +
              "...");
    CHECK(score("z*" + std::string(2000, '-') + "n") == at + "nested more than 100 deep: ..." +
                                                            std::string(40, '-') + "[-]" +
                                                            std::string(40, '-') + "...");
    CHECK(score(std::string(1000000, 'x')).size() < 300);
}
