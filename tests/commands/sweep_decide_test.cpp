// A sweep of tiny runs that adds seeds until its contrasts are decided: looks, failures, going on, --dry-run, --only.
#include "commands/decided_sweep.h"

#include <doctest/doctest.h>

#include <sys/stat.h>

#include <algorithm>
#include <filesystem>

#include "commands/process.h"
#include "train/tiny_run.h"

using namespace longreach;
using namespace longreach::test;

namespace {

// In place of training: copies a run that was trained once, with 3 added to the losses of `clear`, and to those of
// `unclear` what is certain with eight seeds and not with four. Fails for unclear.seed6 while there is a file "break".
const char* script = R"(#!/bin/sh
name=$(basename "$2" .json)
seed=${name##*seed}
echo "$name" >> "HOME_DIR/trained"
if [ "$name" = unclear.seed6 ] && [ -e "HOME_DIR/break" ]; then exit 7; fi
case $name in
clear.*) by=3 ;;
unclear.seed1) by=0.2 ;;
unclear.seed4) by=1.8 ;;
unclear.*) by=1 ;;
*) by=0.00$seed ;;
esac
run="HOME_DIR/runs/s/$name"
mkdir -p "$run" && cp -r "HOME_DIR/template/." "$run" && cp "$2" "$run/config.json"
awk -F, -v OFS=, -v by=$by 'NR > 1 { $4 = sprintf("%.20f", $4 + by) } { print }' "HOME_DIR/template/val.csv" > "$run/val.csv"
)";

std::string replace_all(std::string text, const std::string& part, const std::string& by) {
    for (size_t at = 0; (at = text.find(part, at)) != std::string::npos; at += by.size())
        text.replace(at, part.size(), by);
    return text;
}

struct Deciding {
    TempDir dir;
    std::string wrapper = dir / "program.sh", file = dir / "s.json";
    Deciding() {
        make_corpus(dir / "data");
        put(dir / "tiny.json", tiny_config(dir.path()));
        REQUIRE(run_training(load_tiny(tiny_config(dir.path(), "template"))) == ExitCode::ok);
        put(wrapper, replace_all(script, "HOME_DIR", dir.path()));
        ::chmod(wrapper.c_str(), 0755);
        put(file,
            R"({ "name": "s", "dir": ")" + dir.path() + R"(/runs", "jobs": 2, "threads": 1, "seeds": [1, 2],
                        "variants": [{ "name": "a", "config": "tiny.json" }, { "name": "clear", "config": "tiny.json" },
                         { "name": "unclear", "config": "tiny.json" }],
            "contrasts": [{ "name": "certain", "arms": ["clear", "a"], "at": 64 },
                          { "name": "later", "arms": ["unclear", "a"], "at": 64, "expect": "positive" }] })");
    }
    sweep::SweepOutcome run() const {
        train::Console console(true);
        sweep::SweepOptions options;
        options.program = wrapper;
        commands::DecidedSweep sweep(sweep::load_sweep(file, {}), [](const sweep::SweepConfig& config) {
            return sweep::plan_sweep(config);
        });
        return sweep.run(options, console);
    }
    // Runs that were trained, or begun, since the last call.
    size_t trained() const {
        const std::string path = dir / "trained";
        if (!std::filesystem::exists(path)) return 0;
        const std::string names = get(path);
        std::filesystem::remove(path);
        return static_cast<size_t>(std::count(names.begin(), names.end(), '\n'));
    }
    std::vector<report::ContrastResult> results() const {
        return report::contrast_results(report::collect({dir / "runs/s"}));
    }
};

}  // namespace

TEST_CASE("sweep --decide: seeds are added until contrasts are decided, also after a run that failed") {
    const Deciding home;
    const TempDir output;
    const auto dry = [&](const std::vector<std::string>& more = {}) {
        std::vector<std::string> arguments{"sweep", home.file, "--decide", "--dry-run"};
        arguments.insert(arguments.end(), more.begin(), more.end());
        return run(output, arguments).out;
    };
    CHECK(contains(dry(), "to decide: at least 12 runs, at most 60, with looks at 4, 8, 14, 20 seeds"));
    // Of two variants one contrast is left; it still has half of the level.
    CHECK(contains(dry({"--only", "a,unclear"}), "to decide: at least 8 runs, at most 40,"));
    put(home.dir / "break", "");
    const sweep::SweepOutcome failing = home.run();
    CHECK(failing.failed == 1);
    CHECK(home.trained() == 12 + 8);  // the others of its look were trained
    CHECK(home.results()[0].verdict == "above");
    CHECK(home.results()[0].answer.look == 1);
    CHECK(home.results()[1].verdict == "open");
    CHECK(home.results()[1].answer.look == 1);
    CHECK(contains(dry(), "to decide: at least 20 runs, at most 44,"));
    std::filesystem::remove(home.dir / "break");
    CHECK(home.run().failed == 0);
    CHECK(home.trained() == 1);
    CHECK(home.results()[1].verdict == "holds");
    CHECK(home.results()[1].answer.look == 2);
    CHECK(home.results()[1].answer.confidence == doctest::Approx(1 - 0.05 / 1.5 / 4));
    const std::string listed = get(home.dir / "runs/s/sweep.json"),
                      csv = get(home.dir / "runs/s/results.csv");
    CHECK_FALSE(contains(listed, "clear.seed5\"") != contains(listed, "unclear.seed5\""));
    const std::string log = get(home.dir / "runs/s/log.txt");  // of two calls
    const auto lines = [&](const std::string& text) {
        size_t count = 0;
        for (size_t at = 0; (at = log.find(text, at)) != std::string::npos; ++at) ++count;
        return count;
    };
    CHECK(lines("a.seed2  starts") == 1);
    CHECK(lines("a.seed2  trained already") == 1);
    CHECK(lines("unclear.seed6  failed") == 1);
    // Nothing is kept but runs: what is lost is made again, with the same end.
    std::filesystem::remove_all(home.dir / "runs/s/unclear.seed2");
    CHECK(home.run().done == 20);
    CHECK(home.trained() == 1);
    CHECK(get(home.dir / "runs/s/sweep.json") == listed);
    CHECK(get(home.dir / "runs/s/results.csv") == csv);
    CHECK(contains(dry(), "to decide: at least 20 runs, at most 20,"));
    CHECK_FALSE(contains(dry(), "not in the tables"));
    // Without --decide a sweep has the seeds of its file alone, and says what it leaves out.
    CHECK(contains(run(output, {"sweep", home.file, "--dry-run"}).out,
                   "note: 14 runs of earlier commands not in the tables: a.seed3, a.seed4, "));
}

TEST_CASE("sweep --decide: without primary contrasts of its variants it is refused") {
    const Deciding home;
    const TempDir output;
    const Finished none = run(output, {"sweep", home.file, "--decide", "--only", "a"});
    CHECK(none.code == 2);
    CHECK(contains(none.err, "--decide: the sweep has no primary contrasts between the variants it trains"));
}
