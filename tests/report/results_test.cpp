// val.csv and positions.csv as they are written and as they are read back; runs side by side.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

#include "eval/tables.h"
#include "io/temp_dir.h"
#include "report/run_results.h"
#include "report/terminal.h"

using namespace longreach;
using namespace longreach::test;

namespace {

std::vector<LengthResult> some_results() {
    std::vector<LengthResult> results(2);
    results[0].length = 1024;
    results[0].loss = {10.0 / 3, 7};
    results[0].standard_error = 0.1 + 0.2;  // 0.30000000000000004: needs all its digits
    results[0].documents = 3;
    results[0].hits = {2, 7};
    results[0].by_sequence = {{1.5, 2}, {0, 0}, {2.25, 5}};
    results[0].by_document = {{10.0 / 3, 7}};
    results[1].length = 4096;
    results[1].loss = {1e-300, 3};
    results[1].standard_error = 5e-324;
    results[1].documents = 1;
    results[1].hits = {3, 3};
    results[1].by_sequence = {{1, 3}};
    return results;
}

std::string file_of(const char* header, const std::vector<std::string>& lines) {
    std::string text = std::string(header) + "\n";
    for (const std::string& line : lines) text += line + "\n";
    return text;
}

std::vector<std::string> cells(const std::string& line) {
    std::vector<std::string> out{""};
    for (char c : line) {
        if (c == ',')
            out.emplace_back();
        else
            out.back() += c;
    }
    return out;
}

std::string error_reading(const std::string& content) {
    const TempDir dir;
    put(dir / "val.csv", content);
    const std::string message = error_of([&] { read_results(dir.path()); });
    const size_t at = message.find(dir.path());
    if (at == std::string::npos) return message;
    return message.substr(0, at) + "@" + message.substr(at + dir.path().size());
}

}  // namespace

TEST_CASE("val.csv reads back to the same bits") {
    const TempDir dir;
    const auto results = some_results();
    for (double bytes_per_token : {0.0, 3.7}) {
        put(dir / "val.csv", file_of(val_header, val_lines(results, 250, 12345, bytes_per_token)));
        const RunResults read = read_results(dir.path() + "/");
        CHECK(read.name == base_name(dir.path()));
        CHECK(read.step == 250);
        REQUIRE(read.lengths.size() == 2);
        for (size_t i = 0; i < 2; ++i) {
            CHECK(read.lengths[i].length == results[i].length);
            CHECK(read.lengths[i].loss == results[i].loss.mean());
            CHECK(read.lengths[i].standard_error == results[i].standard_error);
        }
    }
    const std::vector<std::string> columns = cells(val_header);
    const std::vector<std::string> line = cells(val_lines(results, 250, 12345, 2.0)[0]);
    REQUIRE(line.size() == columns.size());
    CHECK(line[0] == "250");
    CHECK(line[1] == "12345");
    CHECK(line[5] == "7");
    CHECK(line[6] == "3");
    CHECK(std::stod(line[7]) == doctest::Approx(10.0 / 21 / std::log(2.0) / 2));  // loss in bits, per byte
    CHECK(cells(val_lines(results, 250, 12345, 0)[0])[7].empty());
    CHECK(columns[8] == "top1");
    CHECK(std::stod(line[8]) == 2.0 / 7);
}

TEST_CASE("positions.csv has a line per bucket that is not empty, and they add up") {
    const auto results = some_results();
    const std::vector<std::string> lines = positions_lines(results, 9);
    CHECK(lines.size() == 4);
    double sum = 0;
    int64_t count = 0;
    for (const std::string& line : lines) {
        const std::vector<std::string> c = cells(line);
        REQUIRE(c.size() == cells(positions_header).size());
        CHECK(c[0] == "9");
        if (c[1] != "1024" || c[2] != "sequence") continue;
        CHECK((c[3] == "1" || c[3] == "4"));
        sum += std::stod(c[4]) * std::stod(c[5]);
        count += std::stoll(c[5]);
    }
    CHECK(count == 7);
    CHECK(sum == doctest::Approx(3.75));
}

TEST_CASE("of several validations the newest counts, and an unfinished line does not") {
    const TempDir dir;
    const std::string row = ",1,16,2.5,0.1,64,2,,0.5\n";
    put(dir / "val.csv", std::string(val_header) + "\n10,1,64,9,0.1,64,2,,0.5\n10" + row +
                             "20,1,16,2.25,0.1,64,2,,0.5\n20,1,64,1.");
    const RunResults read = read_results(dir.path());
    CHECK(read.step == 20);
    REQUIRE(read.lengths.size() == 1);  // length 64 of step 20 is still being written; that of step 10 is old
    CHECK(read.lengths[0].loss == 2.25);
}

