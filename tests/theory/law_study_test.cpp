// What a law does to attention over normal scores, against the integrals.
#include <doctest/doctest.h>

#include <cmath>
#include <numeric>

#include "law/extreme_values.h"
#include "theory/gaussian.h"
#include "theory/law_study.h"

using namespace longreach;
using doctest::Approx;

namespace {

law::BoundLaw bound(const std::string& formula, const law::ModelNumbers& model = {.heads = 2}) {
    int64_t stage = 0;
    return {{{formula}}, {}, model, stage};
}

}  // namespace

TEST_CASE("law study: E[1/w_max] and entropy of a factor equal the integrals") {
    for (const int64_t n : {16, 256, 1024}) {
        CAPTURE(n);
        const auto keys = static_cast<double>(n);
        for (const auto& [formula, alpha] : {std::pair<std::string, double>("z", 1),
                                             {"z*sqrt(2*log(n))", theory::freezing_scale(keys)},
                                             {"dot*8*2", 2}}) {
            CAPTURE(formula);
            const theory::Concentration c = theory::concentration(bound(formula), 0, n, 400, 1);
            CHECK(std::abs(c.inverse_largest.deviations(law::gaussian_inverse_largest_weight(keys, alpha))) <
                  4);
            CHECK(std::abs(c.entropy.deviations(theory::gaussian_entropy(keys, alpha))) < 4);
        }
    }
}

TEST_CASE("law study: the entropy within a decade is that of its keys alone") {
    // Scores are independent, so those of each decade are a softmax of their own: 9, 90 and 900 keys.
    const theory::Concentration c = theory::concentration(bound("z*2"), 0, 1000, 400, 1);
    REQUIRE(c.range_entropy.size() == 4);
    CHECK(c.range_entropy[0] == 0);
    // Samples deviate by at most 0.5, 400 of them by 0.025.
    for (const auto& [decade, keys] : {std::pair<size_t, double>(1, 9), {2, 90}, {3, 900}})
        CHECK(c.range_entropy[decade] == Approx(theory::gaussian_entropy(keys, 2)).epsilon(0.03));
    // What all decades share, such as a bias, changes nothing.
    const theory::Concentration far =
        theory::concentration(bound("z*2 - where(t < 100, 0, 30)"), 0, 1000, 400, 1);
    CHECK(far.mass[3] < 1e-9);
    for (size_t decade = 0; decade < 4; ++decade)
        CHECK(far.range_entropy[decade] == Approx(c.range_entropy[decade]));
}

TEST_CASE("law study: scale-invariant attention spreads its weight evenly over far decades") {
    int64_t stage = 0;
    const law::NamedLaw* named = law::find_law("scale_invariant");
    const law::BoundLaw law(law::stages_of({named->formula}, named->parameters.size()), named->parameters,
                            {.heads = 1}, stage);
    const theory::Concentration c = theory::concentration(law, 0, 10001, 400, 1);
    REQUIRE(c.mass.size() == 6);
    CHECK(std::accumulate(c.mass.begin(), c.mass.end(), 0.0) == Approx(1));
    // Expected masses of exp(score) are in the ratio 10.2 : 28.4 : 36.6 : 37.8; normalised weights follow roughly.
    CHECK(c.mass[4] / c.mass[3] == Approx(37.82 / 36.62).epsilon(0.15));
    CHECK(c.mass[3] / c.mass[2] == Approx(36.62 / 28.45).epsilon(0.15));
    const theory::Concentration plain = theory::concentration(bound("z"), 0, 10001, 20, 1);
    CHECK(plain.mass[4] == Approx(0.9).epsilon(0.02));
}

TEST_CASE("law study: tables have the values of the law, charts leave out what is constant") {
    theory::LawStudy study{.heads = {0, 1}, .ns = {1, 4, 64}, .samples = 2};
    const law::BoundLaw law = bound("z*log(n) - where(h == 0, t/8, 0)");
    const std::vector<table::DataTable> tables = theory::law_tables(law, study);
    REQUIRE(tables.size() == 2);
    CHECK(tables[0].header == std::vector<std::string>{"n", "row(n), head 0", "gain(t), head 0",
                                                       "bias(t), head 0", "row(n), head 1", "gain(t), head 1",
                                                       "bias(t), head 1"});
    CHECK(tables[0].rows[1][1].text == "1.3863");
    CHECK(tables[0].rows[1][3].text == "-0.375");
    CHECK(tables[0].rows[1][6].text == "0");
    CHECK(tables[1].rows.size() == 4);
    const std::vector<plot::LineChart> charts = theory::law_charts(law, study);
    REQUIRE(charts.size() == 2);
    CHECK(charts[0].id == "row");
    CHECK(charts[1].id == "bias");
    CHECK(charts[1].lines.size() == 2);
}
