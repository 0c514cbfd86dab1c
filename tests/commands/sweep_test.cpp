// A sweep of tiny runs from end to end: results, failures, kills, repeated evaluations, tables.
#include <doctest/doctest.h>

#include <sys/stat.h>

#include <algorithm>
#include <cstring>
#include <map>

#include "commands/process.h"
#include "io/run_lock.h"
#include "io/csv.h"
#include "report/sweep_results.h"
#include "sweep/child_process.h"
#include "sweep/sweep_queue.h"
#include "train/tiny_run.h"

using namespace longreach;
using namespace longreach::test;

namespace {

// The program behind a script that fails on purpose for a run whose name holds "broken" or "killed", counts
// the evaluations, and puts their results where --label asks, with a request.json.
const char* script = R"(#!/bin/sh
case "$2" in
*broken*) echo "broken on purpose" >&2; exit 7 ;;
*killed*) echo "about to be killed"; kill -9 $$ ;;
esac
if [ "$1" = eval ]; then
    run=$2 label=$4
    shift 4
    mkdir -p "$run/eval/$label"
    echo "$*" | sed 's/"//g; s/.*/{"asked": "&"}/' > "$run/eval/$label/request.json"
    echo "$run $label" >> "HOME_DIR/evaluated"
    exec "PROGRAM" eval "$run" --out "$run/eval/$label" "$@"
fi
exec "PROGRAM" "$@"
)";

std::string replace_all(std::string text, const std::string& part, const std::string& by) {
    for (size_t at = 0; (at = text.find(part, at)) != std::string::npos; at += by.size())
        text.replace(at, part.size(), by);
    return text;
}

struct Home {
    TempDir dir;
    std::string wrapper = dir / "program.sh";
    Home() {
        make_corpus(dir / "data");
        put(dir / "tiny.json", tiny_config(dir.path()));
        put(wrapper, replace_all(replace_all(script, "PROGRAM", program()), "HOME_DIR", dir.path()));
        ::chmod(wrapper.c_str(), 0755);
    }
    std::string file(const std::string& name, const std::string& more = "",
                     const std::string& variants = "") const {
        const std::string path = dir / (name + ".json");
        put(path, R"({ "name": ")" + name + R"(", "dir": ")" + dir.path() + R"(/runs", "baseline": "a",
  "variants": [{ "name": "a", "config": "tiny.json" },
               { "name": "b", "config": "tiny.json", "set": { "model.attention.score": "scale_invariant" } })" +
                      variants + R"(],
  "seeds": [1, 2], "jobs": 2, "threads": 1,
  "evaluations": [{ "name": "plain" }, { "name": "ntk", "variants": ["a"],
                    "set": { "eval.rope.kind": "ntk" }, "lengths": [16, 64], "tokens": 128 }])" +
                      more + "}");
        return path;
    }
    std::string directory(const std::string& name) const { return dir / ("runs/" + name); }
    sweep::SweepOutcome run(const std::string& sweep, const std::vector<std::string>& overrides = {}) const {
        train::Console console(true);
        sweep::SweepOptions options;
        options.program = wrapper;
        const sweep::SweepPlan plan = sweep::plan_sweep(sweep::load_sweep(sweep, overrides));
        const sweep::SweepOutcome outcome = sweep::run_sweep(plan, options, console);
        report::write_sweep_csv(plan.directory);
        return outcome;
    }
    size_t evaluations() const {
        if (io::kind_of(dir / "evaluated", io::Links::refuse) != io::PathKind::file) return 0;
        const std::string text = get(dir / "evaluated");
        return static_cast<size_t>(std::count(text.begin(), text.end(), '\n'));
    }
    std::string log(const std::string& name) const { return get(directory(name) + "/log.txt"); }
};

