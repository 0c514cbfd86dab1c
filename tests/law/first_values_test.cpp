// First values of parameters: what is wrong with them, and at which place of their text.
#include <doctest/doctest.h>

#include "law/library.h"

using namespace longreach;
using law::Parameter;
using law::Sharing;

namespace {

// "message | blamed part"
std::string refusal(const std::string& formula, const Parameter& p) {
    int64_t stage = 0;
    try {
        law::BoundLaw(law::stages_of({formula}, 1), {p}, {}, stage);
    } catch (const law::FormulaError& e) {
        CHECK(stage == -1);
        return std::string(e.what()) + " | " +
               p.init.substr(std::min(e.begin, p.init.size()), e.end - e.begin);
    }
    return "accepted";
}
std::string refusal(const std::string& init) {
    return refusal("z*c", {.name = "c", .init = init, .learn = Sharing::head});
}

}  // namespace

TEST_CASE("first values: formulas") {
    CHECK(refusal("2^(-h)") == "accepted");
    CHECK(refusal("log(0 - 1)") == "the first value is not a number | log(0 - 1)");
    CHECK(refusal("1/(h - 3)") == "the first value is inf in head 3 | 1/(h - 3)");
    CHECK(refusal("n") == "unknown name 'n'; known are h, H, l, layers, d, L, pi, e, egamma | n");
    CHECK(refusal("2*") == "the formula ends where an operand is expected | ");
}

TEST_CASE("first values: uniform") {
    CHECK(refusal("uniform(0, 2)") == "accepted");
    CHECK(refusal("uniform(min(0, 1), max(1, h))") == "accepted");
    CHECK(refusal("uniform(2)") == "uniform takes 2 arguments | uniform(2)");
    CHECK(refusal("uniform(2, 1)") == "uniform takes the smaller number first | uniform(2, 1)");
    CHECK(refusal("uniform(0, 2, 3)") == "unexpected ',' | ,");
    CHECK(refusal("uniform(0, tua)") ==
          "unknown name 'tua'; known are h, H, l, layers, d, L, pi, e, egamma | tua");
}

TEST_CASE("first values: parity") {
    CHECK(refusal("parity") == "accepted");
    const auto parity = [](const std::string& formula) {
        return refusal(formula, {.name = "c", .init = "parity"});
    };
    CHECK(parity("z - c*t") == "parity: c is not in the factor of z; give its first value | parity");
    CHECK(
        parity("z*log(n)^c") ==
        "parity: the factor of z at n = 1024 (half of L) is not linear in c; give its first value | parity");
    CHECK(
        parity("z/c") ==
        "parity: the factor of z at n = 1024 (half of L) does not grow with c; no value makes it that of the "
        "unscaled model | parity");
    // sqrt(gain + row_square), not the product.
    int64_t stage = 0;
    const law::BoundLaw rooted(law::stages_of({"z*c*sqrt(1 + t + log(n)/log(L/2)*3)"}, 1),
                               {{.name = "c", .init = "parity"}}, {}, stage);
    CHECK(rooted.value(0, 0) == doctest::Approx(0.5));
}

TEST_CASE("first values: what is learned as a logarithm is above 0") {
    const auto positive = [](const std::string& init) {
        return refusal("z*c", {.name = "c", .init = init, .learn = Sharing::head, .positive = true});
    };
    CHECK(positive("1e-9") == "accepted");
    CHECK(positive("0") == "its logarithm is learned, so the first value must be above 0, not 0 | 0");
    CHECK(positive("2 - h") ==
          "its logarithm is learned, so the first value must be above 0, not 0 in head 2 | 2 - h");
}
