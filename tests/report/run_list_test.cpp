// longreach runs: the state of a run from what its directory holds, whatever that is.
#include <doctest/doctest.h>
#include <sys/stat.h>
#include <unistd.h>

#include "io/run_lock.h"
#include "io/temp_dir.h"
#include "report/run_list.h"
#include "table/text_table.h"

using namespace longreach;
using namespace longreach::test;

namespace {

// A run of 10 steps that has done some of them.
void put_run(const std::string& path, int64_t step) {
    io::make_directories(path);
    put(io::join_path(path, "config.json"), R"({ "stages": [{ "steps": 10, "context": 16 }] })");
    std::string metrics;
    for (int64_t i = 1; i <= step; ++i)
        metrics += fmt::format("{{\"step\":{},\"loss\":{}}}\n", i, 5 - 0.25 * static_cast<double>(i));
    put(io::join_path(path, "metrics.jsonl"), metrics);
}

report::RunSummary only(const std::string& path) {
    const std::vector<report::RunSummary> runs = report::list_runs(path);
    REQUIRE(runs.size() == 1);
    return runs[0];
}

}  // namespace

TEST_CASE("runs: running, finished, stopped, failed, new") {
    const TempDir dir;
    const std::string run = dir / "run";
    put_run(run, 10);
    put(run + "/val.csv", "step,tokens,length,loss\n5,1,64,9\n5,1,128,8\n10,1,128,2.5\n10,1,64,3\n10,1,25");
    report::RunSummary r = only(run);
    CHECK(r.name == "run");
    CHECK(r.state == report::RunState::finished);
    CHECK(r.step == 10);
    CHECK(r.steps == 10);
    CHECK(r.loss == 2.5);
    CHECK(r.length == 128);
    CHECK(r.validation == 2.5);
    CHECK(r.age >= 0);
    CHECK(r.age < 3600);

    put_run(run, 4);
    put(run + "/val.csv", "step,tok");
    put(run + "/metrics.jsonl", get(run + "/metrics.jsonl") + "{\"step\":5,\"lo");  // being written
    r = only(run);
    CHECK(r.state == report::RunState::stopped);
    CHECK(r.step == 4);
    CHECK(r.loss == 4);
    CHECK(r.length == 0);
    CHECK(std::isnan(r.validation));
    {
        const io::RunLock lock(run);
        CHECK(only(run).state == report::RunState::running);
    }
    CHECK(only(run).state == report::RunState::stopped);  // it let go in good order
    put(run + "/lock", "process 1 on here since 2026-01-01T00:00:00Z\n");
    CHECK(only(run).state == report::RunState::failed);  // it did not
    CHECK(get(run + "/lock").starts_with("process 1"));
    put(run + "/lock", "");
    put(run + "/log.txt", "10:00:00 giving up: 9 steps in a row had a non-finite loss or gradient\n");
    CHECK(only(run).state == report::RunState::failed);

    io::make_directories(dir / "young");
    put(dir / "young/config.json", get(run + "/config.json"));
    CHECK(only(dir / "young").state == report::RunState::unknown);
    CHECK(std::string(report::name_of(report::RunState::unknown)) == "new");
}

TEST_CASE("runs: what cannot be read is damaged and hides no other run") {
    const TempDir dir;
    for (const char* name : {"a", "b", "c", "d", "e", "whole"}) put_run(dir / name, 4);
    put(dir / "a/config.json", "{ \"stages\": [");
    put(dir / "b/metrics.jsonl", "\x1b[31mnonsense\n");
    put(dir / "c/val.csv", "step,tokens,length,loss\n1,2\n");
    io::remove_file(dir / "d/metrics.jsonl");
    REQUIRE(::mkfifo((dir / "d/metrics.jsonl").c_str(), 0600) == 0);  // a reader must not wait for it
    io::make_directories(dir / "e/checkpoints/step_00000003.bad");
    const std::vector<report::RunSummary> runs = report::list_runs(dir.path());
    REQUIRE(runs.size() == 6);
    for (size_t i = 0; i < 5; ++i) {
        CHECK_MESSAGE(runs[i].state == report::RunState::damaged, runs[i].name);
        CHECK(!runs[i].problem.empty());
    }
    CHECK(runs[5].state == report::RunState::stopped);
}

TEST_CASE("runs: sweeps, moved directories and links") {
    const TempDir dir;
    put_run(dir / "runs/sweep/b.seed1", 10);
    put_run(dir / "runs/sweep/a.seed1", 4);
    put(dir / "runs/sweep/sweep.json", "{}");
    put_run(dir / "runs/.hidden/x", 4);
    put_run(dir / "elsewhere", 4);
    io::rename_path(dir / "elsewhere", dir / "runs/moved");
    REQUIRE(::symlink("..", (dir / "runs/sweep/up").c_str()) == 0);
    std::vector<std::string> names;
    for (const report::RunSummary& r : report::list_runs(dir / "runs")) names.push_back(r.name);
    CHECK(names == std::vector<std::string>{"moved", "sweep/a.seed1", "sweep/b.seed1"});
    CHECK(error_of([&] { report::list_runs(dir / "nowhere"); }).starts_with("3: "));
}

TEST_CASE("tables on a terminal: names shortened in the middle, columns in blocks, no control characters") {
    const std::vector<table::TextLine> lines{
        {"run", "256", "512", "1024"},
        {"a-name-that-is-much-too-long-for-it.seed1", "1.2500", "1.5000", "2.7500"},
        {"b\x1b[31m\n", {"1.0000", true}, "-", "9"}};
    CHECK(table::text_table(lines) ==
          "run                                           256     512    1024\n"
          "a-name-that-is-much-too-long-for-it.seed1  1.2500  1.5000  2.7500\n"
          "b\\u001b[31m\\n                              1.0000       -       9\n");
    const std::string narrow = table::text_table(lines, {40, false});
    CHECK(narrow ==
          "run                  256     512    1024\n"
          "a-name-…it.seed1  1.2500  1.5000  2.7500\n"
          "b\\u001b[31m\\n     1.0000       -       9\n");
    CHECK(table::text_table(lines, {30, false}) ==
          "run              256     512\n"
          "a-nam….seed1  1.2500  1.5000\n"
          "b\\u00…[31m\\n  1.0000       -\n"
          "\n"
          "run             1024\n"
          "a-nam….seed1  2.7500\n"
          "b\\u00…[31m\\n       9\n");
    const std::string coloured = table::text_table(lines, {0, true});
    CHECK(coloured.find("\x1b[1m1.0000\x1b[0m") != std::string::npos);
    CHECK(coloured.find("\x1b[31m") == std::string::npos);
}
