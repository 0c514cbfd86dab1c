// Evaluations that score the same models by windows and by suffixes stand in one table.
#include <doctest/doctest.h>

#include "io/temp_dir.h"
#include "report/page.h"
#include "report/sweep_results.h"
#include "report/two_ways.h"

using namespace longreach;
using namespace longreach::test;

namespace {

// Variants a and b, seeds 1 and 2, trained at 16 tokens and scored at 8, 16 and 64.
struct Sweep {
    TempDir dir;
    explicit Sweep(const std::string& labels = R"(["plain", "suffix"])") {
        std::string runs;
        for (const char* variant : {"a", "b"})
            for (int seed : {1, 2}) {
                const std::string run = fmt::format("{}.seed{}", variant, seed);
                runs += fmt::format(
                    R"({}{{ "variant": "{}", "seed": {}, "directory": "{}", "evaluations": {} }})",
                    runs.empty() ? "" : ",", variant, seed, run, labels);
                io::make_directories(dir / run);
                put(dir / (run + "/config.json"), R"({ "stages": [{ "steps": 10, "context": 16 }] })");
            }
        put(dir / "sweep.json", fmt::format(R"({{ "name": "s", "baseline": "a", "runs": [{}] }})", runs));
        windows("a.seed1", "2.75", "2.5", "3");
        windows("a.seed2", "2.5", "2.25", "3.25");
        windows("b.seed1", "2.25", "2", "2.25");
        windows("b.seed2", "2.25", "2", "2.5");
    }
    void windows(const std::string& run, const char* at_8, const char* at_16, const char* at_64,
                 const std::string& label = "plain", const std::string& set = "") const {
        evaluation(run, label, "chunk", set, {at_8, at_16, at_64}, "64,4,,,,00aa");
    }
    // More tokens than the windows: they are compared all the same.
    void suffix(const std::string& run, const char* at_8, const char* at_16, const char* at_64,
                const std::string& label = "suffix", const std::string& set = "") const {
        evaluation(run, label, "suffix", R"("eval.align=\"suffix\"", "eval.min_document=64")" + set,
                   {at_8, at_16, at_64}, "4096,8,,,,00bb");
    }
    void suffixes() const {
        suffix("a.seed1", "2.75", "2", "2.25");
        suffix("a.seed2", "2.75", "2", "2.75");
        suffix("b.seed1", "2.75", "2", "2.25");
        suffix("b.seed2", "2.75", "2", "2.25");
    }
    report::Collection collected() const { return report::collect({dir.path()}); }
    std::string tables() const { return report::sweep_tables(collected()); }

  private:
    void evaluation(const std::string& run, const std::string& label, const std::string& align,
                    const std::string& set, const std::vector<std::string>& losses,
                    const std::string& measure) const {
        const std::string at = dir / (run + "/eval/" + label);
        io::make_directories(at);
        std::string rows =
            "step,tokens,length,loss,standard_error,scored,documents,bits_per_byte,top1,top1_error,"
            "fingerprint\n";
        const char* lengths[] = {"8", "16", "64"};
        for (size_t i = 0; i < losses.size(); ++i)
            rows += fmt::format("10,5,{},{},0.5,{}\n", lengths[i], losses[i], measure);
        put(io::join_path(at, "val.csv"), rows);
        put(io::join_path(at, "request.json"),
            fmt::format(R"({{ "checkpoint": 10, "align": "{}", "set": [{}] }})", align, set));
    }
};

}  // namespace

TEST_CASE("two ways: the table by hand") {
    Sweep sweep;
    sweep.suffixes();
    const std::string tables = sweep.tables();
    // Rises from 16, the training length. a in windows 0.5 and 1, mean 0.75, half-width 12.7062 * 0.25 = 3.1766;
    // as suffixes 0.25 and 0.75. b less a: windows -0.25 and -0.5, suffixes 0 and -0.5.
    CHECK(contains(
        tables,
        "\nLoss by context length scored in two ways (nats per token): 64 tokens of 4 documents in windows, "
        "4,096 "
        "tokens of 8 documents as suffixes\n"
        "variant  scored by               rise 16 to 64              less that of a                         "
        "8  "
        "                      16                        64\n"
        "a          windows  +0.7500 [-2.4266, +3.9266]                           -  2.6250 ± 0.1250 / "
        "0.5000  "
        "2.3750 ± 0.1250 / 0.5000  3.1250 ± 0.1250 / 0.5000\n"
        "a           suffix  +0.5000 [-2.6766, +3.6766]                           -  2.7500 ± 0.0000 / "
        "0.5000  "
        "2.0000 ± 0.0000 / 0.5000  2.5000 ± 0.2500 / 0.5000\n"
        "b          windows  +0.3750 [-1.2133, +1.9633]  -0.3750 [-1.9633, +1.2133]  2.2500 ± 0.0000 / "
        "0.5000  "
        "2.0000 ± 0.0000 / 0.5000  2.3750 ± 0.1250 / 0.5000\n"
        "b           suffix  +0.2500 [+0.2500, +0.2500]  -0.2500 [-3.4266, +2.9266]  2.7500 ± 0.0000 / "
        "0.5000  "
        "2.0000 ± 0.0000 / 0.5000  2.2500 ± 0.0000 / 0.5000\n"));
    // What compares with the windows is the windows, however many tokens the suffixes have, and nothing is apart.
    CHECK(contains(tables, "losses: the same 64 tokens of 4 documents for all\n"));
    CHECK(contains(tables, "\nloss minus a "));
    CHECK(!contains(tables, "apart"));
    CHECK(!contains(tables, "a + suffix"));
    report::write_sweep_csv(sweep.dir.path());
    CHECK(contains(get(sweep.dir / "results.csv"), "\na,2,suffix,64,2.75,"));
}