// What a sweep promises to reproduce.
std::map<std::string, std::string> results_of_sweep(const std::string& directory, int64_t step) {
    std::map<std::string, std::string> out;
    for (const char* run : {"a.seed1", "a.seed2", "b.seed1", "b.seed2"}) {
        const std::string path = io::join_path(directory, run);
        for (const char* name : {"metrics.jsonl", "val.csv", "positions.csv", "eval/plain/val.csv"})
            out[io::join_path(run, name)] = get(io::join_path(path, name));
        const std::string checkpoint = io::join_path(path, "checkpoints/" + io::checkpoint_name(step));
        out[io::join_path(run, "model")] = get(io::join_path(checkpoint, "model.safetensors"));
    }
    for (const char* name : {"results.csv", "results_tasks.csv"})
        out[name] = get(io::join_path(directory, name));
    return out;
}

}  // namespace

TEST_CASE("sweep: trains, evaluates, keeps the weights only, and gathers the results") {
    const Home home;
    const std::string file = home.file("s");
    const sweep::SweepOutcome first = home.run(file);
    CHECK(first.done == 4 + 6);
    CHECK(first.failed == 0);
    CHECK(first.left == 0);
    CHECK(home.evaluations() == 6);
    const std::string directory = home.directory("s");
    for (const char* run : {"a.seed1", "b.seed2"}) {
        const std::string root = io::join_path(directory, std::string(run) + "/checkpoints");
        CHECK(io::checkpoint_steps(root) == std::vector<int64_t>{12});
        CHECK_FALSE(io::verify_checkpoint(root, 12).has("optimizer.safetensors"));
    }
    CHECK(contains(home.log("s"), "b.seed2  trained 12 steps  loss "));
    CHECK(contains(home.log("s"), "a.seed2  ntk  16 "));

    // Each row of results.csv is the value of the file it comes from.
    const io::CsvTable rows = *io::CsvTable::read(io::join_path(directory, "results.csv"));
    const auto cell = [](const io::CsvTable& table, size_t row, const char* column) {
        return std::string(table.text(row, table.column(column)));
    };
    CHECK(rows.rows() == 4 * 2 + 2 * 2);
    for (size_t i = 0; i < rows.rows(); ++i) {
        const std::string run = cell(rows, i, "variant") + ".seed" + cell(rows, i, "seed");
        const io::CsvTable source = *io::CsvTable::read(
            io::join_path(directory, run + "/eval/" + cell(rows, i, "evaluation") + "/val.csv"));
        bool found = false;
        for (size_t k = 0; k < source.rows(); ++k)
            found = found || (cell(source, k, "length") == cell(rows, i, "length") &&
                              cell(source, k, "loss") == cell(rows, i, "loss"));
        CHECK(found);
    }
    // ntk was measured on half the tokens and with other positions: not the losses of plain.
    CHECK(get(io::join_path(directory, "a.seed1/eval/ntk/val.csv")) !=
          get(io::join_path(directory, "a.seed1/eval/plain/val.csv")));
    const TempDir output;
    const Finished report = run(output, {"report", directory});
    CHECK(report.code == 0);
    CHECK(contains(report.out, "sweep s: 4 of 4 runs measured, 2 seeds"));
    CHECK(contains(report.out, "\na + ntk  "));
    CHECK(contains(report.out, "\nloss minus a "));
    CHECK(contains(run(output, {"report", directory, "--baseline", "b"}).out, "\nloss minus b "));

    // Again: nothing is left to do.
    const auto before = results_of_sweep(directory, 12);
    CHECK(home.run(file).done == 10);
    CHECK(home.evaluations() == 6);
    CHECK(results_of_sweep(directory, 12) == before);

    SUBCASE("another request is made again, the others are not") {
        home.run(home.file("s"), {"evaluations.1.tokens=256"});
        CHECK(home.evaluations() == 8);
    }
    SUBCASE("so is one whose results somebody else replaced") {
        put(io::join_path(directory, "a.seed1/eval/plain/request.json"), "{}");
        home.run(file);
        CHECK(home.evaluations() == 7);
    }
    SUBCASE("and one of a checkpoint that changed or of a version whose results had no fingerprints") {
        const sweep::SweepPlan plan = sweep::plan_sweep(sweep::load_sweep(file, {}));
        REQUIRE(sweep::is_evaluated(plan.runs[0], plan.runs[0].evaluations[0]));
        REQUIRE(sweep::is_evaluated(plan.runs[1], plan.runs[1].evaluations[0]));
        const std::string asked = io::join_path(plan.runs[1].directory, "eval/plain/asked.json");
        std::string text = get(asked);
        text.erase(text.find("  \"fingerprints\": true,\n"), std::strlen("  \"fingerprints\": true,\n"));
        put(asked, text);
        CHECK_FALSE(sweep::is_evaluated(plan.runs[1], plan.runs[1].evaluations[0]));
        const std::string manifest =
            io::join_path(plan.runs[0].directory, "checkpoints/step_00000012/manifest.json");
        put(manifest, get(manifest) + " ");
        CHECK_FALSE(sweep::is_evaluated(plan.runs[0], plan.runs[0].evaluations[0]));
    }
    SUBCASE("and those of a run that is gone: it is trained again, to the same bits") {
        std::filesystem::remove_all(io::join_path(directory, "b.seed1"));
        home.run(home.file("s"));
        CHECK(home.evaluations() == 7);
        CHECK(results_of_sweep(directory, 12) == before);
    }
    SUBCASE("threads are not part of a request") {
        home.run(file, {"threads=2"});
        CHECK(home.evaluations() == 6);
    }
}

