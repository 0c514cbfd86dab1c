// Tables: columns, CSV that reads back, deviations of samples.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <set>
#include <sstream>

#include "theory/study.h"

using namespace longreach;

namespace {

std::vector<std::string> lines_of(const std::string& text) {
    std::istringstream in(text);
    std::vector<std::string> lines;
    for (std::string line; std::getline(in, line);) lines.push_back(line);
    return lines;
}

// Fields of one CSV line, quotes undone.
std::vector<std::string> fields_of(const std::string& line) {
    std::vector<std::string> fields = {""};
    bool quoted = false;
    for (size_t i = 0; i < line.size(); ++i) {
        if (quoted && line[i] == '"' && i + 1 < line.size() && line[i + 1] == '"')
            fields.back() += line[i++];
        else if (line[i] == '"')
            quoted = !quoted;
        else if (line[i] == ',' && !quoted)
            fields.emplace_back();
        else
            fields.back() += line[i];
    }
    return fields;
}

const StudyOptions small = {{16, 64}, {16}, 100, 2};

}  // namespace

TEST_CASE("CSV: words with commas and quotes, numbers to the last bit, nothing for what does not exist") {
    const NumberTable table{
        "t",
        "title",
        {"a, b", "c"},
        {{std::string("say \"x\""), 0.1 + 0.2}, {1.0, std::numeric_limits<double>::quiet_NaN()}}};
    const std::vector<std::string> lines = lines_of(csv(table));
    REQUIRE(lines.size() == 3);
    CHECK(fields_of(lines[0]) == std::vector<std::string>{"a, b", "c"});
    CHECK(fields_of(lines[1])[0] == "say \"x\"");
    CHECK(std::strtod(fields_of(lines[1])[1].c_str(), nullptr) == 0.1 + 0.2);
    CHECK(fields_of(lines[2])[1].empty());
}

TEST_CASE("terminal: columns are aligned, whole numbers in full, a dash for what does not exist") {
    const NumberTable table{
        "t", "title", {"n", "value"}, {{65536.0, 1.0 / 3}, {2.0, std::numeric_limits<double>::quiet_NaN()}}};
    CHECK(aligned(table) == "title\n      n    value\n  65536  0.33333\n      2        -\n");
}

TEST_CASE(
    "every table: a name of its own, as many fields in each line as columns, samples near exact values") {
    std::vector<NumberTable> all;
    for (auto make : {extreme_tables, participation_tables, entropy_tables, cosine_tables, gradient_tables})
        for (NumberTable& table : make(small)) all.push_back(std::move(table));
    std::set<std::string> names;
    int deviations = 0;
    for (const NumberTable& table : all) {
        CAPTURE(table.name);
        CHECK(names.insert(table.name).second);
        const std::vector<std::string> lines = lines_of(csv(table));
        REQUIRE(lines.size() == table.rows.size() + 1);
        CHECK(table.rows.size() >= 2);
        CHECK(fields_of(lines[0]) == table.columns);
        for (const std::string& line : lines) CHECK(fields_of(line).size() == table.columns.size());
        const auto at = std::find(table.columns.begin(), table.columns.end(), "deviations");
        if (at == table.columns.end()) continue;
        for (const std::vector<Cell>& row : table.rows) {
            CHECK(std::abs(row[static_cast<size_t>(at - table.columns.begin())].value) < 4);
            ++deviations;
        }
    }
    // Three tables of 2 n by 8 r, and three quantities of 2 n for one dimension.
    CHECK(deviations == 3 * 2 * 8 + 3 * 2);
}

TEST_CASE("columns that programs read") {
    using Columns = std::vector<std::string>;
    CHECK(extreme_tables(small)[0].columns ==
          Columns{"n", "r=0.25", "r=0.5", "r=0.75", "r=1", "r=1.25", "r=1.5", "r=2", "r=3"});
    CHECK(entropy_tables(small)[2].columns ==
          Columns{"n", "r", "alpha", "exact", "sampled", "standard_error", "deviations"});
    CHECK(cosine_tables(small)[0].columns == Columns{"d", "C", "n=16", "n=64"});
    const PhaseDiagram diagram = phase_diagram(16, 8, 4, 6, 1, {});
    const NumberTable table = phase_table(diagram);
    CHECK(table.name == "phase_n16_d8");
    CHECK(table.columns == Columns{"rho", "gamma", "gamma_over_critical", "lambda", "eta", "lambda_simplex"});
    REQUIRE(table.rows.size() == 16);
    CHECK(table.rows[6][0].value == diagram.rho(2));  // second row of cells, third column
    CHECK(table.rows[6][1].value == diagram.gamma(1));
    CHECK(table.rows[6][3].value == diagram.angle_ratio[6]);
    CHECK(table.rows[6][4].value == diagram.gradient_norm[6]);
    CHECK(angle_ratio_map(diagram).values == diagram.angle_ratio);
    CHECK(gradient_norm_map(diagram).values == diagram.gradient_norm);
}
