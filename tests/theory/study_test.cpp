// Tables: columns, CSV that reads back, deviations of samples.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <set>

#include "base/rng.h"
#include "table/csv_lines.h"
#include "law/extreme_values.h"
#include "theory/cosine.h"
#include "theory/sampled_softmax.h"
#include "theory/study.h"

using namespace longreach;
using namespace longreach::test;

namespace {

double number(const table::Cell& cell) {
    return cell.exact.empty() ? NAN : std::strtod(cell.exact.c_str(), nullptr);
}

const theory::StudyOptions small = {{16, 64}, {16}, 100, 2};

}  // namespace

TEST_CASE(
    "every table: a name of its own, as many fields in each line as columns, samples near exact values") {
    std::vector<table::DataTable> all;
    for (auto make : {theory::extreme_tables, theory::participation_tables, theory::entropy_tables,
                      theory::cosine_tables, theory::gradient_tables})
        for (table::DataTable& table : make(small)) all.push_back(std::move(table));
    std::set<std::string> names;
    int deviations = 0;
    for (const table::DataTable& table : all) {
        CAPTURE(table.name);
        CHECK(names.insert(table.name).second);
        const std::vector<std::string> lines = lines_of(table::csv(table));
        REQUIRE(lines.size() == table.rows.size() + 1);
        CHECK(table.rows.size() >= 2);
        CHECK(fields_of(lines[0]) == table.header);
        for (const std::string& line : lines) CHECK(fields_of(line).size() == table.header.size());
        const auto at = std::find(table.header.begin(), table.header.end(), "deviations");
        if (at == table.header.end()) continue;
        for (const std::vector<table::Cell>& row : table.rows) {
            CHECK(std::abs(number(row[static_cast<size_t>(at - table.header.begin())])) < 4);
            ++deviations;
        }
    }
    // Three tables of 2 n by 8 r, and three quantities of 2 n for one dimension.
    CHECK(deviations == 3 * 2 * 8 + 3 * 2);
}

TEST_CASE("deviations of heavy-tailed columns: a right value stays within four, whatever the seed") {
    // Rare samples carry E[sum w^2] at small r: a set without them has a low mean and a small error at once.
    for (const uint64_t seed : {2u, 3u}) {
        const table::DataTable table = theory::participation_tables({{256}, {16}, 400, seed})[2];
        REQUIRE(table.header[6] == "deviations");
        for (const std::vector<table::Cell>& row : table.rows) {
            CAPTURE(seed);
            CAPTURE(number(row[1]));
            CHECK(std::abs(number(row[6])) < 3.4);
            CHECK(std::abs(number(row[6])) <= std::abs((number(row[4]) - number(row[3])) / number(row[5])));
        }
    }
    // Power laws cut at 1000, of known mean. One standard error makes -5 to -9 of the worst seed.
    for (const double index : {1.3, 2.0, 3.0}) {
        const double cut = 1000, a = 1 / index, u = std::pow(cut, -index);
        const double exact = cut * u + (1 - std::pow(u, 1 - a)) / (1 - a);
        double worst = 0, plain_worst = 0;
        for (uint64_t seed = 1; seed <= 60; ++seed) {
            const Rng rng(seed, Purpose::test, 7);
            std::vector<double> values;
            for (uint64_t i = 0; i < 400; ++i)
                values.push_back(std::min(cut, std::pow(1 - rng.uniform(i), -a)));
            const theory::Estimate e = theory::estimate_mean(values);
            worst = std::min(worst, e.deviations(exact));
            plain_worst = std::min(plain_worst, (e.mean - exact) / e.error);
        }
        CAPTURE(index);
        CHECK(worst > -4);
        CHECK(plain_worst < worst);
        if (index < 2) CHECK(plain_worst < -4);
    }
}

