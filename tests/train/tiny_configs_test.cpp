// The experiments under configs/: each plans its memory, and each learns once shrunk.
#include <doctest/doctest.h>

#include <algorithm>

#include "train/tiny_configs.h"

using namespace longreach;
using namespace longreach::test;

namespace {

double mean(std::vector<double>::const_iterator begin, std::vector<double>::const_iterator end) {
    double sum = 0;
    for (auto it = begin; it != end; ++it) sum += *it;
    return sum / static_cast<double>(end - begin);
}

}  // namespace

TEST_CASE("what shrinks an experiment further names one that exists") {
    const std::vector<std::string> all = experiments();
    CHECK(all.size() >= 70);
    for (const auto& [file, overrides] : shrink_more)
        CHECK_MESSAGE(std::count(all.begin(), all.end(), file) == 1, file);
}

TEST_CASE("every experiment at full size shows its memory plan") {
    const TempDir dir;
    const std::string data = make_long_corpus(dir / "data");
    std::vector<std::string> files = experiments();
    for (const std::string& file : experiments("quickstart")) files.push_back(file);
    for (const std::string& file : files) {
        CAPTURE(file);
        const auto config = load(file, data, dir / "runs");
        train::Console console(true);
        const std::string log = dir / "log.txt";
        std::filesystem::remove(log);
        console.open_log(log);
        std::string note;
        const std::unique_ptr<Ops> ops = train::open_device(config.value.system, note);
        // More memory than any of them takes, whatever this machine has.
        const train::Trainer trainer(config.value, console, *ops, 0, 1, {.memory = int64_t{1} << 50});
        const std::string text = get(log);
        CHECK(text.find("memory plan") != std::string::npos);
        CHECK(text.find("activations, training") != std::string::npos);
    }
}

TEST_CASE("every tiny experiment trains 20 steps and its loss falls") {
    const TempDir dir;
    const std::string data = make_long_corpus(dir / "data");
    for (const std::string& file : experiments()) {
        CAPTURE(file);
        const auto config = load_tiny_version(file, data, dir / "runs", {"eval.final_tokens=1024"});
        REQUIRE(config.value.total_steps() == 20);
        REQUIRE(run_training(config) == ExitCode::ok);
        const std::string run = io::join_path(config.value.run.dir, config.value.run.name);
        const std::vector<double> losses = training_losses(run);
        REQUIRE(losses.size() == 20);
        CHECK(mean(losses.end() - 5, losses.end()) < mean(losses.begin(), losses.begin() + 5) - 0.2);
        std::filesystem::remove_all(run);
    }
}
