// A sweep directory read back: what counts as measured, the gathered files, the tables.
#include <doctest/doctest.h>

#include "io/temp_dir.h"
#include "report/csv_table.h"
#include "report/sweep_results.h"

using namespace longreach;
using namespace longreach::test;

namespace {

// Two variants and two seeds; b.seed2 is not there yet.
struct Sweep {
    TempDir dir;
    Sweep() {
        put(dir / "sweep.json", R"({ "name": "s", "baseline": "a", "runs": [
            { "variant": "a", "seed": 1, "directory": "a.seed1", "evaluations": ["plain", "ntk"] },
            { "variant": "a", "seed": 2, "directory": "a.seed2", "evaluations": ["plain", "ntk"] },
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
             const std::string& lead) {
        make_directories(dir / (run + "/eval/" + label));
        put(dir / (run + "/eval/" + label + "/val.csv"), "step,tokens,length,loss,top1\n" + lead + rows);
    }
};

}  // namespace

TEST_CASE("csv: columns by name, whatever their order; a missing one and an empty cell are nothing") {
    const TempDir dir;
    put(dir / "t.csv", "b,step,a\n1.5,3,x\n,7,y\n2,7,z\n9,9");
    CsvTable t = CsvTable::read(dir / "t.csv");
    REQUIRE(t.rows() == 3);  // the last line is still being written
    CHECK(t.number(0, "b") == 1.5);
    CHECK_FALSE(t.number(1, "b").has_value());
    CHECK_FALSE(t.number(0, "c").has_value());
    CHECK(t.text(0, "c") == "");
    CHECK(error_of([&] { t.number(2, "a"); }).ends_with("t.csv:4: 'z' is not a number"));
    t.keep_largest("step");
    REQUIRE(t.rows() == 2);
    CHECK(t.text(0, "a") == "y");
    put(dir / "t.csv", "a,b\n1\n");
    CHECK(error_of([&] { CsvTable::read(dir / "t.csv"); }).ends_with("t.csv:2: 1 columns instead of 2"));
    put(dir / "t.csv", "");
    CHECK(error_of([&] { CsvTable::read(dir / "t.csv"); }).ends_with("has no header"));
}

TEST_CASE("sweep results: what is there is gathered, what is not is missing") {
    const Sweep sweep;
    CHECK(is_sweep_directory(sweep.dir.path()));
    CHECK_FALSE(is_sweep_directory(sweep.dir / "a.seed1"));
    const SweepResults results = read_sweep(sweep.dir.path());
    CHECK(results.runs == 4);
    CHECK(results.measured == 3);
    CHECK(results.evaluations == std::vector<std::string>{"plain", "ntk"});
    CHECK(results.losses.size() == 7);
    write_sweep_csv(sweep.dir.path());
    CHECK(get(sweep.dir / "results.csv") ==
          "variant,seed,evaluation,length,loss,top1\n"
          "a,1,plain,16,2.5,0.25\na,1,plain,64,3,0.125\na,1,ntk,16,2.5,0.25\n"
          "a,2,plain,16,2.25,0.5\na,2,plain,64,3.5,0.25\n"
          "b,1,plain,16,2,0.75\nb,1,plain,64,2.5,0.5\n");
    CHECK(get(sweep.dir / "results_tasks.csv") ==
          "variant,seed,evaluation,task,length,depth,samples,accuracy,margin,loss\n"
          "a,1,plain,needle,64,0,32,0.25,1.5,2\na,1,plain,needle,64,100,32,0.75,,3\n");
}

TEST_CASE("sweep results: a run under way is not measured by its val.csv") {
    const Sweep sweep;
    make_directories(sweep.dir / "b.seed2/checkpoints/step_00000005");
    put(sweep.dir / "b.seed2/val.csv", "step,tokens,length,loss\n5,1,16,9\n");
    put(sweep.dir / "b.seed2/config.json", R"({ "stages": [{ "steps": 10, "context": 16 }] })");
    CHECK(read_sweep(sweep.dir.path()).measured == 3);
    make_directories(sweep.dir / "b.seed2/checkpoints/step_00000010");
    const SweepResults results = read_sweep(sweep.dir.path());
    CHECK(results.measured == 4);
    CHECK(results.losses.back().evaluation == "plain");
    CHECK(results.losses.back().loss == 9);
    CHECK_FALSE(results.losses.back().top1.has_value());
}

TEST_CASE("sweep results: tables by hand") {
    Sweep sweep;
    sweep.val("b.seed2", "plain", "16,2,0.75\n10,5,64,2.75,0.5\n", "10,5,");
    // At 16: a 2.5 and 2.25, mean 2.375, error 0.125; b 2 and 2. b - a: -0.5 and -0.25, mean -0.375, error
    // 0.125, t = 12.7062 at one degree of freedom: half-width 1.5883. At 64: -0.5 and -0.75, mean -0.625, the
    // same width. Tasks: the mean of 25% and 75%, one seed.
    CHECK(sweep_tables(read_sweep(sweep.dir.path())) ==
          "sweep s: 4 of 4 runs measured, 2 seeds\n"
          "± standard error of the mean over seeds; [95% interval of the mean difference to a, seed by "
          "seed], * if 0 "
          "lies outside\n"
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
          "top-1 % at context            16           64\n"
          "a                   37.50 ±12.50  18.75 ±6.25\n"
          "a + ntk                    25.00            -\n"
          "b                    75.00 ±0.00  50.00 ±0.00\n"
          "\n"
          "top-1 % minus a                          16                         64\n"
          "a + ntk                               +0.00                          -\n"
          "b                +37.50 [-121.33, +196.33]   +31.25 [-48.16, +110.66]\n"
          "\n"
          "needle accuracy % at context     64\n"
          "a                             50.00\n"
          "\n"
          "needle margin at context     64\n"
          "a                         1.500\n");
}
