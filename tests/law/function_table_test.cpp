// Every row of the table of functions: the parser, the kernels and the reference have it, with the same values.
#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <limits>

#include "kernels/law_value.h"
#include "law/compile.h"
#include "law/function_table.h"
#include "reference/formula.h"

using namespace longreach;
using doctest::Approx;
using law::Formula;
using law::FunctionRow;

namespace {

const std::vector<std::string> names = {"a", "b", "c", "w"};
constexpr size_t vector = 3;
constexpr float elements[] = {0.7f, -2.0f, 5.0f};

// The function of a, b and c; a lookup of w at b.
std::string text_of(const FunctionRow& row) {
    if (row.function == law::Function::lookup) return "lookup(w, b)";
    const std::string symbol = row.name;
    if (row.strength == law::Strength::sign) return symbol + "a";
    if (row.strength > law::Strength::sum && row.strength < law::Strength::call) return "a" + symbol + "b";
    if (row.strength < law::Strength::call) return "a " + symbol + " b";
    const size_t count = law::arguments_of(row.function);
    return symbol + (count == 1 ? "(a)" : count == 2 ? "(a, b)" : "(a, b, c)");
}

Formula parsed(const FunctionRow& row) {
    return law::parse(text_of(row), {}, names);
}

double value(const Formula& f, const double* abc) {
    const std::vector<double> w(std::begin(elements), std::end(elements));
    law::Values v;
    for (size_t i = 0; i < 3; ++i) v.parameters.emplace_back(abc + i, 1);
    v.parameters.emplace_back(w);
    return law::evaluate(f, v);
}

// body(a, b, c) for all triples of points, b moved by `shift` and c by twice as much.
template <class Body>
void for_points(const std::vector<float>& points, float shift, Body body) {
    for (const float a : points)
        for (const float b : points)
            for (const float c : points) body(a, b + shift, c + 2 * shift);
}

bool same_number(double a, double b) {
    return std::bit_cast<uint64_t>(a) == std::bit_cast<uint64_t>(b) || (std::isnan(a) && std::isnan(b));
}

}  // namespace

TEST_CASE("functions: each is read by its name, with the arguments that its row states") {
    for (const FunctionRow& row : law::function_table()) {
        CAPTURE(std::string(row.name));
        CHECK(std::string(row.help) != "");
        const Formula f = parsed(row);
        CHECK(f->function == row.function);
        CHECK(f->arguments.size() == law::arguments_of(row.function));
        CHECK(law::write(f, names) == text_of(row));
        CHECK((law::find_function(row.name) == &row) == (row.strength == law::Strength::call));
        if (law::is_solved(row.function) || row.function == law::Function::lookup) continue;
        CHECK(law_arguments(law::operation_of(row.function)) == static_cast<int>(f->arguments.size()));
    }
    CHECK(law::find_function("nothing") == nullptr);
}

TEST_CASE("functions: the kernels compute each, bit for bit as formulas are evaluated") {
    const std::vector<law::Input> inputs = {
        {.learned = true}, {.learned = true}, {.learned = true}, {.learned = true, .size = 3}};
    constexpr float inf = std::numeric_limits<float>::infinity();
    const std::vector<float> points = {-inf, -1e30f, -300.5f, -2, -0.3f, -0.0f, 0,     1e-30f,
                                       0.4f, 1,      2,       3,  17.9f, 800,   1e30f, std::nanf("")};
    for (const FunctionRow& row : law::function_table()) {
        if (law::is_solved(row.function)) continue;
        CAPTURE(std::string(row.name));
        const Formula f = parsed(row);
        const law::CompiledTable compiled = law::compile(f, law::Variable::n, inputs);
        int wrong = 0;
        for_points(points, 0, [&](float a, float b, float c) {
            const float* of[] = {&a, &b, &c, elements};
            LawInputs in{};
            for (size_t i = 0; i < compiled.parameters.size(); ++i) {
                in.parameters[i] = of[compiled.parameters[i]];
                in.sizes[i] = static_cast<int32_t>(inputs[compiled.parameters[i]].size);
            }
            const double abc[] = {a, b, c}, wanted = value(f, abc);
            float entry = 0;
            law_values(compiled.program, in, {.end = 1}, &entry, 1);
            const bool equal = same_number(law_value(compiled.program, in, 0, 0, 0), wanted) &&
                               same_number(entry, static_cast<float>(wanted));
            wrong += equal ? 0 : 1;
        });
        CHECK(wrong == 0);
    }
}

// Points away from kinks; those at which the value is not finite are left out.
TEST_CASE("functions: values and derivatives are those of the reference") {
    using Dual = reference::Dual<double, 3>;
    for (const FunctionRow& row : law::function_table()) {
        if (law::is_solved(row.function)) continue;
        CAPTURE(std::string(row.name));
        const Formula f = parsed(row);
        std::vector<Formula> slopes;
        for (size_t i = 0; i < 3 && row.function != law::Function::lookup; ++i)
            slopes.push_back(law::derivative(f, i));
        int compared = 0;
        for_points({-2.3f, -0.7f, 0.4f, 1.1f, 3.6f}, 0.0125f, [&](float a, float b, float c) {
            const double abc[] = {a, b, c}, own = value(f, abc);
            if (!std::isfinite(own)) return;
            std::map<std::string, Dual> numbers;
            for (size_t i = 0; i < 3; ++i) {
                Dual x = abc[i];
                x.slope[i] = 1;
                numbers[names[i]] = x;
            }
            const std::vector<Dual> w(std::begin(elements), std::end(elements));
            const Dual other =
                reference::FormulaWalker<Dual>(text_of(row), numbers, {{names[vector], w}}).value();
            CHECK(own == Approx(other.value).epsilon(1e-12).scale(1));
            for (size_t i = 0; i < slopes.size(); ++i)
                CHECK(value(slopes[i], abc) == Approx(other.slope[i]).epsilon(1e-12).scale(1));
            ++compared;
        });
        CHECK(compared > 20);
    }
}

TEST_CASE("functions: those that are solved for have the values of the reference and refuse to learn") {
    for (const FunctionRow& row : law::function_table()) {
        if (!law::is_solved(row.function)) continue;
        CAPTURE(std::string(row.name));
        const Formula f = parsed(row);
        for (const double n : {3, 40, 2000}) {
            // gaussian_scale(n, 4), cosine_scale(n, 64, 4)
            const double abc[] = {n, law::arguments_of(row.function) == 3 ? 64.0 : 4.0, 4};
            const double other = reference::FormulaWalker<double>(
                                     text_of(row), {{"a", abc[0]}, {"b", abc[1]}, {"c", abc[2]}}, {})
                                     .value();
            CHECK(value(f, abc) == Approx(other).epsilon(1e-4));  // the reference integrates by trapezoids
        }
        for (size_t i = 0; i < law::arguments_of(row.function); ++i)
            CHECK_THROWS_AS(law::derivative(f, i), law::FormulaError);
    }
}
