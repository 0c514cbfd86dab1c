// Stop signals at every moment: from the first instruction on, while training, inside a validation.
#include <doctest/doctest.h>

#include <filesystem>

#include "attacks/rounds.h"
#include "base/rng.h"
#include "commands/process.h"
#include "train/tiny_run.h"

using namespace longreach;
using namespace longreach::test;

namespace {

constexpr int64_t steps = 400;
constexpr int signals[] = {SIGTERM, SIGINT, SIGHUP, SIGUSR1};

double seconds_of(const std::function<void()>& action) {
    const auto begin = std::chrono::steady_clock::now();
    action();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

struct Home {
    TempDir dir;
    std::string config = dir / "config.json";
    Results whole;
    double seconds = 0;
    Home() {
        make_corpus(dir / "data");
        put(config, tiny_config(dir.path(), "whole"));
        Finished f;
        seconds = seconds_of([&] { f = run(dir, arguments("whole")); });
        check(f.code == 0, "the reference run ended with {}: {}", f.code, f.err);
        whole = results_of(dir / "whole", steps);
    }
    std::vector<std::string> arguments(const std::string& name,
                                       const std::vector<std::string>& more = {}) const {
        std::vector<std::string> all{
            "train", config,
            "--set", "run.name=" + name,
            "--set", "stages=[{\"steps\":200,\"context\":16},{\"steps\":200,\"context\":32}]",
            "--set", "batch.tokens=256",
            "--set", "checkpoint.every=50",
            "--set", "eval.every=20"};
        all.insert(all.end(), more.begin(), more.end());
        return all;
    }
};

const Home& home() {
    static const Home h;
    return h;
}

const Rng& rng() {
    static const Rng r(static_cast<uint64_t>(std::time(nullptr)), Purpose::test);
    return r;
}

// Signals after random times until the run is complete; every end is 75, or 0 at last.
void interrupt(const std::string& name, const std::vector<std::string>& arguments, double longest, int most,
               int& stopped) {
    const TempDir output;
    static uint64_t draws = 0;
    for (int k = 0; k < most; ++k) {
        const int number = signals[rng().below(draws++, std::size(signals))];
        // Half of them while the process starts.
        const double wait = rng().uniform(draws++) * (k % 2 == 0 ? std::min(longest, 0.05) : longest);
        CAPTURE(number);
        CAPTURE(wait);
        CAPTURE(name);
        Process process(output, arguments, {.block_signals = true});
        sleep_for(wait);
        process.signal(number);
        const int code = process.wait();
        CAPTURE(process.out());
        CAPTURE(process.err());
        REQUIRE((code == 75 || code == 0));
        if (code == 0) break;
        ++stopped;
    }
    const Finished last = run(output, arguments);
    CAPTURE(last.err);
    REQUIRE(last.code == 0);
}

}  // namespace

TEST_CASE(
    "signals: from the first instruction to the last, a run ends with 75 and resumes to the same bytes") {
    int stopped = 0;
    for (int round = 0; round < attack_rounds(); ++round) {
        const std::string name = fmt::format("random{}", round);
        // Measured now: the waits must fit the machine as it is, whatever its load was before.
        const TempDir clock;
        const double seconds = seconds_of([&] {
            run(clock, home().arguments("clock", {"--set", "run.dir=" + clock.path()}));
        });
        interrupt(name, home().arguments(name), seconds, 8, stopped);
        CHECK(differing(home().whole, results_of(home().dir / name, steps)) == "");
        std::filesystem::remove_all(home().dir / name);
    }
    // The first signal of a round comes within 0.05 s, and no run ends so early. A later one can find the
    // run complete: its wait is drawn over a whole run of a moment ago, and the load has changed since.
    CHECK(stopped >= attack_rounds());
}

TEST_CASE("signals: several ranks end with 75 and resume to the same bytes") {
    int stopped = 0;
    for (int round = 0; round < attack_rounds(1); ++round) {
        const std::string name = fmt::format("ranks{}", round);
        interrupt(name, home().arguments(name, {"--ranks", "2"}), home().seconds, 4, stopped);
        CHECK(differing(home().whole, results_of(home().dir / name, steps)) == "");
        std::filesystem::remove_all(home().dir / name);
    }
}

TEST_CASE("signals: a sweep that starts ends with 75, and goes on") {
    const std::string sweep = home().dir / "sweep.json";
    put(sweep,
        fmt::format(
            R"({{ "name": "swept", "dir": "{0}", "variants": [{{ "name": "a", "config": "config.json" }}],
  "set": {{ "stages": [{{ "steps": 20, "context": 16 }}] }}, "seeds": [1, 2], "jobs": 2, "threads": 1,
  "evaluations": [{{ "name": "plain" }}] }})",
            home().dir.path()));
    int stopped = 0;
    for (int round = 0; round < attack_rounds(1); ++round) {
        interrupt("sweep", {"sweep", sweep}, 0.5, 4, stopped);
        std::filesystem::remove_all(home().dir / "swept");
    }
    CHECK(stopped > 0);
}

TEST_CASE(
    "signals: TERM in a validation of many seconds ends in less than 2, and the rest is made by the next") {
    // Checkpoints only where they must be, so that each signal meets a validation.
    const auto arguments = [](const std::string& name) {
        std::vector<std::string> all{"train", home().config};
        for (const std::string& set :
             {"run.name=" + name, std::string("stages=[{\"steps\":4,\"context\":32}]"),
              "data.val=[\"" + home().dir.path() + "/long/val_*.bin\"]", std::string("eval.every=2"),
              std::string("eval.lengths=[64,512]"), std::string("eval.batch_tokens=512"),
              std::string("eval.tokens=16384"), std::string("eval.final_tokens=500000"),
              std::string("model.layers=4"), std::string("model.width=64"),
              std::string("checkpoint.every=0")})
            all.insert(all.end(), {"--set", set});
        return all;
    };
    text::SynthOptions options;
    options.output = home().dir / "long";
    options.train_bytes = 1000;
    options.val_bytes = 600000;
    text::synthesize(options);
    const TempDir output;
    double whole = 0;
    whole = seconds_of([&] { REQUIRE(run(output, arguments("slow")).code == 0); });
    MESSAGE("the run takes " << whole << " s, nearly all of it its last validation");
    const Results expected = results_of(home().dir / "slow", 4);
    double slowest = 0;
    int starts = 0, code = 75;
    while (code == 75 && starts < 12) {
        Process process(output, arguments("stopped"));
        const double wait = whole * (0.3 + 0.3 * rng().uniform(1000 + static_cast<uint64_t>(starts)));
        for (double waited = 0; waited < wait && process.running(); waited += 0.05) sleep_for(0.05);
        const bool sent = process.running();
        process.signal(SIGTERM);
        const double took = seconds_of([&] { code = process.wait(); });
        CAPTURE(process.err());
        REQUIRE((code == 75 || code == 0));
        if (sent) slowest = std::max(slowest, took);
        ++starts;
    }
    CHECK(code == 0);
    CHECK(starts > 1);
    CHECK(slowest < 2);
    CHECK(differing(expected, results_of(home().dir / "stopped", 4)) == "");
}