TEST_CASE("a val.csv that is not one is refused, with the line") {
    const std::string head = std::string(val_header) + "\n";
    CHECK(error_reading("") == "3: @/val.csv: the first line is not the header of a val.csv");
    CHECK(error_reading("step,loss\n") == "3: @/val.csv: the first line is not the header of a val.csv");
    CHECK(error_reading(val_header) == "3: @/val.csv holds no validation yet");
    CHECK(error_reading(head) == "3: @/val.csv holds no validation yet");
    CHECK(error_reading(head + "10,1,16") == "3: @/val.csv holds no validation yet");
    CHECK(error_reading(head + "10,1,16,2.5\n") == "3: @/val.csv:2: 4 columns instead of 9");
    CHECK(error_reading(head + "10,1,16,2.5,0.1,64,2,,0.5,\n") == "3: @/val.csv:2: 10 columns instead of 9");
    CHECK(error_reading(head + "ten,1,16,2.5,0.1,64,2,,0.5\n") == "3: @/val.csv:2: 'ten' is not a number");
    CHECK(error_reading(head + "10,1,16,2.5,0.1,64,2,,0.5\n20,1,16.5,2.5,0.1,64,2,,0.5\n") ==
          "3: @/val.csv:3: '16.5' is not a number");
    CHECK(error_reading(head + "10,1,16,2.5x,0.1,64,2,,0.5\n") == "3: @/val.csv:2: '2.5x' is not a number");
    const TempDir empty;
    CHECK(error_of([&] { read_results(empty.path()); }).starts_with("3: "));
}

TEST_CASE("report: the table has a column per length of any run and a dash where a run has none") {
    const std::vector<RunResults> runs{
        {"short", "", 10, {{16, 2.5, 0}, {64, 2.25, 0}}},
        {"a-much-longer-name-than-that", "", 10, {{64, 1.125, 0}, {256, NAN, 0}}}};
    CHECK(comparison_table(runs) ==
          "loss at context                      16       64      256\n"
          "short                            2.5000   2.2500        -\n"
          "a-much-longer-name-than-that          -   1.1250      nan\n");
}

TEST_CASE("report: the chart draws every run inside its frame, whatever the losses are") {
    const auto chart = [](const std::vector<LengthLoss>& a, const std::vector<LengthLoss>& b) {
        return comparison_chart({{"one", "", 10, a}, {"two", "", 10, b}});
    };
    const std::string plain = chart({{16, 3, 0}, {64, 2, 0}}, {{16, 1, 0}, {64, 2, 0}});
    CHECK(contains(plain, "  3.000 |    A"));
    CHECK(contains(plain, "  1.000 |    B"));
    CHECK(contains(plain, "*"));  // where both have the same loss
    CHECK(contains(plain, "A one"));
    for (const double odd : {static_cast<double>(NAN), static_cast<double>(INFINITY),
                             -static_cast<double>(INFINITY), 1e300, -1e300, 0.0}) {
        for (const auto& text : {chart({{16, odd, 0}, {64, 2, 0}}, {{16, 1, 0}, {64, odd, 0}}),
                                 chart({{16, odd, 0}}, {{16, odd, 0}}), chart({{16, odd, 0}}, {})}) {
            CHECK(contains(text, "context"));
            CHECK(contains(text, "B two"));
        }
    }
    // A loss that is not finite has no place: one mark for each of the others, and one in the legend.
    for (const double odd : {static_cast<double>(NAN), static_cast<double>(INFINITY)}) {
        const std::string gap = chart({{16, 3, 0}, {64, odd, 0}, {256, 2, 0}}, {});
        CHECK(std::count(gap.begin(), gap.end(), 'A') == 3);
        CHECK(contains(gap, "  3.000 |    A"));
        CHECK(contains(gap, "  2.000 |"));
    }
}

TEST_CASE("a val.csv of an earlier version, without top1, is read as it is") {
    const TempDir dir;
    put(dir / "val.csv",
        "step,tokens,length,loss,standard_error,scored,documents,bits_per_byte\n10,1,64,2.5,0.1,64,2,\n");
    const RunResults read = read_results(dir.path());
    REQUIRE(read.lengths.size() == 1);
    CHECK(read.lengths[0].loss == 2.5);
    CHECK(val_columns(val_header) == 9);
    CHECK(val_columns("step,tokens,length,loss,standard_error,scored,documents,bits_per_byte") == 8);
    CHECK(val_columns("step,tokens,length,loss") == 0);
    CHECK(first_cells("1,2,,4", 3) == "1,2,");
    CHECK(first_cells("1,2,,4", 4) == "1,2,,4");
}
