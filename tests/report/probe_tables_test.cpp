// The numbers of probe.csv as the tables of a sweep show them, by hand.
#include <doctest/doctest.h>

#include <algorithm>

#include "io/temp_dir.h"
#include "report/page.h"
#include "report/sweep_results.h"

using namespace longreach;
using namespace longreach::test;

namespace {

void write_run(const TempDir& dir, const std::string& run, const std::string& rows) {
    io::make_directories(dir / (run + "/eval/plain"));
    put(dir / (run + "/eval/plain/val.csv"), "step,tokens,length,loss\n10,5,16,2\n10,5,64,2.5\n");
    put(dir / (run + "/eval/plain/probe.csv"), "step,length,layer,head,bin,statistic,value,count\n" + rows);
}

}  // namespace

TEST_CASE("probe tables: means over heads, rises by log n and scalars by layer") {
    const TempDir dir;
    put(dir / "sweep.json", R"({ "name": "s", "baseline": "a", "runs": [
        { "variant": "a", "seed": 1, "directory": "a.seed1", "evaluations": ["plain"] },
        { "variant": "a", "seed": 2, "directory": "a.seed2", "evaluations": ["plain"] }] })");
    // Seed 1: 2 at 16, 4 at 64; seed 2: 1 and 4. Rises of 2 and 3 over log 4. The bin is left out.
    write_run(dir, "a.seed1",
              "10,16,0,0,0,entropy,1,9\n10,16,0,1,0,entropy,3,9\n10,16,0,1,8,entropy,99,9\n"
              "10,64,0,0,0,entropy,4,9\n10,0,0,0,0,scalar.r,1,1\n10,0,1,0,0,scalar.r,2,1\n"
              "10,0,-1,-1,0,scalar.tau,10,1\n");
    write_run(dir, "a.seed2",
              "10,16,0,0,0,entropy,1,9\n10,64,0,0,0,entropy,4,9\n10,0,0,0,0,scalar.r,1,1\n"
              "10,0,1,0,0,scalar.r,3,1\n10,0,-1,-1,0,scalar.tau,10,1\n");
    const report::Collection sweep = report::collect({dir.path()});
    CHECK(!contains(report::sweep_tables(sweep), "inside attention"));
    const std::string tables = report::sweep_tables(sweep, {.pairs = true});
    const auto line = [&](const std::string& name) {
        const size_t at = tables.find("\n" + name);
        REQUIRE(at != tables.npos);
        std::string out;
        for (const char c : tables.substr(at + 1, tables.find('\n', at + 1) - at - 1))
            if (c != ' ' || out.back() != ' ') out += c;
        return out;
    };
    CHECK(line("inside") ==
          "inside attention, mean over heads [95% interval over seeds] 16 64 per unit of log n");
    CHECK(line("entropy") ==
          "entropy: a 1.5000 [-4.8531, 7.8531] 4.0000 [4.0000, 4.0000] 1.8034 [-2.7794, 6.3862]");
    CHECK(line("scalar.r, layer 0") == "scalar.r, layer 0: a 1.0000 [1.0000, 1.0000]");
    CHECK(line("scalar.r, layer 1") == "scalar.r, layer 1: a 2.5000 [-3.8531, 8.8531]");
    CHECK(line("scalar.tau") == "scalar.tau, model: a 10.0000 [10.0000, 10.0000]");
}

TEST_CASE("the page says at which step a head has a role, for each seed") {
    const TempDir dir;
    put(dir / "sweep.json", R"({ "name": "s", "baseline": "a", "runs": [
        { "variant": "a", "seed": 1, "directory": "a.seed1", "evaluations": ["plain"] },
        { "variant": "a", "seed": 2, "directory": "a.seed2", "evaluations": ["plain"] }] })");
    const auto role = [&](const std::string& run, std::initializer_list<double> induction) {
        write_run(dir, run, "");
        std::string rows = "step,length,layer,head,bin,statistic,value,count\n";
        int step = 0;
        for (const double value : induction)
            rows += fmt::format("{0},0,0,0,0,induction_score,0.25,9\n{0},0,1,1,0,induction_score,{1},9\n",
                                step += 1000, value);
        put(dir / (run + "/probe.csv"), rows);
    };
    const auto section = [&] {
        const std::string page = report::report_page(report::collect({dir.path()}));
        const size_t at = page.find("When roles appear");
        return at == page.npos ? std::string() : page.substr(at);
    };
    role("a.seed1", {0.3});
    role("a.seed2", {0.1});
    CHECK(section().empty());  // one step
    role("a.seed1", {0.3, 0.5, 0.7});
    role("a.seed2", {0.1, 0.2, 0.1});
    CHECK(contains(section(), "2,000, never"));
    CHECK(contains(section(), "0.4750"));  // the mean of 0.7 and 0.25
}

