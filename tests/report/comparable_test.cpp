// Only results measured on the same tokens are compared; the others are shown apart and named.
#include <doctest/doctest.h>

#include "report/page.h"
#include "report/summary.h"
#include "report/sweep_results.h"
#include "sample_runs.h"

using namespace longreach;
using namespace longreach::test;

namespace {

constexpr const char* head =
    "step,tokens,length,loss,standard_error,scored,documents,bits_per_byte,top1,fingerprint\n";
const std::string same = "65536,300,,0.5,00000000000000aa\n", other = "16384,3,,0.5,00000000000000bb\n";

bool contains(const std::string& text, const std::string& part) {
    return text.find(part) != std::string::npos;
}

// Two variants and two seeds, all evaluated on the same tokens at 256 and 512; a.seed1 also under "x" on
// others, with a loss that would be the lowest.
struct Sweep {
    TempDir dir;
    Sweep() {
        std::string runs;
        for (const char* variant : {"a", "b"})
            for (int seed : {1, 2}) {
                const std::string name = fmt::format("{}.seed{}", variant, seed);
                runs += fmt::format(R"({}{{"variant": "{}", "seed": {}, "directory": "{}",
                                        "evaluations": ["plain", "ntk"]}})",
                                    runs.empty() ? "" : ", ", variant, seed, name);
                const double loss = (variant[0] == 'a' ? 2 : 1.5) + 0.25 * seed;
                evaluation(name, "plain", {{256, loss}, {512, loss + 1}}, same);
                evaluation(name, "ntk", {{256, loss}, {512, loss + 0.5}}, same);
            }
        evaluation("a.seed1", "x", {{256, 0.5}, {512, 0.25}}, other);
        put(dir / "sweep.json", fmt::format(R"({{"name": "s", "baseline": "a", "runs": [{}]}})", runs));
    }
    void evaluation(const std::string& run, const std::string& label,
                    const std::vector<std::pair<int64_t, double>>& losses, const std::string& rest) const {
        const std::string at = dir / (run + "/eval/" + label);
        io::make_directories(at);
        std::string rows;
        for (const auto& [length, loss] : losses)
            rows += fmt::format("10,0,{},{},0.0625,{}", length, loss, rest);
        put(io::join_path(at, "val.csv"), head + rows);
    }
    report::Collection collected(const std::string& baseline = {}) const {
        return report::collect({dir.path()}, baseline);
    }
};

}  // namespace

TEST_CASE("comparable: an evaluation of other tokens is in no chart, headline or table of the others") {
    const Sweep sweep;
    const report::Collection c = sweep.collected();
    CHECK(c.measure.fingerprint == "00000000000000aa");
    REQUIRE(c.notes.size() == 1);
    CHECK(c.notes[0] ==
          "Evaluation x of a scored other tokens (16,384 tokens of 3 documents) and is shown apart.");
    const report::Summary s = report::summarize(c);
    for (const report::Series& series : s.series) CHECK(series.loss.empty() == (series.label == "x"));
    CHECK(report::headline(c, s)[0] ==
          "At 512 tokens of context, b + ntk has the lowest loss of 2 variants in 4 evaluations: 2.3750 ± "
          "0.1250 nats per token (2 seeds).");
    const std::string page = report::report_page(c);
    CHECK(contains(page, "Shown apart"));
    CHECK(contains(page, "Loss by context length on 16,384 tokens of 3 documents"));
    CHECK(contains(page,
                   "Loss of the same text read with different lengths of context: the same 65,536 tokens of "
                   "300 documents for all."));
    const std::string tables = report::sweep_tables(c);
    CHECK(contains(tables, "losses: the same 65,536 tokens of 300 documents for all\n"));
    CHECK(contains(tables, "a                2.3750 ±0.1250/0.0625  3.3750 ±0.1250/0.0625\n"));
    const size_t apart = tables.find("shown apart");
    REQUIRE(apart != std::string::npos);
    CHECK(tables.find("\na + x") > apart);
    // The gathered file has both, told apart by their fingerprints.
    report::write_sweep_csv(sweep.dir.path());
    const std::string csv = get(sweep.dir / "results.csv");
    CHECK(contains(csv, "a,1,plain,512,3.25,0.5,,0.0625,65536,300,00000000000000aa\n"));
    CHECK(contains(csv, "a,1,x,512,0.25,0.5,,0.0625,16384,3,00000000000000bb\n"));
}

