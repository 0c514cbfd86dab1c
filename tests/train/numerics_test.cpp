// Numbers that are not finite, and a machine that miscalculates: never saved, never passed over.
#include <doctest/doctest.h>

#include <cmath>
#include <csignal>
#include <limits>

#include "base/finite.h"
#include "train/interpose.h"
#include "train/reseal.h"
#include "train/tiny_run.h"

using namespace longreach;
using namespace longreach::test;

namespace {

using Overrides = std::vector<std::string>;
constexpr float not_a_number = std::numeric_limits<float>::quiet_NaN(),
                inf = std::numeric_limits<float>::infinity();

struct Home {
    TempDir dir;
    Home() { make_corpus(dir / "data"); }
    config::LoadedConfig<train::Experiment> config(const std::string& name,
                                                   const Overrides& overrides = {}) const {
        return load_tiny(tiny_config(dir.path(), name), overrides);
    }
    std::string log(const std::string& name) const { return get(dir / (name + "/log.txt")); }
    std::vector<int64_t> saved(const std::string& name) const {
        return io::checkpoint_steps(dir / (name + "/checkpoints"));
    }
};

const Home& home() {
    static const Home h;
    return h;
}

ExitCode stop_after(const config::LoadedConfig<train::Experiment>& config, int64_t step) {
    raise_at_step(step, SIGTERM);
    const ExitCode code = run_training(config);
    raise_at_step(0, 0);
    return code;
}

// A run stopped after step 8, with `value` in one place of a tensor of its newest checkpoint.
void plant(const std::string& run, const std::string& file, const std::string& tensor, float value) {
    const std::string path = home().dir / fmt::format("{}/checkpoints/step_00000008/{}", run, file);
    reseal(home().dir / run, 8, file, [&](std::string& bytes) { set_value(bytes, path, tensor, 5, value); });
}

}  // namespace

TEST_CASE("numerics: values that are not finite are found and counted wherever they are") {
    std::vector<float> values(10000, 1e38f);
    values[3] = -std::numeric_limits<float>::denorm_min();
    CHECK(find_non_finite(values).count == 0);
    CHECK(find_non_finite({}).count == 0);
    for (const size_t at : {size_t{0}, size_t{4095}, size_t{4096}, size_t{9999}})
        for (const float bad : {not_a_number, -not_a_number, inf, -inf}) {
            std::vector<float> planted = values;
            planted[at] = bad;
            CHECK(find_non_finite(planted).count == 1);
            CHECK(find_non_finite(planted).first == static_cast<int64_t>(at));
        }
    values[70] = values[8000] = not_a_number;
    CHECK(find_non_finite(values).count == 2);
    CHECK(find_non_finite(values).first == 70);
}

TEST_CASE(
    "numerics: a checkpoint with a NaN weight or moment is refused at load, with the one to go back to") {
    const struct {
        const char *file, *tensor;
        float value;
    } plants[] = {{"model.safetensors", "layers.0.mlp.up.weight", not_a_number},
                  {"optimizer.safetensors", "muon.momentum/layers.0.mlp.up.weight", inf},
                  {"optimizer.safetensors", "adam.second/embedding.weight", -inf}};
    int i = 0;
    for (const auto& p : plants) {
        const std::string name = fmt::format("planted{}", i++);
        CAPTURE(p.tensor);
        const auto config = home().config(name);
        REQUIRE(stop_after(config, 8) == ExitCode::stopped);
        plant(name, p.file, p.tensor, p.value);
        const std::string error = error_of([&] { run_training(config); });
        CHECK(error.starts_with("7: "));
        CHECK(contains(error, std::string(p.tensor) + ": 1 of "));
        CHECK(contains(error, "values is not finite, the first at index 5"));
        // Nothing was removed or renamed, and going back works.
        CHECK(home().saved(name) == std::vector<int64_t>{8, 6});
        std::filesystem::rename(home().dir / (name + "/checkpoints/step_00000008"),
                                home().dir / (name + "/aside"));
        CHECK(run_training(config) == ExitCode::ok);
    }
}