TEST_CASE("sweep tables: rises of every pair, by hand") {
    const TempDir dir;
    put(dir / "sweep.json", R"({ "name": "s", "baseline": "a", "runs": [
        { "variant": "a", "seed": 1, "directory": "a.seed1", "evaluations": ["plain"] },
        { "variant": "a", "seed": 2, "directory": "a.seed2", "evaluations": ["plain"] },
        { "variant": "b", "seed": 1, "directory": "b.seed1", "evaluations": ["plain"] },
        { "variant": "b", "seed": 2, "directory": "b.seed2", "evaluations": ["plain"] }] })");
    const auto run = [&](const std::string& name, double at_16, double at_64) {
        io::make_directories(dir / (name + "/eval/plain"));
        put(dir / (name + "/eval/plain/val.csv"),
            fmt::format("step,tokens,length,loss\n10,5,16,{}\n10,5,64,{}\n", at_16, at_64));
    };
    run("a.seed1", 2, 3);
    run("a.seed2", 2, 3.5);
    run("b.seed1", 2.5, 3);
    run("b.seed2", 2.25, 2.75);
    const std::string tables = report::sweep_tables(report::collect({dir.path()}), {.pairs = true});
    // a rises by 1 and 1.5, b by 0.5 and 0.5: -0.5 and -1.
    const size_t at = tables.find("\nloss minus that at 16, every pair");
    REQUIRE(at != tables.npos);
    const std::string table = tables.substr(at + 1, tables.find("\n\n", at) - at);
    CHECK(contains(table, "\nb - a "));
    CHECK(contains(table, " -0.7500 [-3.9266, +2.4266]"));
    CHECK(std::count(table.begin(), table.end(), '\n') == 2);
}

TEST_CASE("sweep tables: the spread of four seeds, and the seeds that a difference needs") {
    const TempDir dir;
    std::string runs;
    const double noise[] = {1, 1, 2.7320508075688772, 2.7320508075688772};  // deviation 1
    for (int seed = 1; seed <= 4; ++seed) {
        for (const auto& [variant, scale] : {std::pair("a", 0.02), std::pair("b", 0.07)}) {
            const std::string name = fmt::format("{}.seed{}", variant, seed);
            runs += fmt::format(
                R"({}{{ "variant": "{}", "seed": {}, "directory": "{}", "evaluations": ["plain"] }})",
                runs.empty() ? "" : ", ", variant, seed, name);
            io::make_directories(dir / (name + "/eval/plain"));
            put(dir / (name + "/eval/plain/val.csv"),
                fmt::format("step,tokens,length,loss\n10,5,16,{}\n", 2 + scale * noise[seed - 1]));
        }
    }
    put(dir / "sweep.json", fmt::format(R"({{ "name": "s", "baseline": "a", "runs": [{}] }})", runs));
    const std::string tables = report::sweep_tables(report::collect({dir.path()}), {.pairs = true});
    CHECK(contains(tables, "a                                                   0.0200 [0.0113, 0.0746]"));
    CHECK(contains(tables, "b                                                   0.0700 [0.0397, 0.2610]"));
    // b - a has deviation 0.05, of which 0.0283 to 0.1864 are possible: 7 seeds, 4 to 56.
    const size_t at = tables.find("seeds whose interval of loss minus a reaches 0.05 to each side");
    REQUIRE(at != std::string::npos);
    CHECK(contains(tables.substr(at), "7 [4, 56]"));
    CHECK(
        !contains(report::sweep_tables(report::collect({dir.path()}), {}), "standard deviation over seeds"));
}
