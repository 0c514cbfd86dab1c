// Whole runs on the CUDA backend in the harness: every experiment of configs/, against the same run on the
// CPU.
#include <doctest/doctest.h>

#include <cmath>
#include <numbers>

#include "simt/simt.h"
#include "train/tiny_configs.h"

using namespace longreach;
using namespace longreach::test;

namespace {

// Three steps of every tiny experiment: contexts of 24 and 48, two micro-batches of 144 tokens.
std::vector<std::string> shrunk(const std::string& target, const std::string& precision) {
    return {"system.device=" + target,
            "system.precision=" + precision,
            "model.init.zero_projections=false",
            "stages=[{\"steps\":2,\"context\":24},{\"steps\":1,\"context\":48}]",
            "batch.tokens=288",
            "batch.micro_tokens=144",
            "eval.lengths=[48,96]",
            "eval.final_tokens=192",
            "eval.batch_tokens=192"};
}

struct Outcome {
    std::vector<double> losses;  // of the steps, then of the validation
};

Outcome outcome_of(const std::string& file, const std::string& data, const std::string& runs,
                   const std::vector<std::string>& overrides) {
    const auto config = load(join_path("tiny", file), data, runs, overrides);
    REQUIRE(train(config, true) == ExitCode::ok);
    const std::string run = join_path(config.value.run.dir, config.value.run.name);
    Outcome outcome{training_losses(run)};
    const std::string csv = get(run + "/val.csv");
    size_t column = 0;
    for (size_t at = 0, end; (end = csv.find('\n', at)) != std::string::npos; at = end + 1) {
        std::vector<std::string> cells;
        const std::string line = csv.substr(at, end - at);
        for (size_t a = 0, b; a <= line.size(); a = b + 1) {
            b = std::min(line.find(',', a), line.size());
            cells.push_back(line.substr(a, b - a));
        }
        if (at == 0)
            column = static_cast<size_t>(std::find(cells.begin(), cells.end(), "loss") - cells.begin());
        else
            outcome.losses.push_back(std::stod(cells.at(column)));
    }
    std::filesystem::remove_all(run);
    return outcome;
}

double largest_difference(const Outcome& a, const Outcome& b) {
    REQUIRE(a.losses.size() == b.losses.size());
    double worst = 0;
    for (size_t i = 0; i < a.losses.size(); ++i) worst = std::max(worst, std::abs(a.losses[i] - b.losses[i]));
    return worst;
}

}  // namespace

TEST_CASE("every tiny experiment trains and validates on the backend as it does on the CPU") {
    const TempDir dir;
    const std::string data = make_long_corpus(dir / "data");
    double worst_f32 = 0, worst_bf16 = 0;
    for (const std::string& file : experiments("tiny")) {
        CAPTURE(file);
        const Outcome cpu = outcome_of(file, data, dir / "runs", shrunk("cpu", "fp32"));
        const Outcome f32 = outcome_of(file, data, dir / "runs", shrunk("cuda", "fp32"));
        const Outcome bf16 = outcome_of(file, data, dir / "runs", shrunk("cuda", "bf16"));
        REQUIRE(cpu.losses.size() == 5);
        MESSAGE(file, " ", largest_difference(cpu, f32), " ", largest_difference(cpu, bf16));
        worst_f32 = std::max(worst_f32, largest_difference(cpu, f32));
        worst_bf16 = std::max(worst_bf16, largest_difference(cpu, bf16));
    }
    MESSAGE("largest difference of a loss: f32 ", worst_f32, ", bf16 ", worst_bf16);
}
