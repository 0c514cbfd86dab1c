// Training on a task: what is reported, that it resumes, and which configs contradict it.
#include <doctest/doctest.h>

#include <cmath>
#include <csignal>

#include "base/text.h"
#include "train/interpose.h"
#include "train/tiny_run.h"

using namespace longreach;
using namespace longreach::test;

namespace {

constexpr int64_t steps = 10;

struct Home {
    TempDir dir;
    Home() { make_corpus(dir / "data"); }
    config::LoadedConfig<train::Experiment> config(const std::string& name,
                                                   std::vector<std::string> overrides = {}) const {
        std::vector<std::string> all{
            "data.task.kind=needle",    "data.task.samples=6",
            "data.document_mask=false", "stages=[{\"steps\":4,\"context\":64},{\"steps\":6,\"context\":128}]",
            "batch.tokens=512",         "batch.micro_tokens=128",
            "eval.lengths=[16,64]"};
        for (const std::string& text : overrides) {
            // A path may be set only once: the later one counts.
            const std::string path = text.substr(0, text.find('=') + 1);
            std::erase_if(all, [&](const std::string& earlier) { return earlier.starts_with(path); });
            all.push_back(text);
        }
        return load_tiny(tiny_config(dir.path(), name), all);
    }
};

const Home& home() {
    static const Home h;
    return h;
}

Results all_of(const std::string& name) {
    Results r = results_of(home().dir / name, steps);
    r["tasks.csv"] = get(home().dir / (name + "/tasks.csv"));
    return r;
}

}  // namespace

TEST_CASE("task: an interrupted run ends with the bytes of a whole one, tasks.csv included") {
    REQUIRE(run_training(home().config("whole")) == ExitCode::ok);
    const auto config = home().config("stopped");
    for (const int64_t k : {2, 4, 7}) {
        raise_at_step(k, SIGTERM);
        REQUIRE(run_training(config) == ExitCode::stopped);
        raise_at_step(0, 0);
    }
    REQUIRE(run_training(config) == ExitCode::ok);
    CHECK(differing(all_of("whole"), all_of("stopped")) == "");
    // Validations at steps 4, 8 and 10, each at the context of its stage.
    const std::string tasks = get(home().dir / "whole/tasks.csv");
    CHECK(tasks.find("\n4,needle,64,,6,") != std::string::npos);
    CHECK(tasks.find("\n8,needle,128,,6,") != std::string::npos);
    CHECK(tasks.find("\n10,needle,128,,6,") != std::string::npos);
}

TEST_CASE("task: loss and gradient are means over the tokens of answers") {
    REQUIRE(run_training(home().config("scored", {"model.init.zero_head=true"})) == ExitCode::ok);
    // A head of zeros says the same of each of 257 tokens.
    CHECK(training_losses(home().dir / "scored").front() == doctest::Approx(std::log(257)).epsilon(1e-6));
    // The first gradient is that of the head alone: the mean over scored tokens of (p - y) x^T, p = 1/257
    // everywhere, |x| = 4 (16 channels, normed). The entry of the most frequent of ten digits' rows is what
    // counts: (p - y) in its own row is -256/257, so the mean's norm is that of the mean of x over each digit
    // and at least |sum over digits| / sqrt(10) of a part of 4. Divided by all tokens instead of the 4 of 64
    // that are scored, it could be at most 4 / 64 * |p - y| |x| <= 0.0625 * 1.01 * 4 = 0.26.
    const std::string metrics = get(home().dir / "scored/metrics.jsonl");
    const json::Value first = json::parse(metrics.substr(0, metrics.find('\n')), "metrics.jsonl");
    CHECK(first.find("grad_norm")->as_number() > 0.26);
    CHECK(first.find("grad_norm")->as_number() <= 4.05);
    // Nothing comes back through a head of zeros.
    const json::Value& layers = *first.find("layer_grad_norms");
    REQUIRE(layers.as_array().size() == 1);
    CHECK(layers.as_array()[0].as_number() == 0);
    CHECK(first.find("bits_per_byte") == nullptr);
}

TEST_CASE("task: samples follow their own seed, text the data's") {
    const auto first_loss = [&](const std::string& name, std::vector<std::string> overrides) {
        overrides.push_back("model.init.zero_head=false");
        REQUIRE(run_training(home().config(name, overrides)) == ExitCode::ok);
        return training_losses(home().dir / name).front();
    };
    const double plain = first_loss("seed-plain", {});
    CHECK(first_loss("seed-own", {"data.task.seed=9"}) != plain);
    CHECK(first_loss("seed-same", {"data.task.seed=1"}) == plain);  // run.seed is 1
}

TEST_CASE("task: configs that contradict it are refused, fields without effect named") {
    const auto problem = [&](std::vector<std::string> overrides) -> std::string {
        try {
            return join(home().config("wrong", overrides).warnings, "\n");
        } catch (const Error& e) {
            CHECK(e.code() == ExitCode::usage);
            return e.what();
        }
    };
    const auto names = [](const std::string& text, const char* path) {
        return text.find(path) != std::string::npos;
    };
    CHECK(problem({}) == "");
    CHECK(names(problem({"data.document_mask=true"}), "data.document_mask"));
    CHECK(names(problem({"data.shuffle=none"}), "data.shuffle"));
    CHECK(names(problem({"data.task.kind=needle_s3"}), "stages.0.context"));
    CHECK(names(problem({"data.task.ids=300"}), "data.task.ids"));
    CHECK(names(problem({"data.task.form=gpt2"}), "needle_s3 alone"));
    CHECK(names(problem({"data.task.form=gpt2"}), "gpt2 needs 50257 tokens, the vocabulary has"));
    CHECK(names(problem({"data.task.form=ids", "data.task.ids=300"}), "data.task.ids"));
    CHECK(names(problem({"data.task.form=ids", "data.task.ids=128", "data.task.phrase=x"}),
                "data.task.phrase"));
    CHECK(names(problem({"data.task.phrase=\"\""}), "data.task.phrase"));
    CHECK(names(problem({"data.task.haystack=needles"}), "data.task.haystack"));
    CHECK(names(problem({"data.task.kind=copy", "data.task.digits=3"}), "data.task.digits"));
    CHECK(names(problem({"data.task.kind=none", "data.task.digits=3"}), "data.task.digits"));
    CHECK(names(problem({"data.task.kind=none", "data.task.values=uuids"}), "data.task.values"));
    CHECK(names(problem({"data.task.keys=uuids"}), "data.task.keys"));  // the kind is needle
    CHECK(names(problem({"data.task.kind=niah_single", "data.task.values=uuids", "data.task.digits=3",
                         "stages=[{\"steps\":4,\"context\":512}]", "batch.micro_tokens=512"}),
                "data.task.digits"));
    CHECK(names(problem({"data.task.kind=none", "data.task.seed=3"}), "data.task.seed"));
}