TEST_CASE(
    "numerics: weights that overflow are not saved, the last finite checkpoint stays, and the run ends with "
    "7") {
    // One step with such a learning rate makes gradients whose squares, Adam's second moment, overflow.
    const Overrides growing{"optimizer.adam.embedding_lr=1000",
                            "optimizer.adam.head_lr=1000",
                            "optimizer.muon.lr=1000",
                            "stages.0.lr=1000",
                            "model.embedding_norm=false",
                            "model.head.z_loss=1e20",
                            "optimizer.schedule.kind=constant",
                            "checkpoint.every=1",
                            "checkpoint.keep=1",
                            "eval.every=100"};
    for (const int ranks : {1, 4}) {
        const std::string name = fmt::format("growing{}", ranks);
        REQUIRE(run_training(home().config(name, growing), false, ranks) == ExitCode::numerics);
        const std::string log = home().log(name);
        CHECK(contains(log, "no checkpoint at step "));
        CHECK(contains(log, " not finite, the first at index "));
        REQUIRE(home().saved(name).size() == 1);
        CHECK(contains(log, "go back to " + (home().dir / (name + "/checkpoints/" +
                                                           io::checkpoint_name(home().saved(name)[0])))));
        for (const std::string& file : io::list_directory(home().dir / (name + "/checkpoints")))
            CHECK((file == "latest" || file == io::checkpoint_name(home().saved(name)[0])));
        // The same command comes to the same end.
        CHECK(run_training(home().config(name, growing), false, ranks) == ExitCode::numerics);
    }
    CHECK(home().saved("growing1") == home().saved("growing4"));
}

TEST_CASE("numerics: a validation that is not finite ends with 7, its lines written") {
    // Finite weights whose logits overflow.
    REQUIRE(run_training(home().config("source")) == ExitCode::ok);
    reseal(home().dir / "source", 12, "model.safetensors", [&](std::string& bytes) {
        const std::string path = home().dir / "source/checkpoints/step_00000012/model.safetensors";
        for (int64_t i = 0; i < 200; ++i) set_value(bytes, path, "head.weight", i, 3e38f);
    });
    for (const int ranks : {1, 4}) {
        const std::string name = fmt::format("overflow{}", ranks);
        const auto config = home().config(
            name, {"run.init_from=" + home().dir / "source", "stages=[{\"steps\":3,\"context\":16}]",
                   "eval.every=2", "model.head.softcap.kind=none", "checkpoint.every=1"});
        CHECK(run_training(config, false, ranks) == ExitCode::numerics);
        CHECK(contains(home().log(name),
                       "validation at step 2: the loss at length 16 is not finite; go back to " +
                           (home().dir / (name + "/checkpoints/step_00000001"))));
        CHECK(contains(get(home().dir / (name + "/val.csv")), "\n2,"));
        CHECK(!contains(get(home().dir / (name + "/val.csv")), "\n3,"));
        CHECK(run_training(config, false, ranks) == ExitCode::numerics);  // and it stays so
    }
}

TEST_CASE("numerics: a suspicious step that gives other bits the second time ends with 9") {
    const Overrides nervous{"train.spike.threshold=0", "train.spike.window=4", "train.spike.min_steps=2"};
    for (const int ranks : {1, 2}) {
        const std::string name = fmt::format("wavering{}", ranks);
        // As if memory or disk gave other tokens at each reading.
        waver_after_step(2);
        std::string error;
        if (ranks == 1) {
            error = error_of([&] { run_training(home().config(name, nervous)); });
        } else {
            std::vector<std::string> errors(2);
            run_ranks(2, [&](ranks::Comm& comm) {
                errors[static_cast<size_t>(comm.rank())] =
                    error_of([&] { run_training(home().config(name, nervous), false, comm); });
            });
            CHECK(errors[0] == errors[1]);  // all ranks decide alike
            error = errors[0];
        }
        waver_after_step(0);
        CAPTURE(error);
        CHECK(error.starts_with("9: step "));
        CHECK(contains(error, "was computed twice and gave other bits"));
        CHECK(contains(error, "hardware suspected"));
    }
}
