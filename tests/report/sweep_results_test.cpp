// A sweep directory read back: what counts as measured, the gathered files, the tables.
#include <doctest/doctest.h>

#include <map>

#include "io/temp_dir.h"
#include "report/page.h"
#include "report/sweep_results.h"

using namespace longreach;
using namespace longreach::test;

namespace {

constexpr const char* loss_header =
    "variant,seed,evaluation,length,loss,top1,top1_error,standard_error,scored,documents,fingerprint\n";
constexpr const char* task_header =
    "variant,seed,evaluation,task,length,depth,samples,accuracy,margin,loss,fingerprint\n";

// Two variants and two seeds; b.seed2 is not there yet.
struct Sweep {
    TempDir dir;
    Sweep() {
        put(dir / "sweep.json", R"({ "name": "s", "baseline": "a", "runs": [
            { "variant": "a", "seed": 1, "directory": "a.seed1", "evaluations": ["yarn", "plain", "ntk"] },
            { "variant": "a", "seed": 2, "directory": "a.seed2", "evaluations": ["yarn", "plain", "ntk"] },
            { "variant": "b", "seed": 1, "directory": "b.seed1", "evaluations": ["plain"] },
            { "variant": "b", "seed": 2, "directory": "b.seed2", "evaluations": ["plain"] }] })");
        val("a.seed1", "plain", "16,2.5,0.25\n10,5,64,3,0.125\n", "10,5,");
        val("a.seed2", "plain", "16,2.25,0.5\n10,5,64,3.5,0.25\n", "10,5,");
        val("a.seed1", "ntk", "16,2.5,0.25\n", "10,5,");
        val("b.seed1", "plain", "16,2,0.75\n10,5,64,2.5,0.5\n", "10,5,");
        put(dir / "a.seed1/eval/plain/tasks.csv",
            "step,task,length,depth,samples,accuracy,accuracy_error,margin,margin_error,loss\n"
            "10,needle,64,0,32,0.25,0.1,1.5,0.1,2\n10,needle,64,100,32,0.75,0.1,,,3\n");
    }
    void val(const std::string& run, const std::string& label, const std::string& rows,
             const std::string& lead) const {
        io::make_directories(dir / (run + "/eval/" + label));
        put(dir / (run + "/eval/" + label + "/val.csv"), "step,tokens,length,loss,top1\n" + lead + rows);
    }
};

}  // namespace

TEST_CASE("sweep results: what is there is gathered, what is not is missing") {
    const Sweep sweep;
    const report::Collection collection = report::collect({sweep.dir.path()});
    CHECK(collection.planned == 4);
    CHECK(collection.labels == std::vector<std::string>{"plain", "yarn", "ntk"});
    const report::SweepResults results = report::sweep_results(collection);
    CHECK(results.measured == 3);
    CHECK(results.losses.size() == 7);
    report::write_sweep_csv(sweep.dir.path());
    CHECK(get(sweep.dir / "results.csv") ==
          std::string(loss_header) +
              "a,1,plain,16,2.5,0.25,,,,,\na,1,plain,64,3,0.125,,,,,\na,1,ntk,16,2.5,0.25,,,,,\n"
              "a,2,plain,16,2.25,0.5,,,,,\na,2,plain,64,3.5,0.25,,,,,\n"
              "b,1,plain,16,2,0.75,,,,,\nb,1,plain,64,2.5,0.5,,,,,\n");
    CHECK(get(sweep.dir / "results_tasks.csv") ==
          std::string(task_header) +
              "a,1,plain,needle,64,0,32,0.25,1.5,2,\na,1,plain,needle,64,100,32,0.75,,3,\n");
}