TEST_CASE("comparable: the headline takes the longest length of the sweep's own evaluations") {
    const Sweep sweep;
    for (const char* run : {"a.seed1", "a.seed2", "b.seed1", "b.seed2"})
        sweep.evaluation(run, "long", {{512, 0.5}, {4096, 0.25}}, same);
    const report::Collection c = sweep.collected();
    const report::Summary s = report::summarize(c);
    CHECK(s.longest == 512);
    CHECK(s.lengths.back() == 4096);
    CHECK(contains(report::headline(c, s)[0], "b + ntk has the lowest loss of 2 variants in 4 evaluations"));
}

TEST_CASE("comparable: an evaluation of more tokens does not take the place of the models as trained") {
    const Sweep sweep;
    for (const char* run : {"a.seed1", "a.seed2", "b.seed1", "b.seed2"})
        sweep.evaluation(run, "more", {{512, 0.5}, {4096, 0.25}}, "131072,600,,0.5,00000000000000cc\n");
    std::string plan = get(sweep.dir / "sweep.json");
    for (size_t at = 0; (at = plan.find("\"ntk\"", at)) != std::string::npos; at += 10)
        plan.insert(at, "\"more\", ");
    put(sweep.dir / "sweep.json", plan);
    const report::Collection c = sweep.collected();
    CHECK(c.measure.fingerprint == "00000000000000aa");
    CHECK(contains(c.notes[0], "Evaluation more of a, b scored other tokens"));
    CHECK(report::summarize(c).longest == 512);
}

TEST_CASE("comparable: the lengths of one evaluation that scored other tokens are set apart one by one") {
    const Sweep sweep;
    put(sweep.dir / "b.seed2/eval/ntk/val.csv",
        head + ("10,0,256,1,0.1," + same) + ("10,0,512,0.01,0.1," + other));
    const report::Collection c = sweep.collected();
    CHECK(contains(c.notes[0], "Evaluation ntk of b (seed 2) scored other tokens"));
    const report::Summary s = report::summarize(c);
    CHECK(s.series.back().label == "ntk");
    CHECK(s.series.back().loss.at(256).size() == 2);
    CHECK(s.series.back().loss.at(512).size() == 1);
}

TEST_CASE("comparable: without fingerprints only equal counts compare, and never with a known one") {
    const TempDir dir;
    const auto add = [&](const std::string& name, const std::string& content) {
        io::make_directories(dir / name);
        put(dir / (name + "/val.csv"), content);
        return dir / name;
    };
    const std::string old_head = "step,tokens,length,loss,standard_error,scored,documents\n";
    const std::string a = add("a", old_head + "10,1,64,2,0.1,640,6\n"),
                      b = add("b", old_head + "10,1,64,3,0.1,640,6\n"),
                      few = add("few", old_head + "10,1,64,1,0,320,1\n"),
                      known = add("known", head + ("10,1,64,1,," + same));
    const report::Collection old = report::collect({a, b, few});
    CHECK(old.measure.text() == "640 tokens of 6 documents");
    CHECK(contains(old.notes.back(), "of few scored other tokens (320 tokens of 1 document)"));
    CHECK(std::isnan(old.runs[2].own.losses[0].standard_error));  // one document
    CHECK(contains(report::headline(old, report::summarize(old))[0], "a has the lowest loss of 2 variants"));
    CHECK(contains(report::report_page(old), "files of an earlier version do not record which"));
    CHECK(!contains(report::report_page(old), "Loss of the same text"));
    put(dir / "known/val.csv", head + std::string("10,1,64,1,,640,6,,0.5,00000000000000cc\n"));
    const report::Collection mixed = report::collect({a, b, known});
    CHECK(contains(mixed.notes.back(), "of known scored tokens that cannot be shown to be the same"));
}

TEST_CASE("comparable: samples of tasks compare within a seed") {
    const Sweep sweep;
    const auto tasks = [&](const std::string& run, const std::string& label, double accuracy,
                           const std::string& fingerprint) {
        put(sweep.dir / (run + "/eval/" + label + "/tasks.csv"),
            fmt::format("step,task,length,depth,samples,accuracy,accuracy_error,margin,margin_error,loss,"
                        "fingerprint\n"
                        "10,needle,64,50,16,{},0.1,1,0.1,2,{}\n",
                        accuracy, fingerprint));
    };
    for (const char* variant : {"a", "b"})
        for (int seed : {1, 2})
            tasks(fmt::format("{}.seed{}", variant, seed), "plain", 0.25 * seed, fmt::format("{:016}", seed));
    tasks("a.seed1", "x", 1, "00000000000000ff");
    const std::string tables = report::sweep_tables(sweep.collected());
    // Seeds with samples of their own are no strangers; other samples in the same seed are.
    CHECK(contains(tables, "a                             37.5 (25.0/50.0)\n"));
    CHECK(contains(tables, "Evaluation x of a asked other samples of needle"));
    CHECK(contains(tables, "a + x                      1  needle      64     50       16       100.0\n"));
}