TEST_CASE("deviations: a wrong value is still seen, and light tails count almost in full") {
    std::vector<double> heavy, light;
    for (int i = 0; i < 400; ++i) {
        const double u = (i * 37 % 400 + 0.5) / 400;
        heavy.push_back(std::pow(u, -1.0 / 3));  // mean 1.5
        light.push_back(u);
    }
    const theory::Estimate skewed = theory::estimate_mean(heavy), even = theory::estimate_mean(light);
    CHECK(skewed.stretch_below > 1.3);
    CHECK(even.stretch_below < 1.2);
    CHECK(even.stretch_above < 1.2);
    CHECK(std::abs(even.deviations(0.5)) < 1e-9);
    CHECK(skewed.deviations(2) < -4);
    CHECK(skewed.deviations(1.2) > 4);
    CHECK(std::isnan(theory::estimate_mean(std::vector<double>{1, 1}).deviations(1)));
    // Batch means of many values: the same mean.
    std::vector<double> many;
    for (int k = 0; k < 10; ++k) many.insert(many.end(), heavy.begin(), heavy.end());
    CHECK(theory::estimate_mean(many).mean == doctest::Approx(skewed.mean));
}

TEST_CASE("the limits of E[1/w_max] stand next to the exact values") {
    const std::vector<table::DataTable> tables = theory::extreme_tables(small);
    const auto limit =
        std::find_if(tables.begin(), tables.end(), [](const auto& t) { return t.name == "extreme_limit"; });
    REQUIRE(limit != tables.end());
    CHECK(limit->header == tables[0].header);
    CHECK(number(limit->rows[1][5]) == doctest::Approx(5));    // r = 1.25
    CHECK(number(limit->rows[1][8]) == doctest::Approx(1.5));  // r = 3
}

TEST_CASE("number of keys from which cosines are no longer like normal scores") {
    for (const int64_t d : {16, 64, 128})
        for (const double excess : {0.05, 0.1, 0.2}) {
            CAPTURE(d);
            CAPTURE(excess);
            const law::CosineScores scores(d);
            const double n = theory::cosine_context(scores, 4, excess);
            CHECK(scores.solve_scale(n, 4) ==
                  doctest::Approx((1 + excess) * law::solve_gaussian_scale(n, 4)).epsilon(1e-8));
        }
    // 64 dimensions, C = 4: 1.099 at 4,096 keys, 1.164 at 65,536, 1.237 at 1,048,576.
    const law::CosineScores scores(64);
    const double ten = theory::cosine_context(scores, 4, 0.1),
                 twenty = theory::cosine_context(scores, 4, 0.2);
    CHECK(ten > 4096);
    CHECK(ten < 8192);
    CHECK(twenty > 65536);
    CHECK(twenty < 1048576);
    CHECK(std::isnan(theory::cosine_context(law::CosineScores(256), 4, 0.2)));
}

TEST_CASE("columns that programs read") {
    using Columns = std::vector<std::string>;
    CHECK(theory::extreme_tables(small)[0].header ==
          Columns{"n", "r=0.25", "r=0.5", "r=0.75", "r=1", "r=1.25", "r=1.5", "r=2", "r=3"});
    CHECK(theory::entropy_tables(small)[2].header ==
          Columns{"n", "r", "alpha", "exact", "sampled", "standard_error", "deviations"});
    CHECK(theory::cosine_tables(small)[0].header == Columns{"d", "C", "n=16", "n=64"});
    const theory::PhaseDiagram diagram = theory::phase_diagram(16, 8, 4, 6, 1, {});
    const table::DataTable table = theory::phase_table(diagram);
    CHECK(table.name == "phase_n16_d8");
    CHECK(table.header == Columns{"rho", "gamma", "gamma_over_critical", "lambda", "eta", "lambda_simplex",
                                  "lambda_limit", "eta_limit"});
    REQUIRE(table.rows.size() == 16);
    CHECK(number(table.rows[6][0]) == diagram.rho(2));  // second row of cells, third column
    CHECK(number(table.rows[6][1]) == diagram.gamma(1));
    CHECK(number(table.rows[6][3]) == diagram.angle_ratio[6]);
    CHECK(number(table.rows[6][4]) == diagram.gradient_norm[6]);
    CHECK(number(table.rows[6][6]) == theory::simplex_angle_ratio_limit(diagram.rho(2), diagram.gamma(1)));
    CHECK(number(table.rows[6][7]) ==
          theory::simplex_gradient_norm_limit(8, diagram.rho(2), diagram.gamma(1)));
    CHECK(theory::angle_ratio_map(diagram).values == diagram.angle_ratio);
    CHECK(theory::gradient_norm_map(diagram).values == diagram.gradient_norm);
}
