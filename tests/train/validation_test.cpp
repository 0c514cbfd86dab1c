// The checkpoint comes before the validation, which a signal interrupts between batches, and which a resumed
// run completes with the bytes of an undisturbed one.
#include <doctest/doctest.h>

#include <csignal>

#include "train/interpose.h"
#include "train/reseal.h"
#include "sweep/sweep_plan.h"
#include "train/tiny_run.h"
#include "train/validated.h"

using namespace longreach;
using namespace longreach::test;

namespace {

constexpr int64_t steps = 12;
constexpr size_t read_bytes = 130;  // of a sequence of 64 tokens and the one after it, 2 bytes each

using Overrides = std::vector<std::string>;

// Two batches at each length and validation, four at the end.
const Overrides batches{"eval.batch_tokens=64"};

struct Home {
    TempDir dir;
    Results whole;
    Home() {
        make_corpus(dir / "data");
        check(run_training(config("whole")) == ExitCode::ok, "the reference run");
        whole = results_of(dir / "whole", steps);
    }
    config::LoadedConfig<train::Experiment> config(const std::string& name,
                                                   const Overrides& more = {}) const {
        Overrides all = batches;
        all.insert(all.end(), more.begin(), more.end());
        return load_tiny(tiny_config(dir.path(), name), all);
    }
    std::string log(const std::string& name) const { return get(dir / (name + "/log.txt")); }
};

const Home& home() {
    static const Home h;
    return h;
}

ExitCode stop_in_read(const config::LoadedConfig<train::Experiment>& config, int count, int ranks = 1) {
    raise_at_read(read_bytes, count, SIGTERM);
    const ExitCode code = run_training(config, false, ranks);
    raise_at_read(0, 0, 0);
    return code;
}

}  // namespace

TEST_CASE("validation: stopped in any batch and resumed, the bytes are those of the whole run") {
    int stops = 0;
    for (int count = 1; count < 20; ++count) {
        CAPTURE(count);
        const std::string name = fmt::format("stopped{}", count);
        const auto config = home().config(name);
        const ExitCode code = stop_in_read(config, count);
        if (code == ExitCode::ok) {
            CHECK(count >= 8);  // 2 + 2 + 4 sequences of 64 tokens are scored
            break;
        }
        REQUIRE(code == ExitCode::stopped);
        ++stops;
        const int64_t step = io::checkpoint_steps(home().dir / (name + "/checkpoints")).front();
        CHECK(step % 4 == 0);
        const sweep::RunState expected = sweep::RunState::begun;
        CHECK(sweep::look_at_run(home().dir / name, config.value).state == expected);
        REQUIRE(run_training(config) == ExitCode::ok);
        CHECK(contains(home().log(name), fmt::format("resuming after step {}", step)));
        CHECK(io::kind_of(home().dir / (name + "/validation.partial"), io::Links::refuse) ==
              io::PathKind::missing);
        CHECK(sweep::look_at_run(home().dir / name, config.value).state == sweep::RunState::trained);
        CHECK(differing(home().whole, results_of(home().dir / name, steps)) == "");
    }
    CHECK(stops >= 6);
}

TEST_CASE("validation: stopped in every batch, each start gets further, with another number of threads") {
    int starts = 0;
    ExitCode code = ExitCode::stopped;
    while (code == ExitCode::stopped && starts < 50) {
        code = stop_in_read(home().config("stutter", {fmt::format("system.threads={}", 1 + starts % 2)}), 1);
        ++starts;
    }
    CHECK(code == ExitCode::ok);
    CHECK(starts > 6);
    CHECK(differing(home().whole, results_of(home().dir / "stutter", steps)) == "");
}

TEST_CASE(
    "validation: a finished one is not made again, a lost record of it makes it again to the same bytes") {
    const auto config = home().config("lost");
    REQUIRE(run_training(config) == ExitCode::ok);
    CHECK(run_training(config) == ExitCode::ok);
    CHECK(contains(home().log("lost"), "nothing to do: all 12 steps are done"));
    const std::string record = home().dir / "lost/validated.json";
    for (const std::string& text :
         {std::string(), std::string("{}"), std::string("[1"), get(record).substr(0, 20)}) {
        put(record, text);
        CHECK(sweep::look_at_run(home().dir / "lost", config.value).state == sweep::RunState::begun);
        REQUIRE(run_training(config) == ExitCode::ok);
        CHECK(differing(home().whole, results_of(home().dir / "lost", steps)) == "");
        CHECK(sweep::look_at_run(home().dir / "lost", config.value).state == sweep::RunState::trained);
    }
    // Evaluations that the run does not make are not missing, and nothing is made again for them.
    const auto validated = train::read_validated(home().dir / "lost");
    REQUIRE(validated.has_value());
    train::Validated other = *validated;
    other.done.insert(other.done.begin(), "losses of elsewhere");
    put(record, train::format_validated(other));
    CHECK(sweep::look_at_run(home().dir / "lost", config.value).state == sweep::RunState::trained);
    // A record that claims more than there is.
    put(home().dir / "lost/val.csv",
        get(home().dir / "lost/val.csv").substr(0, get(home().dir / "lost/val.csv").size() - 1));
    CHECK(sweep::look_at_run(home().dir / "lost", config.value).state == sweep::RunState::begun);
    REQUIRE(run_training(config) == ExitCode::ok);
    CHECK(differing(home().whole, results_of(home().dir / "lost", steps)) == "");
}

