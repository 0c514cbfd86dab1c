// Programs for the kernels against the formulas they come from.
#include <doctest/doctest.h>

#include <cmath>

#include "law/compile.h"

using namespace longreach;
using law::Variable;

namespace {

const std::vector<std::string> names = {"a", "b", "w", "fixed"};
const std::vector<law::Input> inputs = {{.learned = true},
                                        {.learned = true, .by_head = true},
                                        {.learned = true, .size = 4, .by_head = true},
                                        {.value = 10}};

// Every entry of a program for two heads, as the kernels compute it.
std::vector<std::vector<float>> run(const law::CompiledTable& compiled, Variable over, int64_t first,
                                    int64_t count) {
    const float a = 0.5f, b[] = {3.0f, 2.0f}, w[] = {1, 2, 3, 4, 5, 6, 7, 8};
    std::vector<std::vector<double>> tables;
    LawInputs in{};
    for (size_t i = 0; i < compiled.parameters.size(); ++i) {
        const size_t p = compiled.parameters[i];
        in.parameters[i] = p == 0 ? &a : p == 1 ? b : w;
        in.sizes[i] = static_cast<int32_t>(inputs[p].size);
        in.parameter_step[i] = inputs[p].by_head ? static_cast<int32_t>(inputs[p].size) : 0;
    }
    for (const law::Formula& f : compiled.tables) {
        std::vector<double> both;
        for (int h : {0, 1}) {
            law::Values v;
            v[Variable::h] = h;
            v[Variable::H] = 2;
            const std::vector<double> one = law::tabulate(f, over, first, count, v);
            both.insert(both.end(), one.begin(), one.end());
        }
        tables.push_back(both);
    }
    for (size_t i = 0; i < tables.size(); ++i) {
        in.tables[i] = tables[i].data();
        in.table_step[i] = count;
    }
    std::vector<std::vector<float>> rows(2, std::vector<float>(static_cast<size_t>(count)));
    for (int64_t h : {0, 1})
        law_values(compiled.program, in, {.row = h, .end = count, .first = static_cast<double>(first)},
                   rows[static_cast<size_t>(h)].data(), 1);
    return rows;
}

}  // namespace

TEST_CASE("compile: programs give what the formulas give, and tabulate what does not learn") {
    struct Case {
        const char* text;
        int instructions;
        size_t tables;
    };
    for (const Case& c :
         {Case{"a*sqrt(2*log(0.1*n + 1.9))", 3, 1}, Case{"a", 1, 0}, Case{"sqrt(1 + 2*log1p(n/a))", 9, 0},
          Case{"-b*2*log1p(n/fixed)", 6, 1}, Case{"where(h < 1, a*log(n), b*sqrt(2*log(n + 1)))", 8, 3},
          Case{"lookup(w, min(3, floor(log2(n))))", 2, 1}, Case{"a*log(n) + b*log(n)", 7, 1},
          Case{"clamp(a*n, b, 2*b) + min(a, b)^2 + max(a, b) - abs(a - b)", 23, 0},
          Case{"exp(-a)*expm1(a)*log(b)*log2(b)*tanh(a)*sigmoid(a)*softplus(a)*erf(a)*sin(a)*cos(b)", 30, 0},
          Case{"(a < b) + (a <= b) + (a > b) + (a >= b) + (a == b) + (a != b) + ceil(a)/b", 28, 0}}) {
        CAPTURE(std::string(c.text));
        const law::Formula f = law::parse(c.text, law::score_variables, names);
        const law::CompiledTable compiled = law::compile(f, Variable::n, inputs);
        CHECK(compiled.learned);
        CHECK(compiled.program.count == c.instructions);
        CHECK(compiled.tables.size() == c.tables);
        const auto rows = run(compiled, Variable::n, 1, 40);
        const std::vector<double> w0 = {1, 2, 3, 4}, w1 = {5, 6, 7, 8};
        const double a = 0.5, b[] = {3, 2}, fixed = 10;
        for (int h : {0, 1})
            for (int n = 1; n <= 40; ++n) {
                law::Values v;
                v[Variable::n] = n;
                v[Variable::h] = h;
                v[Variable::H] = 2;
                v.parameters = {std::span(&a, 1), std::span(&b[h], 1), h == 0 ? w0 : w1,
                                std::span(&fixed, 1)};
                CHECK(rows[static_cast<size_t>(h)][static_cast<size_t>(n - 1)] ==
                      static_cast<float>(law::evaluate(f, v)));
            }
    }
}

TEST_CASE("compile: without learned parameters the whole formula is a table") {
    const law::CompiledTable c = law::compile(
        law::parse("sqrt(1 + 2*log1p(t/fixed))", law::score_variables, names), Variable::t, inputs);
    CHECK_FALSE(c.learned);
    REQUIRE(c.tables.size() == 1);
    CHECK(law::write(c.tables[0], names) == "sqrt(1 + 2*log1p(t/10))");
    CHECK(law::compile(law::parse("2^-h*t", law::score_variables, names), Variable::t, inputs).by_head);
}

TEST_CASE("compile: what is too long for the kernels is refused") {
    std::string text = "a";
    for (int i = 0; i < 100; ++i) text += "*a";
    CHECK_THROWS_AS(law::compile(law::parse(text, law::score_variables, names), Variable::t, inputs),
                    law::FormulaError);
    std::string deep = "a";
    for (int i = 0; i < 18; ++i) deep = "a + (b*(" + deep + "))";
    CHECK_THROWS_AS(law::compile(law::parse(deep, law::score_variables, names), Variable::t, inputs),
                    law::FormulaError);
}
