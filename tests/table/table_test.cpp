// Numbers and names for people, cells, CSV and tables of text.
#include <doctest/doctest.h>

#include <cmath>
#include <cstdlib>
#include <limits>

#include "table/csv_lines.h"
#include "table/data_table.h"
#include "table/readable.h"

using namespace longreach;
using namespace longreach::test;

TEST_CASE("numbers read well") {
    CHECK(table::short_length(512) == "512");
    CHECK(table::short_length(1024) == "1K");
    CHECK(table::short_length(1536) == "1536");
    CHECK(table::short_length(65536) == "64K");
    CHECK(table::short_length(1 << 20) == "1M");
    CHECK(grouped(0) == "0");
    CHECK(grouped(999) == "999");
    CHECK(grouped(1000) == "1,000");
    CHECK(grouped(-123456) == "-123,456");
    CHECK(grouped(-1234567) == "-1,234,567");
    CHECK(table::fixed(-1.5, 2) == "−1.50");
    CHECK(table::fixed(-0.001, 2) == "0.00");
    CHECK(table::fixed(NAN, 2) == "not finite");
    CHECK(table::signed_fixed(0.25, 2) == "+0.25");
    CHECK(table::signed_fixed(-0.25, 2) == "−0.25");
    CHECK(table::significant(0.000123456) == "0.0001235");
    CHECK(table::significant(1e12) == "1e+12");
    CHECK(table::exact(0.1) == "0.1");
    CHECK(table::exact(1.0 / 3) == "0.3333333333333333");
    CHECK(table::exact(NAN) == "");
}

TEST_CASE("cells of a table show a few digits and carry all of them") {
    CHECK(table::spread_cell(0.123456, 0.01, 3).text == "0.123 ± 0.010");
    CHECK(table::spread_cell(0.123456, 0.01, 3).exact == "0.123456 ± 0.01");
    CHECK(table::spread_cell(0.5, NAN, 3).text == "0.500");
    CHECK(table::spread_cell(NAN, NAN, 3).text == "");
}

TEST_CASE("long names lose their middle, between characters") {
    CHECK(table::shortened("größer", 5) == "gr…er");
    CHECK(table::shortened("größer", 4) == "g…er");
    CHECK(table::shortened("größer", 6) == "größer");
    CHECK(table::shortened("äöüäöü", 3) == "ä…ü");
    CHECK(table::shortened("\xff\xff\xff", 2) == "…\xff");
    CHECK(table::shortened("", 5).empty());
}

TEST_CASE("CSV: words with commas and quotes, numbers to the last bit, nothing for what does not exist") {
    const table::DataTable table{
        "t",
        "title",
        {"a, b", "c"},
        {{std::string("say \"x\""), 0.1 + 0.2}, {1.0, std::numeric_limits<double>::quiet_NaN()}}};
    const std::vector<std::string> lines = lines_of(table::csv(table));
    REQUIRE(lines.size() == 3);
    CHECK(fields_of(lines[0]) == std::vector<std::string>{"a, b", "c"});
    CHECK(fields_of(lines[1])[0] == "say \"x\"");
    CHECK(std::strtod(fields_of(lines[1])[1].c_str(), nullptr) == 0.1 + 0.2);
    CHECK(fields_of(lines[2])[1].empty());
}

TEST_CASE("terminal: columns are aligned, whole numbers in full, a dash for what does not exist") {
    const table::DataTable table{
        "t", "title", {"n", "value"}, {{65536.0, 1.0 / 3}, {2.0, std::numeric_limits<double>::quiet_NaN()}}};
    CHECK(table::text_table(table) == "title\nn        value\n65536  0.33333\n2            -\n");
}