TEST_CASE("validation: sums of other weights or other settings are not gone on from") {
    const auto config = home().config("foreign");
    REQUIRE(stop_in_read(config, 6) == ExitCode::stopped);
    const std::string partial = home().dir / "foreign/validation.partial", sums = get(partial);
    REQUIRE(run_training(config) == ExitCode::ok);
    const auto other = home().config("other", {"seed.init=9"});
    REQUIRE(run_training(other) == ExitCode::ok);
    const Results expected = results_of(home().dir / "other", steps);
    std::filesystem::remove(home().dir / "other/validated.json");
    put(home().dir / "other/validation.partial", sums);
    REQUIRE(run_training(other) == ExitCode::ok);
    CHECK(differing(expected, results_of(home().dir / "other", steps)) == "");
}

TEST_CASE("validation: a checkpoint of an earlier version was saved after it, and is complete") {
    const auto config = home().config("earlier");
    REQUIRE(run_training(config) == ExitCode::ok);
    reseal(home().dir / "earlier", 12, "state.json", [&](std::string& text) {
        const std::string val = get(home().dir / "earlier/val.csv");
        json::Value state = json::parse(text, "state.json"), before = json::Value::object();
        for (const json::Member& m : state.as_object())
            if (m.key != "pending" && !m.key.starts_with("spike")) before.set(m.key, m.value);
        before.find("file_bytes")->set("val.csv", static_cast<int64_t>(val.size()));
        text = json::write(before, json::Style::pretty);
    });
    std::filesystem::remove(home().dir / "earlier/validated.json");
    CHECK(sweep::look_at_run(home().dir / "earlier", config.value).state == sweep::RunState::trained);
    const std::string val = get(home().dir / "earlier/val.csv");
    CHECK(run_training(config) == ExitCode::ok);
    CHECK(contains(home().log("earlier"), "nothing to do"));
    CHECK(get(home().dir / "earlier/val.csv") == val);
}

TEST_CASE("validation: several ranks stop in it together and go on alone, or together") {
    const Overrides eight{"batch.tokens=256", "batch.micro_tokens=32", "eval.final_tokens=512"};
    REQUIRE(run_training(home().config("alone", eight)) == ExitCode::ok);
    const Results expected = results_of(home().dir / "alone", steps);
    for (const int count : {1, 2, 4, 6}) {
        for (const int later : {1, 4}) {
            CAPTURE(count);
            const std::string name = fmt::format("ranks{}.{}", count, later);
            const auto config = home().config(name, eight);
            REQUIRE(stop_in_read(config, count, 2) == ExitCode::stopped);
            REQUIRE(run_training(config, false, later) == ExitCode::ok);
            CHECK(differing(expected, results_of(home().dir / name, steps)) == "");
        }
    }
}

TEST_CASE("timing.jsonl says when, and how long evaluating and saving took; the plan counts validations") {
    const std::string text = get(home().dir / "whole/timing.jsonl");
    const size_t last = text.rfind('\n', text.size() - 2) + 1;
    const json::Value line = json::parse(text.substr(last), "timing.jsonl");
    const std::string time = line.find("time")->as_string();
    CHECK(time.size() == std::string("2026-01-31T12:00:00Z").size());
    CHECK(time[10] == 'T');
    CHECK(line.find("evaluation_seconds")->as_number() > 0);
    CHECK(line.find("saving_seconds")->as_number() > 0);
    CHECK(line.find("evaluation_seconds")->as_number() + line.find("saving_seconds")->as_number() <
          line.find("seconds")->as_number());
    // The plan is printed before there is a run directory.
    const TempDir dir;
    train::Console console(true);
    console.open_log(dir / "log");
    std::string note;
    const auto config = home().config("planned");
    const std::unique_ptr<Ops> ops = train::open_device(config.value.system, note);
    const train::Trainer trainer(config.value, console, *ops);
    CHECK(contains(get(dir / "log"),
                   "validation: 2 times of 128 tokens, then once 256 tokens at the end, at 2 lengths; "));
    CHECK(contains(get(dir / "log"), "% of the run's FLOPs"));
}