TEST_CASE("sweep: a run that starts from another's weights waits for it") {
    const Home home;
    const std::string file = home.file("s", "", R"(, { "name": "next", "config": "tiny.json",
        "set": { "run.init_from": "{sweep}/a.seed{seed}" } })");
    const sweep::SweepOutcome outcome = home.run(file, {"seeds=[1]", "jobs=8", "evaluations=[]"});
    CHECK(outcome.done == 3);
    CHECK(outcome.failed == 0);
    const std::string log = home.log("s");
    CHECK(log.find("next.seed1  starts") > log.find("a.seed1  trained"));
    CHECK(contains(get(home.directory("s") + "/logs/next.seed1.log"), "starting from the weights of "));
}

TEST_CASE("sweep: a run that fails is reported with the end of its log, and the others go on") {
    const Home home;
    const std::string file = home.file("s", "", R"(, { "name": "broken", "config": "tiny.json" },
               { "name": "killed", "config": "tiny.json" })");
    const sweep::SweepOutcome outcome = home.run(file, {"seeds=[1]"});
    CHECK(outcome.failed == 2);
    CHECK(outcome.done == 2 + 3);
    CHECK(outcome.left == 2);  // their evaluations
    const std::string log = home.log("s");
    CHECK(contains(log, "broken.seed1  failed: exit code 7; the end of "));
    CHECK(contains(log, "    broken on purpose"));
    CHECK(contains(log, "killed.seed1  failed: killed by signal 9 (Killed)"));
    CHECK(contains(log, "b.seed1  trained 12 steps"));
    const report::Collection sweep = report::collect({home.directory("s")});
    CHECK(sweep.planned == 4);
    CHECK(report::sweep_results(sweep).measured == 2);
}

TEST_CASE(
    "sweep: the command ends with 11 if a run failed, 2 if the file is wrong, and --dry-run writes nothing") {
    const Home home;
    const TempDir output;
    const std::string file = home.file("s");
    const Finished dry = run(output, {"sweep", file, "--dry-run"});
    CHECK(dry.code == 0);
    CHECK(contains(dry.out, "2 variants x 2 seeds = 4 runs"));
    CHECK(io::kind_of(home.dir / "runs", io::Links::refuse) == io::PathKind::missing);
    const Finished wrong = run(output, {"sweep", file, "--set", "model.widht=3"});
    CHECK(wrong.code == 2);
    CHECK(contains(wrong.err, "did you mean model.width?"));
    // A file where the directory of a run should be: its process ends with 5.
    io::make_directories(home.directory("s"));
    put(home.directory("s") + "/a.seed1", "");
    const Finished nothing = run(output, {"report", home.directory("s")});
    CHECK(nothing.code == 3);
    CHECK(contains(nothing.err, "no results yet"));
    const Finished failing = run(output, {"sweep", file, "--jobs", "1", "--set", "evaluations=[]"});
    CAPTURE(failing.out);
    CHECK(failing.code == 11);
    CHECK(contains(failing.out, "a.seed1  failed: exit code 5"));
    CHECK(contains(failing.out, "    error: "));
    CHECK(contains(failing.out, "b.seed2  trained 12 steps"));
    CHECK(contains(failing.out, "3 done, 1 failed"));
}