TEST_CASE("report: any variant or evaluation may be the baseline; an unknown name lists them") {
    const Sweep sweep;
    CHECK(sweep.collected("b").baseline == "b");
    for (const char* name : {"b + ntk", "b+ntk"}) {
        const report::Collection c = sweep.collected(name);
        CHECK(c.baseline_name() == "b + ntk");
        CHECK(report::summarize(c).series[report::summarize(c).baseline].label == "ntk");
        CHECK(contains(report::sweep_tables(c), "loss minus b + ntk"));
        CHECK(contains(report::report_page(c), "Differences to b + ntk"));
    }
    try {
        sweep.collected("c");
        FAIL("accepted");
    } catch (const Error& e) {
        CHECK(e.code() == ExitCode::usage);
        CHECK(e.hint() == "the variants and their evaluations are a, b, a + ntk, a + x, b + ntk");
    }
}

TEST_CASE("report: tables.txt holds the paired interval of every pair of variants") {
    const TempDir dir;
    SampleWriter(SampleSweep{}).write_sweep(dir.path());
    const report::Collection c = report::collect({dir.path()});
    const std::string tables = report::sweep_tables(c, {.pairs = true});
    CHECK(contains(tables, "loss, every pair"));
    for (const char* pair : {"logn - rope ", "si-p-rope - rope ", "si-p-rope - logn "})
        CHECK_MESSAGE(contains(tables, std::string("\n") + pair), pair);
    CHECK(!contains(report::sweep_tables(c), "every pair"));
    // And what each variant loses with length.
    CHECK(contains(tables, "loss minus that at "));
}

TEST_CASE("report: a percentage gets an interval unless one of those it comes from leaves 0 to 100") {
    const auto tables_of = [](const std::vector<double>& a, const std::vector<double>& b) {
        const TempDir dir;
        json::Value runs = json::Value::array();
        for (const auto& [variant, values] : {std::pair{"a", a}, {"b", b}})
            for (size_t i = 0; i < values.size(); ++i) {
                const std::string name = fmt::format("{}.seed{}", variant, i + 1);
                runs.push(json::Value::object({{"variant", variant},
                                               {"seed", static_cast<int64_t>(i + 1)},
                                               {"directory", name},
                                               {"evaluations", json::Value::array({"plain"})}}));
                io::make_directories(dir / (name + "/eval/plain"));
                put(dir / (name + "/eval/plain/val.csv"),
                    head + fmt::format("10,1,64,3,0.1,640,4,1,{},{:016x}\n", values[i], 7));
            }
        put(dir / "sweep.json",
            json::write(json::Value::object({{"name", "s"}, {"baseline", "a"}, {"runs", runs}}),
                        json::Style::pretty));
        return report::sweep_tables(report::collect({dir.path()}));
    };
    // 50 and 60 percent, differences 9, 10, 11: the mean 10, its error 1 / sqrt(3), t of two degrees 4.303.
    CHECK(contains(tables_of({.50, .51, .52}, {.59, .61, .63}), "+10.0 [+7.5, +12.5]*"));
    // A task that some seeds learn: its own interval leaves 0 to 100.
    CHECK(contains(tables_of({.50, .51, .52}, {0, 1, 1}), "+15.7 (-50.0/+49.0/+48.0)"));
}

TEST_CASE("report: validations of different tokens are not joined by a line") {
    const TempDir dir;
    io::make_directories(dir / "run");
    put(dir / "run/val.csv", head + ("10,1,64,3,0.1," + other) + ("20,1,64,2.5,0.1," + other) +
                                 ("30,1,64,2,0.1," + other) + ("40,1,64,1,0.1," + same));
    const auto parts = [&] {  // of the line in the validation's chart
        const std::string page = report::report_page(report::collect({dir / "run"}));
        const size_t chart = page.find("data-chart=\"validation-64\""),
                     line = page.find("class=\"line\" d=\"", chart);
        const std::string path = page.substr(line, page.find("/>", line) - line);
        return std::count(path.begin(), path.end(), 'M');
    };
    CHECK(parts() == 2);
    CHECK(contains(report::report_page(report::collect({dir / "run"})), "are not joined with them"));
    put(dir / "run/val.csv", head + ("10,1,64,3,0.1," + same) + ("20,1,64,2.5,0.1," + same));
    CHECK(parts() == 1);
}
