// Loss spikes: what is one, what follows, and that a resumed run and several ranks decide alike.
#include <doctest/doctest.h>

#include <cmath>
#include <csignal>

#include "train/interpose.h"
#include "train/tiny_run.h"

using namespace longreach;
using namespace longreach::test;

namespace {

constexpr int64_t steps = 12;

using Overrides = std::vector<std::string>;

struct Home {
    TempDir dir;
    Home() { make_corpus(dir / "data"); }
    config::LoadedConfig<train::Experiment> config(const std::string& name,
                                                   const Overrides& overrides) const {
        return load_tiny(tiny_config(dir.path(), name), overrides);
    }
    std::string log(const std::string& name) const { return get(dir / (name + "/log.txt")); }
};

const Home& home() {
    static const Home h;
    return h;
}

// So low that ordinary noise is a spike.
Overrides nervous(const char* action) {
    return {std::string("train.spike.action=") + action,
            "train.spike.threshold=0.5",
            "train.spike.window=4",
            "train.spike.min_steps=2",
            "batch.tokens=256",
            "batch.micro_tokens=32"};
}

json::Value state_of(const std::string& run, int64_t step = steps) {
    return json::parse(
        get(home().dir / fmt::format("{}/checkpoints/{}/state.json", run, io::checkpoint_name(step))),
        "state.json");
}

}  // namespace

TEST_CASE("spike: robust deviations are those of the definition") {
    CHECK(train::robust_deviation({}, 5) == 0);
    // Median 3, distances 2 1 0 1 2 with median 1.
    CHECK(train::robust_deviation({1, 2, 3, 4, 5}, 3 + 1.4826) == doctest::Approx(1));
    CHECK(train::robust_deviation({5, 1, 4, 2, 3}, 3 - 2 * 1.4826) == doctest::Approx(-2));
    CHECK(train::robust_deviation({1, 2, 3, 1e9}, 2.5 + 1.4826) ==
          doctest::Approx(1));                                               // an outlier moves nothing
    CHECK(train::robust_deviation({2, 2, 2}, 2.002) == doctest::Approx(1));  // equal values: a thousandth
    CHECK(std::isfinite(train::robust_deviation({0, 0, 0}, 1)));
}

TEST_CASE("spike: only upwards, only with enough steps, of the loss or of the gradient norm") {
    train::SpikeConfig config;
    config.threshold = 5;
    config.window = 8;
    config.min_steps = 4;
    train::SpikeWindow window;
    for (int i = 0; i < 3; ++i) window.add(3 + 0.1 * i, 1 + 0.01 * i, config.window);
    CHECK(train::find_spike(config, window, 100, 100) == "");
    window.add(3.3, 1.03, config.window);
    CHECK(train::find_spike(config, window, 3.4, 1.04) == "");
    CHECK(train::find_spike(config, window, -100, -100) == "");
    CHECK(train::find_spike(config, window, 9, 1).starts_with("loss 9 is "));
    CHECK(train::find_spike(config, window, 3, 9).starts_with("gradient norm 9 is "));
    for (int i = 0; i < 20; ++i) window.add(i, i, config.window);
    CHECK(window.losses == std::vector<double>{12, 13, 14, 15, 16, 17, 18, 19});
}

TEST_CASE("spike: the window survives state.json exactly, and malformed ones are refused") {
    train::TrainState state;
    state.step = 3;
    state.spikes = 2;
    state.pending = true;
    for (int i = 1; i < 9; ++i) state.spike_window.add(1.0 / i, std::sqrt(1.0 * i), 128);
    const train::TrainState read = train::TrainState::from_json(
        json::parse(json::write(state.to_json(), json::Style::pretty), "state.json"));
    CHECK(read.spike_window == state.spike_window);
    CHECK(read.spikes == 2);
    CHECK(read.pending);
    for (const char* wrong : {"{}", "{\"losses\":[1],\"norms\":[]}", "{\"losses\":[null],\"norms\":[1]}",
                              "{\"losses\":3,\"norms\":3}"}) {
        json::Value v = state.to_json();
        v.set("spike_window", json::parse(wrong, "wrong"));
        CHECK(contains(error_of([&] { train::TrainState::from_json(v); }), "4: state.json: spike"));
    }
}