TEST_CASE("sweep results: a run under way is not measured by its val.csv") {
    const Sweep sweep;
    const std::string head = "step,tokens,length,loss\n", under_way = "5,1,16,7\n";
    io::make_directories(sweep.dir /
                         "b.seed2/checkpoints/step_00000010");  // the last validation is yet to come
    put(sweep.dir / "b.seed2/val.csv", head + under_way);
    put(sweep.dir / "b.seed2/config.json", R"({ "stages": [{ "steps": 10, "context": 16 }] })");
    const auto gathered = [&] { return report::sweep_results(report::collect({sweep.dir.path()})); };
    CHECK(gathered().measured == 3);
    put(sweep.dir / "b.seed2/val.csv", head + under_way + "10,1,16,9\n");
    const report::SweepResults results = gathered();
    CHECK(results.measured == 4);
    CHECK(results.losses.back().evaluation == "plain");
    CHECK(results.losses.back().loss == 9);
    CHECK(std::isnan(results.losses.back().top1));
}

TEST_CASE("sweep results: before any run has results there are only headers") {
    const TempDir dir;
    put(dir / "sweep.json", R"({ "name": "s", "baseline": "a", "runs": [
        { "variant": "a", "seed": 1, "directory": "a.seed1", "evaluations": ["plain"] }] })");
    report::write_sweep_csv(dir.path());
    CHECK(get(dir / "results.csv") == loss_header);
    CHECK(get(dir / "results_tasks.csv") == task_header);
    CHECK(report::sweep_tables(report::collect({dir.path()})).starts_with("sweep s: 0 of 1 run measured"));
}

TEST_CASE("sweep results: of a model that diverged nan is gathered, not nothing") {
    const Sweep sweep;
    sweep.val("b.seed1", "plain", "16,nan,0\n", "10,5,");
    put(sweep.dir / "b.seed1/eval/plain/tasks.csv",
        "step,task,length,depth,samples,accuracy,margin,loss\n10,needle,64,12.5,32,0,nan,nan\n");
    report::write_sweep_csv(sweep.dir.path());
    CHECK(get(sweep.dir / "results.csv").ends_with("b,1,plain,16,nan,0,,,,,\n"));
    CHECK(get(sweep.dir / "results_tasks.csv").ends_with("b,1,plain,needle,64,12.5,32,0,nan,nan,\n"));
}

TEST_CASE("sweep results: tables by hand") {
    Sweep sweep;
    sweep.val("b.seed2", "plain", "16,2,0.75\n10,5,64,2.75,0.5\n", "10,5,");
    // At 16: a 2.5 and 2.25, mean 2.375, error 0.125; b 2 and 2. b - a: -0.5 and -0.25, mean -0.375, error
    // 0.125, t = 12.7062 at one degree of freedom: half-width 1.5883. At 64: -0.5 and -0.75, mean -0.625, the
    // same width. Tasks: the mean of 25% and 75%, one seed.
    CHECK(report::sweep_tables(report::collect({sweep.dir.path()})) ==
          "sweep s: 4 of 4 runs measured, 2 seeds\n"
          "losses: how many tokens were scored is not recorded\n"
          "± standard error of the mean over seeds; of percentages (the value of each seed),\n"
          "of their differences too if an interval of theirs leaves 0 to 100\n"
          "[95% interval over seeds of the mean difference to a, seed by seed], * if 0 lies outside\n"
          "\n"
          "loss at context              16              64\n"
          "a                2.3750 ±0.1250  3.2500 ±0.2500\n"
          "a + ntk                  2.5000               -\n"
          "b                2.0000 ±0.0000  2.6250 ±0.1250\n"
          "\n"
          "loss minus a                           16                           64\n"
          "a + ntk                           +0.0000                            -\n"
          "b             -0.3750 [-1.9633, +1.2133]   -0.6250 [-2.2133, +0.9633]\n"
          "\n"
          "top-1 % at context                16                64\n"
          "a                   37.5 (25.0/50.0)  18.8 (12.5/25.0)\n"
          "a + ntk                         25.0                 -\n"
          "b                   75.0 (75.0/75.0)  50.0 (50.0/50.0)\n"
          "\n"
          "top-1 % minus a                   16                   64\n"
          "a + ntk                         +0.0                    -\n"
          "b                +37.5 (+50.0/+25.0)  +31.2 (+37.5/+25.0)\n"
          "\n"
          "needle accuracy % at context    64\n"
          "a                             50.0\n"
          "\n"
          "needle margin at context     64\n"
          "a                         1.500\n");
}

