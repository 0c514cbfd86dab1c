// Numbers that are not finite, in checkpoints that are otherwise whole: every command says so.
#include <doctest/doctest.h>

#include <cmath>
#include <filesystem>
#include <limits>

#include "attacks/rounds.h"
#include "base/rng.h"
#include "commands/process.h"
#include "train/reseal.h"
#include "train/tiny_run.h"

using namespace longreach;
using namespace longreach::test;

namespace {

struct Home {
    TempDir dir;
    std::string config = dir / "config.json";
    Home() {
        make_corpus(dir / "data");
        put(config, tiny_config(dir.path(), "short"));
        // As far as step 9 of 12: the last steps are still to come.
        check(run(dir, arguments("short", "\"steps\":4")).code == 0, "the shorter run");
        std::filesystem::rename(dir / "short", dir / "kept");
    }
    std::vector<std::string> arguments(const std::string& name,
                                       const std::string& last = "\"steps\":7") const {
        return {"train", config,
                "--set", "run.name=" + name,
                "--set", "optimizer.schedule.kind=constant",
                "--set", "stages=[{\"steps\":5,\"context\":16},{" + last + ",\"context\":32}]"};
    }
};

const Home& home() {
    static const Home h;
    return h;
}

}  // namespace

TEST_CASE(
    "numerics: a value planted anywhere near the end is refused with 7, names the tensor, and removes "
    "nothing") {
    const Rng rng(11, Purpose::test);
    const float values[] = {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::quiet_NaN(),
                            std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity()};
    const TempDir output;
    const std::string planted = home().dir / "short";
    for (int round = 0; round < attack_rounds(); ++round) {
        std::filesystem::remove_all(planted);
        std::filesystem::copy(home().dir / "kept", planted, std::filesystem::copy_options::recursive);
        const uint64_t at = 10 * static_cast<uint64_t>(round);
        const char* file = round % 2 == 0 ? "model.safetensors" : "optimizer.safetensors";
        const std::string path = planted + "/checkpoints/step_00000009/" + file;
        const io::SafetensorsFile stored = io::SafetensorsFile::open(path, io::Links::refuse);
        const io::StoredTensor& tensor = stored.tensors()[rng.below(at, stored.tensors().size())];
        const auto index = static_cast<int64_t>(rng.below(at + 1, tensor.bytes() / 4));
        const std::string name = tensor.name;
        const float value = values[rng.below(at + 2, std::size(values))];
        CAPTURE(name);
        CAPTURE(value);
        reseal(planted, 9, file, [&](std::string& bytes) { set_value(bytes, path, name, index, value); });
        const Finished f = run(output, home().arguments("short"));
        CAPTURE(f.err);
        CHECK(f.code == 7);
        CHECK(contains(f.err, fmt::format("{}: 1 of {} values is not finite, the first at index {}", name,
                                          tensor.bytes() / 4, index)));
        CHECK(contains(f.err, "hint: move " + planted +
                                  "/checkpoints/step_00000009 away; the same command then "
                                  "resumes from step_00000006"));
        CHECK(io::checkpoint_steps(planted + "/checkpoints") == std::vector<int64_t>{9, 6});
        if (round % 2 == 0) {
            // Others measure what there is, and warn.
            const Finished e = run(output, {"eval", planted, "--tokens", "64"});
            CHECK(e.code == 0);
            CHECK(contains(e.out, "warning: "));
            CHECK(contains(e.out, name + ": 1 of "));
        }
        std::filesystem::rename(planted + "/checkpoints/step_00000009", planted + "/aside");
        CHECK(run(output, home().arguments("short")).code == 0);
    }
}

TEST_CASE(
    "numerics: weights that overflow near the end are never saved; the run ends with 7 and says where to go "
    "back to") {
    const TempDir output;
    std::vector<std::string> arguments = home().arguments("growing", "\"steps\":40");
    for (const char* more :
         {"optimizer.muon.lr=1000", "optimizer.adam.embedding_lr=1000", "optimizer.adam.head_lr=1000",
          "stages.0.lr=1000", "model.embedding_norm=false", "model.head.z_loss=1e20", "checkpoint.every=1",
          "checkpoint.keep=1", "eval.every=1000"})
        arguments.insert(arguments.end(), {"--set", more});
    const Finished f = run(output, arguments);
    CAPTURE(f.out);
    CHECK(f.code == 7);
    const std::vector<int64_t> saved = io::checkpoint_steps(home().dir / "growing/checkpoints");
    REQUIRE(saved.size() == 1);
    CHECK(contains(f.out, fmt::format("no checkpoint at step {}: ", saved[0] + 1)));
    CHECK(contains(f.out,
                   "go back to " + (home().dir / ("growing/checkpoints/" + io::checkpoint_name(saved[0])))));
    const Finished again = run(output, arguments);
    CHECK(again.code == 7);
    CHECK(io::checkpoint_steps(home().dir / "growing/checkpoints") == saved);
    // A quiet run says why on standard error.
    arguments.push_back("--quiet");
    const Finished quiet = run(output, arguments);
    CHECK(quiet.code == 7);
    CHECK(quiet.out == "");
    CHECK(quiet.err.starts_with(fmt::format("error: no checkpoint at step {}: ", saved[0] + 1)));
}