TEST_CASE("two ways: the page has the table, for a sweep and for a run") {
    Sweep sweep;
    sweep.suffixes();
    const auto found = [](const report::Collection& collection) {
        report::Extracts extracts;
        const std::string page = report::report_page(collection, {.extracts = &extracts});
        CHECK(contains(page, "Scored in two ways</h2>"));
        CHECK(!contains(page, "Shown apart"));
        table::DataTable out;
        for (const table::DataTable& table : extracts.tables)
            if (table.name == "two-ways") out = table;
        return out;
    };
    const table::DataTable all = found(sweep.collected());
    REQUIRE(all.rows.size() == 4);
    CHECK(all.rows[3][3].exact == "-0.25 [-3.4265511840436647, 2.9265511840436647]");
    const table::DataTable one = found(report::collect({sweep.dir / "b.seed1"}));
    REQUIRE(one.rows.size() == 2);
    CHECK(one.header[2] == "rise 16 to 64");
    CHECK(one.rows[0][2].text == "+0.2500");
}

TEST_CASE("two ways: an evaluation pairs with what differs in nothing but the tokens") {
    Sweep sweep(R"(["plain", "ntk", "ntk-suffix", "yarn-suffix"])");
    const std::string ntk = R"("eval.rope.kind=\"ntk\"")";
    for (const char* run : {"a.seed1", "a.seed2"}) {
        sweep.windows(run, "2", "2.5", "2.75", "ntk", ntk);
        sweep.suffix(run, "2", "2.5", "2.625", "ntk-suffix", ", " + ntk);
        sweep.suffix(run, "2", "2.5", "7", "yarn-suffix", R"(, "eval.rope.kind=\"yarn\"")");
    }
    const std::vector<table::DataTable> tables = report::two_ways_tables(sweep.collected());
    REQUIRE(tables.size() == 1);
    REQUIRE(tables[0].rows.size() == 2);
    CHECK(tables[0].rows[0][0].text == "a + ntk");
    CHECK(tables[0].rows[0][2].text == "+0.2500 [+0.2500, +0.2500]");
    CHECK(tables[0].rows[1][2].text == "+0.1250 [+0.1250, +0.1250]");
    CHECK(contains(sweep.tables(), "shown apart, for it compares with nothing above: 4,096 tokens"));
}

TEST_CASE("two ways: suffixes of another checkpoint or of other text are no second way of the windows") {
    Sweep sweep(R"(["plain", "other"])");
    sweep.suffix("a.seed1", "2", "2.5", "2.625", "other", R"(, "data.val=[\"other.bin\"]")");
    sweep.suffix("b.seed1", "2", "2.5", "2.625");
    const std::string path = sweep.dir / "b.seed1/eval/suffix/val.csv";
    std::string text = get(path);
    for (size_t at = 0; (at = text.find("\n10,", at)) != text.npos;) text.replace(at, 4, "\n8,");
    put(path, text);
    CHECK(report::two_ways_tables(sweep.collected()).empty());
}

TEST_CASE("two ways: runs trained with suffixes have their windows in an evaluation") {
    Sweep sweep(R"(["plain", "cut"])");
    for (const char* run : {"a.seed1", "a.seed2", "b.seed1", "b.seed2"}) {
        sweep.suffix(run, "2", "2", "2.5", "plain");
        sweep.windows(run, "2", "2", "3", "cut", R"("eval.align=\"chunk\"")");
    }
    const report::Collection collection = sweep.collected();
    CHECK(collection.measure.fingerprint == "00bb");
    const std::vector<table::DataTable> tables = report::two_ways_tables(collection);
    REQUIRE(tables.size() == 1);
    CHECK(tables[0].rows[0][1].text == "windows");
    CHECK(tables[0].rows[0][2].text == "+1.0000 [+1.0000, +1.0000]");
    CHECK(tables[0].rows[1][2].text == "+0.5000 [+0.5000, +0.5000]");
}

TEST_CASE("two ways: seeds scored on other suffixes have a table of their own") {
    Sweep sweep;
    sweep.suffixes();
    const std::string path = sweep.dir / "b.seed2/eval/suffix/val.csv";
    std::string text = get(path);
    for (size_t at; (at = text.find("00bb")) != text.npos;) text.replace(at, 4, "00cc");
    put(path, text);
    const std::vector<table::DataTable> tables = report::two_ways_tables(sweep.collected());
    REQUIRE(tables.size() == 2);
    CHECK(tables[0].rows.size() == 4);
    CHECK(tables[1].rows.size() == 2);
}