TEST_CASE("spike: a warning changes no weight, no moment and no loss") {
    REQUIRE(run_training(home().config("calm", {"batch.tokens=256", "batch.micro_tokens=32"})) ==
            ExitCode::ok);
    REQUIRE(run_training(home().config("warned", nervous("warn"))) == ExitCode::ok);
    const Results calm = results_of(home().dir / "calm", steps),
                  warned = results_of(home().dir / "warned", steps);
    for (const char* file : {"model.safetensors", "optimizer.safetensors", "val.csv", "positions.csv"})
        CHECK((calm.at(file) == warned.at(file)));
    CHECK(training_losses(home().dir / "calm") == training_losses(home().dir / "warned"));
    CHECK(contains(home().log("warned"), "warning: step "));
    CHECK(contains(home().log("warned"), "robust deviations above"));
    CHECK(contains(home().log("warned"), "computed again with the same bits; training continues"));
    CHECK(!contains(home().log("calm"), "warning: step"));
    CHECK(state_of("calm").find("spikes")->as_int64() == 0);
    CHECK(state_of("warned").find("spikes")->as_int64() > 0);
    CHECK(state_of("warned").find("spikes_skipped")->as_int64() == 0);
    CHECK(contains(get(home().dir / "warned/metrics.jsonl"), "\"spikes\":"));
}

TEST_CASE("spike: skipped updates are counted apart, and a resumed run and several ranks skip the same") {
    REQUIRE(run_training(home().config("skips", nervous("skip"))) == ExitCode::ok);
    const Results whole = results_of(home().dir / "skips", steps);
    const int64_t skipped = state_of("skips").find("spikes_skipped")->as_int64();
    CHECK(skipped > 0);
    CHECK(state_of("skips").find("skipped")->as_int64() == 0);
    CHECK(state_of("skips").find("updates")->as_int64() == steps - skipped);
    CHECK(contains(home().log("skips"), "the update is skipped"));

    const auto stopped = home().config("stopped-skips", nervous("skip"));
    for (const int64_t k : {3, 4, 7, 8, 10}) {
        raise_at_step(k, SIGTERM);
        REQUIRE(run_training(stopped) == ExitCode::stopped);
        raise_at_step(0, 0);
    }
    REQUIRE(run_training(stopped) == ExitCode::ok);
    CHECK(differing(whole, results_of(home().dir / "stopped-skips", steps)) == "");

    for (const int ranks : {2, 4}) {
        REQUIRE(run_training(home().config("rank-skips", nervous("skip")), true, ranks) == ExitCode::ok);
        CHECK(differing(whole, results_of(home().dir / "rank-skips", steps)) == "");
    }
}

TEST_CASE(
    "spike: stop ends with 7 before the update and names the checkpoint; the same command comes to the same "
    "end") {
    const auto config = home().config("ends", [&] {
        Overrides all = nervous("stop");
        all.push_back("checkpoint.every=1");
        return all;
    }());
    REQUIRE(run_training(config) == ExitCode::numerics);
    CHECK(contains(home().log("ends"), "the run ends (train.spike.action: stop)"));
    const int64_t step = io::checkpoint_steps(home().dir / "ends/checkpoints").front();
    CHECK(contains(home().log("ends"),
                   "go back to " + (home().dir / ("ends/checkpoints/" + io::checkpoint_name(step)))));
    CHECK(run_training(config) == ExitCode::numerics);
    CHECK(io::checkpoint_steps(home().dir / "ends/checkpoints").front() == step);
    for (const int ranks : {2}) CHECK(run_training(config, false, ranks) == ExitCode::numerics);
    // Another action lets the same run go on.
    REQUIRE(run_training(home().config("ends", {"batch.tokens=256", "batch.micro_tokens=32"})) ==
            ExitCode::ok);
}