TEST_CASE("sweep results: top-1 with its errors over seeds and documents, by hand") {
    const TempDir dir;
    put(dir / "sweep.json", R"({ "name": "s", "baseline": "a", "runs": [
        { "variant": "a", "seed": 1, "directory": "a.seed1", "evaluations": ["plain"] },
        { "variant": "a", "seed": 2, "directory": "a.seed2", "evaluations": ["plain"] },
        { "variant": "b", "seed": 1, "directory": "b.seed1", "evaluations": ["plain"] },
        { "variant": "old", "seed": 1, "directory": "old.seed1", "evaluations": ["plain"] },
        { "variant": "old", "seed": 2, "directory": "old.seed2", "evaluations": ["plain"] }] })");
    const auto val = [&](const std::string& run, const std::string& header, const std::string& row) {
        io::make_directories(dir / (run + "/eval/plain"));
        put(dir / (run + "/eval/plain/val.csv"),
            "step,tokens,length,loss," + header + "\n10,5,16,2," + row + "\n");
    };
    const std::string now = "standard_error,scored,documents,bits_per_byte,top1,top1_error,fingerprint";
    val("a.seed1", now, "0.5,64,4,,0.40,0.03,00aa");
    val("a.seed2", now, "0.5,64,4,,0.44,0.05,00aa");
    val("b.seed1", now, "0.25,64,4,,0.5,0.015,00aa");
    const std::string before = "standard_error,scored,documents,bits_per_byte,top1,fingerprint";
    val("old.seed1", before, "0.5,64,4,,0.25,00aa");
    val("old.seed2", before, "0.5,64,4,,0.5,00aa");
    report::write_sweep_csv(dir.path());
    CHECK(get(dir / "results.csv") == std::string(loss_header) +
                                          "a,1,plain,16,2,0.4,0.03,0.5,64,4,00aa\n"
                                          "a,2,plain,16,2,0.44,0.05,0.5,64,4,00aa\n"
                                          "b,1,plain,16,2,0.5,0.015,0.25,64,4,00aa\n"
                                          "old,1,plain,16,2,0.25,,0.5,64,4,00aa\n"
                                          "old,2,plain,16,2,0.5,,0.5,64,4,00aa\n");
    // a: mean 42%, error over seeds 2 points, over documents the mean of 3 and 5.
    const std::string tables = report::sweep_tables(report::collect({dir.path()}));
    CHECK(contains(
        tables,
        "± standard error of the mean over seeds / over documents, which all seeds share; of "
        "percentages without\nthe latter (the value of each seed), of differences of percentages too "
        "if an interval of theirs leaves 0 to 100\n"));
    CHECK(contains(tables,
                   "\ntop-1 % at context                16\n"
                   "a                      42.0 ±2.0/4.0\n"
                   "b                        50.0 ±-/1.5\n"
                   "old                 37.5 (25.0/50.0)\n"));
    // The page has the same, as shares.
    report::Extracts extracts;
    report::report_page(report::collect({dir.path()}), {.extracts = &extracts});
    std::map<std::string, std::string> cells;  // by table and variant
    for (const table::DataTable& table : extracts.tables)
        for (const std::vector<table::Cell>& row : table.rows)
            cells[table.name + " " + row[0].text] = row.back().text;
    CHECK(cells["top1 a"] == "0.4200 ± 0.0200");
    CHECK(cells["top1 b"] == "0.5000");
    CHECK(cells["top1 old"] == "0.3750 (0.25/0.50)");
    CHECK(cells["top1-errors a"] == "0.0400");
    CHECK(cells["top1-errors b"] == "0.0150");
    CHECK(!cells.contains("top1-errors old"));
    CHECK(cells["document-errors old"] == "0.5000");
}