TEST_CASE("sweep: killed or stopped in the middle, it goes on and ends with the results of one left alone") {
    const Home home;
    // A run of a second or so, most of it spent on checkpoints.
    const std::string longer =
        R"(, "set": { "stages": [{ "steps": 200, "context": 16 }, { "steps": 300, "context": 32 }],
        "checkpoint.every": 5, "eval.every": 100, "run.log_every": 10 })";
    const std::string whole = home.file("whole", longer), cut = home.file("cut", longer);
    REQUIRE(home.run(whole).failed == 0);
    const auto expected = results_of_sweep(home.directory("whole"), 500);
    for (const int signal : {SIGKILL, SIGTERM}) {
        CAPTURE(signal);
        std::filesystem::remove_all(home.directory("cut"));
        const pid_t child = ::fork();
        if (child == 0) ::_exit(home.run(cut).stopped ? 75 : 0);
        const std::string root = home.directory("cut") + "/a.seed1/checkpoints";
        REQUIRE(wait_until([&] {
            return io::kind_of(root, io::Links::refuse) == io::PathKind::directory &&
                   !io::checkpoint_steps(root).empty();
        }));
        ::kill(child, signal);
        int status = 0;
        REQUIRE(::waitpid(child, &status, 0) == child);
        if (signal == SIGTERM) {
            CHECK(WEXITSTATUS(status) == 75);
            CHECK(contains(home.log("cut"), "a.seed1  stopped after step "));
        } else {
            CHECK(WIFSIGNALED(status));
        }
        const sweep::SweepOutcome rest = home.run(cut);
        CHECK(rest.failed == 0);
        CHECK(rest.done == 10);
        CHECK(contains(home.log("cut"), "a.seed1  resumes after step "));
        CHECK(results_of_sweep(home.directory("cut"), 500) == expected);
    }
}

TEST_CASE("sweep: a second one on the same directory is turned away") {
    const Home home;
    const std::string file = home.file("s");
    io::make_directories(home.directory("s"));
    const io::RunLock lock(home.directory("s"));
    CHECK(error_of([&] { home.run(file); }).starts_with("10: "));
}

TEST_CASE("child processes: how they ended, and the end of their log") {
    const TempDir dir;
    const auto end_of = [&](const char* text) {
        sweep::ChildProcess child("/bin/sh", {"-c", text}, dir / "log");
        std::optional<sweep::ProcessEnd> end;
        REQUIRE(wait_until([&] { return (end = child.ended()).has_value(); }));
        return sweep::to_string(*end);
    };
    CHECK(end_of("echo one; echo two >&2; echo; echo three") == "exit code 0");
    CHECK(end_of("exit 3") == "exit code 3");
    CHECK(end_of("kill -KILL $$") == "killed by signal 9 (Killed)");
    // Stop signals wait until the program lets them through: it has its handlers by then.
    CHECK(end_of("kill -TERM $$; exit 4") == "exit code 4");
    CHECK(sweep::last_lines(dir / "log", 2) == std::vector<std::string>{"two", "three"});
    CHECK(sweep::last_lines(dir / "log", 9).size() == 3);
    CHECK(sweep::last_lines(dir / "none", 2).empty());
    sweep::ChildProcess missing(dir / "none", {}, dir / "log");
    std::optional<sweep::ProcessEnd> end;
    REQUIRE(wait_until([&] { return (end = missing.ended()).has_value(); }));
    CHECK(end->code == 127);
}
