// val.csv and positions.csv as they are written and as they are read back; runs side by side.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

#include "base/text.h"
#include "config/field_info.h"
#include "measure/key_tokens.h"
#include "eval/tables.h"
#include "io/temp_dir.h"
#include "report/collect.h"
#include "io/csv.h"
#include "report/page_parts.h"
#include "report/sweep_results.h"
#include "report/terminal.h"
#include "train/experiment.h"
#include "train/step_records.h"
#include "train/train_state.h"

using namespace longreach;
using namespace longreach::test;

namespace {

std::vector<eval::LengthResult> some_results() {
    std::vector<eval::LengthResult> results(2);
    results[0].length = 1024;
    results[0].loss = {10.0 / 3, 7};
    results[0].standard_error = 0.1 + 0.2;  // 0.30000000000000004: needs all its digits
    results[0].documents = 3;
    results[0].hits = {2, 7};
    results[0].top1_error = 0.7 / 3;
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

std::string file_of(const std::string& header, const std::vector<std::string>& lines) {
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

// A run whose only validation has these losses by length.
report::RunRecord run_with(const std::string& name, const std::vector<std::pair<int64_t, double>>& losses) {
    report::RunRecord run;
    run.name = name;
    for (const auto& [length, loss] : losses) run.own.losses.push_back({10, 0, length, loss});
    return run;
}

report::Collection collection_of(const std::vector<report::RunRecord>& runs) {
    report::Collection out;
    out.runs = runs;
    return out;
}

std::string error_reading(const std::string& content) {
    const TempDir dir;
    put(dir / "val.csv", content);
    const std::string message = error_of([&] { report::collect({dir.path()}); });
    const size_t at = message.find(dir.path());
    if (at == std::string::npos) return message;
    return message.substr(0, at) + "@" + message.substr(at + dir.path().size());
}

std::string page_of(const char* name) {
    return io::read_file(fmt::format("{}/data/formats/{}.md", LONGREACH_ROOT, name), 1 << 20,
                         io::Links::follow);
}

// The words in `code` of the first column of the table that follows `heading`, with commas between them.
std::string first_column(const std::string& page, const std::string& heading) {
    std::string words;
    size_t at = page.find("\n" + heading);
    REQUIRE(at != std::string::npos);
    at = page.find("\n|---|", at);
    for (at = page.find('\n', at + 1) + 1; page[at] == '|'; at = page.find('\n', at) + 1) {
        const std::string cell = page.substr(at + 1, page.find('|', at + 1) - at - 1);
        for (size_t tick = 0; (tick = cell.find('`', tick)) != cell.npos;) {
            const size_t end = cell.find('`', tick + 1);
            if (!words.empty()) words += ',';
            words += cell.substr(tick + 1, end - tick - 1);
            tick = end + 1;
        }
    }
    return words;
}

}  // namespace

TEST_CASE("val.csv reads back to the same bits") {
    const TempDir dir;
    const auto results = some_results();
    for (double bytes_per_token : {0.0, 3.7}) {
        put(dir / "val.csv",
            file_of(eval::val_file.header(), eval::val_lines(results, 250, 12345, bytes_per_token)));
        const report::RunRecord run = report::collect({dir.path() + "/"}).runs.at(0);
        CHECK(run.name == io::base_name(dir.path()));
        REQUIRE(run.own.losses.size() == 2);
        for (size_t i = 0; i < 2; ++i) {
            const report::LossRow& row = run.own.losses[i];
            CHECK(row.step == 250);
            CHECK(row.tokens == 12345);
            CHECK(row.length == results[i].length);
            CHECK(row.loss == results[i].loss.mean());
            // One document has no error, whatever an earlier version wrote.
            if (results[i].documents < 2)
                CHECK(std::isnan(row.standard_error));
            else
                CHECK(row.standard_error == results[i].standard_error);
            CHECK(row.top1 == results[i].top1());
            CHECK((row.top1_error == results[i].top1_error || std::isnan(results[i].top1_error)));
            CHECK(std::isnan(row.top1_error) == std::isnan(results[i].top1_error));
        }
    }
    const std::vector<std::string> columns = cells(eval::val_file.header());
    const std::vector<std::string> line = cells(eval::val_lines(results, 250, 12345, 2.0)[0]);
    REQUIRE(line.size() == columns.size());
    CHECK(line[0] == "250");
    CHECK(line[1] == "12345");
    CHECK(line[5] == "7");
    CHECK(line[6] == "3");
    CHECK(std::stod(line[7]) == doctest::Approx(10.0 / 21 / std::log(2.0) / 2));  // loss in bits, per byte
    CHECK(cells(eval::val_lines(results, 250, 12345, 0)[0])[7].empty());
    CHECK(columns[8] == "top1");
    CHECK(std::stod(line[8]) == 2.0 / 7);
    CHECK(columns[9] == "top1_error");
    CHECK(std::stod(line[9]) == 0.7 / 3);
    CHECK(cells(eval::val_lines(results, 250, 12345, 0)[1])[9].empty());  // unknown
}

TEST_CASE("positions.csv has a line per bucket that is not empty, and they add up") {
    const auto results = some_results();
    const std::vector<std::string> lines = eval::positions_lines(results, 9);
    CHECK(lines.size() == 4);
    double sum = 0;
    int64_t count = 0;
    for (const std::string& line : lines) {
        const std::vector<std::string> c = cells(line);
        REQUIRE(c.size() == cells(eval::positions_file.header()).size());
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
    put(dir / "val.csv", "step,tokens,length,loss\n10,1,64,9\n10,1,16,2.5\n20,1,16,2.25\n20,1,64,1.");
    const report::Collection c = report::collect({dir.path()});
    CHECK(c.runs[0].validated == 20);
    // Length 64 of step 20 is still being written; that of step 10 is old.
    CHECK(contains(report::comparison_table(c), "  2.2500\n"));
    CHECK_FALSE(contains(report::comparison_table(c), "64\n"));
}

TEST_CASE("csv: columns by name, whatever their order; a missing one and an empty cell are nothing") {
    const TempDir dir;
    put(dir / "t.csv", "b,step,a\n1.5,3,x\n,7,y\nnan,7,z\n9,9");
    const io::CsvTable t = *io::CsvTable::read(dir / "t.csv");
    REQUIRE(t.rows() == 3);  // the last line is still being written
    const size_t a = t.column("a"), b = t.column("b"), c = t.column("c");
    CHECK(t.measured(0, b) == 1.5);
    CHECK_FALSE(t.measured(1, b).has_value());
    CHECK(std::isnan(t.measured(2, b).value()));
    CHECK_FALSE(t.measured(0, c).has_value());
    CHECK(std::isnan(t.number(0, c)));
    CHECK(t.text(0, c) == "");
    CHECK(t.text(1, a) == "y");
    CHECK(error_of([&] { t.number(2, a); }).ends_with("t.csv:4: \"z\" is not a number"));
    CHECK(error_of([&] { t.required("c"); }).ends_with("t.csv: there is no column 'c'"));
    CHECK_FALSE(io::CsvTable::read(dir / "none.csv").has_value());
}

TEST_CASE("a val.csv that is not one is refused, with the line") {
    const std::string head = "step,tokens,length,loss,standard_error\n";
    CHECK(error_reading("step,loss\n1,2\n") == "3: @/val.csv: there is no column 'tokens'");
    CHECK(error_reading(head + "10,1,16\n") == "3: @/val.csv:2: 3 columns instead of 5");
    CHECK(error_reading(head + "10,1,16,2.5,0.1,\n") == "3: @/val.csv:2: 6 columns instead of 5");
    CHECK(error_reading(head + "ten,1,16,2.5,0.1\n") == "3: @/val.csv:2: \"ten\" is not an integer");
    CHECK(error_reading(head + "10,1,16,2.5,0.1\n20,1,16.5,2.5,0.1\n") ==
          "3: @/val.csv:3: \"16.5\" is not an integer");
    CHECK(error_reading(head + "10,1,16,2.5x,0.1\n") == "3: @/val.csv:2: \"2.5x\" is not a number");
    for (const std::string& begun : {std::string(), head.substr(0, 9), head, head + "10,1,16"})
        CHECK(error_reading(begun) == "no error");
}

TEST_CASE("report: the table has a column per length of any run and a dash where a run has none") {
    const report::RunRecord one = run_with("short", {{16, 2.5}, {64, 2.25}});
    const report::RunRecord two = run_with("a-much-longer-name-than-that", {{64, 1.125}, {256, NAN}});
    CHECK(report::comparison_table(collection_of({one, two})) ==
          "loss at context                   16      64  256\n"
          "short                         2.5000  2.2500    -\n"
          "a-much-longer-name-than-that       -  1.1250  nan\n"
          "losses: how many tokens were scored is not recorded\n");
}

TEST_CASE("report: the chart draws every run inside its frame, whatever the losses are") {
    using Losses = std::vector<std::pair<int64_t, double>>;
    const auto chart = [](const Losses& a, const Losses& b) {
        const report::RunRecord one = run_with("one", a), two = run_with("two", b);
        return report::comparison_chart(collection_of({one, two}));
    };
    const std::string plain = chart({{16, 3}, {64, 2}}, {{16, 1}, {64, 2}});
    CHECK(contains(plain, "  3.000 |    A"));
    CHECK(contains(plain, "  1.000 |    B"));
    CHECK(contains(plain, "*"));  // where both have the same loss
    CHECK(contains(plain, "A one"));
    for (const double odd : {static_cast<double>(NAN), static_cast<double>(INFINITY),
                             -static_cast<double>(INFINITY), 1e300, -1e300, 1.7e308, -1.7e308, 0.0}) {
        for (const auto& text : {chart({{16, odd}, {64, 2}}, {{16, 1}, {64, odd}}),
                                 chart({{16, odd}}, {{16, odd}}), chart({{16, odd}}, {{64, odd}})}) {
            CHECK(contains(text, "context"));
            CHECK(contains(text, "B two"));
        }
    }
    // A loss that is not finite has no place: one mark for each of the others, and one in the legend.
    for (const double odd : {static_cast<double>(NAN), static_cast<double>(INFINITY)}) {
        const std::string gap = chart({{16, 3}, {64, odd}, {256, 2}}, {});
        CHECK(std::count(gap.begin(), gap.end(), 'A') == 3);
        CHECK(contains(gap, "  3.000 |    A"));
        CHECK(contains(gap, "  2.000 |"));
    }
}

TEST_CASE("a val.csv of an earlier version, without some columns, is read as it is") {
    const TempDir dir;
    put(dir / "val.csv",
        "step,tokens,length,loss,standard_error,scored,documents,bits_per_byte,top1,fingerprint\n"
        "10,1,64,2.5,0.1,64,2,,0.25,0123456789abcdef\n");
    const report::LossRow row = report::collect({dir.path()}).runs.at(0).own.losses.at(0);
    CHECK(row.standard_error == 0.1);
    CHECK(row.top1 == 0.25);
    CHECK(std::isnan(row.top1_error));
    CHECK(row.fingerprint == "0123456789abcdef");
    put(dir / "val.csv",
        "step,tokens,length,loss,standard_error,scored,documents,bits_per_byte\n10,1,64,2.5,0.1,64,2,\n");
    const report::Collection c = report::collect({dir.path()});
    REQUIRE(c.runs[0].own.losses.size() == 1);
    CHECK(c.runs[0].own.losses[0].loss == 2.5);
    CHECK(std::isnan(c.runs[0].own.losses[0].top1));
}

TEST_CASE("text cannot leave its place in a table, and a value cannot open a place of the template") {
    table::DataTable table;
    table.caption = "<i>";
    table.header = {"<b>", "n"};
    table.rows = {{table::name_cell("</td>"), {"1", "\"2\""}}};
    const std::string html = report::table_html({report::Collection(), report::Summary()}, table);
    CHECK(html.find("<i>") == std::string::npos);
    CHECK(html.find("<b>") == std::string::npos);
    CHECK(html.find("&lt;/td&gt;") != std::string::npos);
    CHECK(html.find("data-v=\"&quot;2&quot;\"") != std::string::npos);
    CHECK(report::filled("chip", {{"series", "{{name}}"}, {"swatch", ""}, {"name", "x"}}).find("{{name}}") !=
          std::string::npos);
    CHECK_THROWS(report::filled("chip", {{"series", "1"}}));
    CHECK_THROWS(report::filled("no such piece", {}));
}

TEST_CASE("data/formats lists the columns of every record file in their order") {
    const std::string records = page_of("records");
    const auto documented = [&](const std::string& file) {
        return first_column(records, "`" + file + "`, ");
    };
    CHECK(documented("val.csv") == eval::val_file.header());
    CHECK(documented("positions.csv") == eval::positions_file.header());
    CHECK(documented("tasks.csv") == measure::tasks_file.header());
    CHECK(documented("key_tokens.csv") == measure::key_tokens_file.header());
    CHECK(documented("probe.csv") == measure::probe_file.header());
    CHECK(documented("metrics.jsonl") == join(train::metrics_file.names(), ","));
    CHECK(documented("timing.jsonl") == join(train::timing_file.names(), ","));
    const std::string sweeps = page_of("sweeps");
    const auto sentence = [&](const std::string& file) {
        const size_t begin = sweeps.find("\n`" + file + "` has ");
        REQUIRE(begin != std::string::npos);
        const size_t end = sweeps.find_first_of("(;", begin);
        std::vector<std::string> columns;
        for (size_t tick = sweeps.find("` has ", begin); (tick = sweeps.find('`', tick + 1)) < end;) {
            const size_t close = sweeps.find('`', tick + 1);
            columns.push_back(sweeps.substr(tick + 1, close - tick - 1));
            tick = close;
        }
        return join(columns, ",");
    };
    CHECK(sentence("results.csv") == report::results_file.header());
    CHECK(sentence("results_sets.csv") == report::results_sets_file.header());
    CHECK(sentence("results_tasks.csv") == report::results_tasks_file.header());
}

TEST_CASE("data/formats lists the members of state.json and the tasks") {
    std::vector<std::string> members;
    const json::Value state = train::TrainState().to_json();
    for (const json::Member& m : state.as_object()) members.push_back(m.key);
    CHECK(first_column(page_of("checkpoint"), "`state.json` is ") == join(members, ","));

    const config::FieldInfo fields = config::describe<train::Experiment>();
    const config::FieldInfo* kind = config::find_field(fields, "data.task.kind");
    REQUIRE(kind != nullptr);
    const std::string tasks = page_of("tasks");
    for (const config::FieldInfo::Choice& choice : kind->choices)
        if (choice.name != "none")
            CHECK_MESSAGE(tasks.find("\n| `" + choice.name + "` | ") != tasks.npos, choice.name);
}

TEST_CASE("a JSON Lines record: members without a value are left out, others are null if not finite") {
    const TempDir dir;
    train::MetricsRow row;
    row.step = 3;
    row.loss = 2.5;
    row.max_score = NAN;
    row.layer_grad_norms = {0.25, NAN};
    const std::string line = train::metrics_file.line(row);
    CHECK(line ==
          "{\"step\":3,\"tokens\":0,\"context\":0,\"loss\":2.5,\"grad_norm\":null,\"lr\":null,\"skipped\":0,"
          "\"max_score\":null,\"layer_grad_norms\":[0.25,null]}");
    CHECK(train::metrics_file.line({}).find("layer") == std::string::npos);
    CHECK(train::metrics_file.read(dir.path()).empty());
    CHECK_FALSE(train::metrics_file.last(dir.path()).has_value());
    put(dir / "metrics.jsonl",
        "{\"step\":1,\"loss\":\"x\",\"layer_grad_norms\":7}\n\n" + line + "\n{\"step\":4");
    const std::vector<train::MetricsRow> rows = train::metrics_file.read(dir.path());
    REQUIRE(rows.size() == 2);
    CHECK(rows[0].step == 1);
    CHECK(std::isnan(rows[0].loss));
    CHECK(rows[0].layer_grad_norms.empty());
    REQUIRE(rows[1].layer_grad_norms.size() == 2);
    CHECK(rows[1].layer_grad_norms[0] == 0.25);
    CHECK(std::isnan(rows[1].layer_grad_norms[1]));
    CHECK(rows[1].loss == 2.5);
    CHECK_FALSE(rows[1].spikes.has_value());
    CHECK(std::isnan(rows[1].max_score.value()));
    CHECK(train::metrics_file.last(dir.path()).value().step == 3);
}

TEST_CASE("a record file: columns by name, blanks, defaults for what a file lacks") {
    const TempDir dir;
    put(dir / "val.csv", "loss,length,step,tokens,documents,extra\nnan,64,10,1,,x\n2.5,128,10,1,3,y\n20,");
    const std::vector<eval::LossRow> rows = eval::val_file.read(dir.path());
    REQUIRE(rows.size() == 2);
    CHECK(std::isnan(rows[0].loss));
    CHECK(std::isnan(rows[0].documents));
    CHECK(rows[1].documents == 3);
    CHECK_FALSE(rows[1].bits_per_byte.has_value());
    CHECK(eval::val_file.line(rows[0]) == "10,1,64,nan,,nan,,,nan,,");
    CHECK(eval::val_file.read(dir / "none").empty());
    measure::TaskRow task;
    task.step = 1;
    task.task = "needle";
    task.length = 8;
    task.depth = 0;
    CHECK(measure::tasks_file.line(task) == "1,needle,8,0,0,0,,,,nan,");
}
