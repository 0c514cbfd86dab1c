// Positions of training sequences drawn from a longer range: what is drawn, and what it changes in a run.
#include <doctest/doctest.h>

#include <cmath>
#include <numeric>

#include "train/positions.h"
#include "train/tiny_run.h"

using namespace longreach;
using namespace longreach::test;

TEST_CASE(
    "drawn positions: rising, below the range, every one of them equally likely, other ones in every step") {
    const train::PositionsConfig config{40};
    std::vector<int> times(40);
    constexpr int steps = 4000;
    for (int64_t step = 0; step < steps; ++step) {
        const std::vector<int64_t> drawn = config.drawn(3, step, 10);
        REQUIRE(drawn.size() == 10);
        for (size_t i = 0; i < drawn.size(); ++i) {
            REQUIRE(drawn[i] < 40);
            REQUIRE(drawn[i] > (i == 0 ? -1 : drawn[i - 1]));
            ++times[static_cast<size_t>(drawn[i])];
        }
        CHECK(drawn == config.drawn(3, step, 10));
        CHECK(drawn != config.drawn(3, step + 1, 10));
    }
    // A quarter of the steps, within five deviations.
    for (const int t : times) CHECK(std::abs(t - steps / 4) < 5 * std::sqrt(steps * 3.0 / 16));
    std::vector<int64_t> all(40);
    std::iota(all.begin(), all.end(), 0);
    CHECK(config.drawn(3, 7, 40) == all);
}

TEST_CASE("drawn positions: nothing changes where all are drawn; otherwise only what training does") {
    const TempDir dir;
    make_corpus(dir / "data");
    const auto train = [&](const std::string& name, std::vector<std::string> overrides) {
        overrides.push_back(R"(stages=[{"steps":12,"context":32}])");
        REQUIRE(run_training(load_tiny(tiny_config(dir.path(), name), overrides)) == ExitCode::ok);
        return results_of(dir / name, 12);
    };
    const Results plain = train("plain", {});
    CHECK(differing(plain, train("whole", {"positions.range=32"})) == "");
    CHECK(differing(plain, train("drawn", {"positions.range=64"})) != "");
    // An evaluation before training has the positions of every other run, one amid training leaves the drawn ones.
    const Results seldom = train("seldom", {"positions.range=64", "eval.every=12"});
    const Results often = train("often", {"positions.range=64", "eval.every=1"});
    CHECK(seldom.at("model.safetensors") == often.at("model.safetensors"));
}
