// Several ranks train the run that one rank trains: the same bytes in every file, with sharded optimiser
// state or without, interrupted and resumed at another number of ranks. Here ranks are threads that copy.
#include <doctest/doctest.h>

#include <csignal>
#include <mutex>

#include "train/interpose.h"
#include "train/tiny_run.h"

using namespace longreach;
using namespace longreach::test;

namespace {

constexpr int64_t steps = 12;

using Overrides = std::vector<std::string>;

// Eight micro-batches a step: as many leaves as the tree has.
const Overrides eight{"batch.tokens=256", "batch.micro_tokens=32"};

Overrides with(Overrides all, const Overrides& more) {
    all.insert(all.end(), more.begin(), more.end());
    return all;
}

// Corpora, runs and what one rank made of them.
struct Home {
    TempDir dir;
    Home() { make_corpus(dir / "data"); }

    config::LoadedConfig<train::Experiment> config(const std::string& name,
                                                   const Overrides& overrides) const {
        return load_tiny(tiny_config(dir.path(), name), overrides);
    }
    Results results(const std::string& name) const { return results_of(dir / name, steps); }
    Results alone(const Overrides& overrides) const {
        check(run_training(config("alone", overrides), true) == ExitCode::ok, "the run of one rank");
        return results("alone");
    }
};

ExitCode stop_after(const config::LoadedConfig<train::Experiment>& config, int64_t step, int ranks) {
    raise_at_step(step, SIGTERM);
    const ExitCode code = run_training(config, false, ranks);
    raise_at_step(0, 0);
    return code;
}

std::string message_of(const std::function<void()>& action) {
    try {
        action();
    } catch (const Error& e) {
        return std::string(e.what()) + " | " + e.hint();
    }
    return "";
}

}  // namespace

TEST_CASE("ranks: 1, 2, 4 and 8 leave the same bytes, with and without sharded optimiser state") {
    const Home home;
    for (const Overrides& variant : {Overrides{}, Overrides{"optimizer.matrices=adam"}, many_variants()}) {
        const Overrides overrides = with(eight, variant);
        const Results expected = home.alone(overrides);
        for (int ranks : {2, 4, 8}) {
            for (const char* sharded : {"true", "false"}) {
                CAPTURE(ranks);
                CAPTURE(sharded);
                const auto config =
                    home.config("run", with(overrides, {std::string("parallel.shard_optimizer=") + sharded}));
                REQUIRE(run_training(config, true, ranks) == ExitCode::ok);
                CHECK(differing(expected, home.results("run")) == "");
            }
        }
    }
}

TEST_CASE("ranks: latents at 1 and at 4") {
    const Home home;
    const Overrides overrides = with(eight, latents());
    const Results expected = home.alone(overrides);
    REQUIRE(run_training(home.config("run", overrides), true, 4) == ExitCode::ok);
    CHECK(differing(expected, home.results("run")) == "");
}

TEST_CASE(
    "ranks: micro-batches that do not divide evenly among them, and a smaller step in the first stage") {
    const Home home;
    const Overrides overrides{"batch.micro_tokens=32", "batch.tokens=352", "stages.0.batch_tokens=160"};
    const Results expected = home.alone(overrides);  // 5 and 11 micro-batches
    for (int ranks : {2, 4}) {
        CAPTURE(ranks);
        REQUIRE(run_training(home.config("run", overrides), true, ranks) == ExitCode::ok);
        CHECK(differing(expected, home.results("run")) == "");
    }
}

TEST_CASE("ranks: stopped and resumed on 4, then 2, then 1, the bytes are those of the whole run") {
    const Home home;
    const Results expected = home.alone(eight);
    const auto config = home.config("moving", eight);
    int64_t at = 0;
    for (int ranks : {4, 2, 1}) {
        at += 3;
        REQUIRE(stop_after(config, at, ranks) == ExitCode::stopped);
        // One rank sees a signal at once, several at the end of the next step.
        const int64_t stopped = ranks == 1 ? at : at + 1;
        CHECK(io::checkpoint_steps(home.dir / "moving/checkpoints").front() == stopped);
        at = stopped;
    }
    REQUIRE(run_training(config, false, 8) == ExitCode::ok);
    CHECK(differing(expected, home.results("moving")) == "");
}

TEST_CASE("ranks: starting from another run's weights") {
    const Home home;
    REQUIRE(run_training(home.config("source", with(eight, {"run.seed=5"})), true) == ExitCode::ok);
    const Overrides overrides = with(eight, {"run.init_from=" + home.dir / "source"});
    const Results expected = home.alone(overrides);
    REQUIRE(run_training(home.config("run", overrides), true, 4) == ExitCode::ok);
    CHECK(differing(expected, home.results("run")) == "");
}

TEST_CASE("ranks: the library's own order of summing gives a run of its own, sharded or not the same") {
    const Home home;
    const Overrides plain = with(eight, {"parallel.reduction=all_reduce"});
    const Results one = home.alone(eight);
    REQUIRE(run_training(home.config("run", plain), true, 4) == ExitCode::ok);
    const Results four = home.results("run");
    CHECK(differing(one, four) != "");
    REQUIRE(run_training(home.config("run", with(plain, {"parallel.shard_optimizer=false"})), true, 4) ==
            ExitCode::ok);
    CHECK(differing(four, home.results("run")) == "");
    // Only rounding differs.
    REQUIRE(run_training(home.config("run", plain), true, 4) == ExitCode::ok);
    const std::vector<double> a = training_losses(home.dir / "alone"), b = training_losses(home.dir / "run");
    REQUIRE(a.size() == b.size());
    for (size_t i = 0; i < a.size(); ++i) CHECK(a[i] == doctest::Approx(b[i]).epsilon(1e-3));
}

TEST_CASE("ranks: a step sends what the formula says: 2 (R - 1)/R of the model per rank, and the scalars") {
    const Home home;
    for (int ranks : {2, 4, 8}) {
        for (const char* sharded : {"true", "false"}) {
            CAPTURE(ranks);
            CAPTURE(sharded);
            const auto bytes = [&](int64_t count) {
                const auto config = home.config(
                    "run", with(eight, {"stages=[{\"steps\":" + std::to_string(count) + ",\"context\":32}]",
                                        "eval.every=100", "checkpoint.every=0",
                                        std::string("parallel.shard_optimizer=") + sharded}));
                std::mutex mutex;
                int64_t sent = 0;
                run_ranks(ranks, [&](ranks::Comm& comm) {
                    run_training(config, true, comm);
                    const std::lock_guard lock(mutex);
                    sent += comm.bytes_sent();
                });
                return sent;
            };
            const train::Experiment e = home.config("run", eight).value;
            const model::Transformer model(e.model, e.table_rows());
            const optim::Optimizer optimizer(e.optimizer, model.params(), {0, ranks, true});
            int64_t numbers = 0;
            for (int r = 0; r < ranks; ++r) numbers += optimizer.ownership().elements(r);
            CHECK(numbers >= model.params().count());
            CHECK(numbers <= model.params().size());
            const int64_t scalars = 8 + static_cast<int64_t>(optimizer.ownership().pieces().size()) + ranks;
            const int64_t expected = (ranks - 1) * (2 * 4 * numbers + 8 * scalars);  // of all ranks together
            CHECK(bytes(5) - bytes(2) == 3 * expected);
        }
    }
}

TEST_CASE("ranks: a full disk costs a checkpoint and not the run; the other ranks do not hang") {
    const Home home;
    const Results expected = home.alone(eight);
    const auto config = home.config("run", eight);
    refuse_space(1);
    CHECK(run_training(config, true, 4) == ExitCode::ok);
    refuse_space(0);
    CHECK(contains(get(home.dir / "run/log.txt"), "warning: no checkpoint at step 3"));
    CHECK(differing(expected, home.results("run")) == "");
}

TEST_CASE("ranks: all give up at the same step that is not finite") {
    const Home home;
    // One step with a learning rate this large makes every later loss overflow.
    const Overrides bad{"optimizer.adam.embedding_lr=1000",
                        "optimizer.adam.head_lr=1000",
                        "optimizer.muon.lr=1000",
                        "stages.0.lr=1000",
                        "model.embedding_norm=false",
                        "optimizer.max_bad_steps=3",
                        "model.head.z_loss=1e20",
                        "optimizer.schedule.kind=constant",
                        "checkpoint.every=0"};
    for (int ranks : {1, 4}) {
        CAPTURE(ranks);
        const auto config = home.config("run" + std::to_string(ranks), bad);
        CHECK(run_training(config, true, ranks) == ExitCode::numerics);
    }
    CHECK(get(home.dir / "run1/metrics.jsonl") == get(home.dir / "run4/metrics.jsonl"));
}

TEST_CASE(
    "ranks: too few micro-batches, a number that is no power of two, too many: said, with what to set") {
    const Home home;
    const auto attempt = [&](int ranks, const Overrides& overrides) {
        return message_of([&] { run_training(home.config("run", overrides), true, ranks); });
    };
    CHECK(contains(attempt(8, {}),
                   "8 ranks, but the steps at context 16 have 4 micro-batches | set "
                   "batch.micro_tokens to at most 16"));
    CHECK(contains(attempt(8, {"batch.micro_tokens=128"}), "have 1 micro-batch |"));
    CHECK(contains(attempt(3, eight), "3 ranks: the gradient is summed over a power of two of them"));
    CHECK(contains(attempt(4, with(eight, {"batch.leaves=2"})),
                   "4 ranks, but batch.leaves=2 parts of a step's gradient: set batch.leaves=4"));
}

TEST_CASE("ranks: optimiser state is spread: the plans of four ranks together hold it once") {
    const Home home;
    const auto state_bytes = [&](int ranks, bool sharded) {
        const train::Experiment e = home.config("run", eight).value;
        const model::Transformer model(e.model, e.table_rows());
        int64_t bytes = 0;
        for (int r = 0; r < ranks; ++r) {
            const std::unique_ptr<Ops> ops = make_cpu_ops({.threads = 1});
            optim::Optimizer optimizer(e.optimizer, model.params(), {r, ranks, sharded});
            model::Arena arena(*ops);
            optimizer.plan(arena, *ops);
            for (const optim::Optimizer::Named& n : optimizer.state()) bytes += n.tensor.bytes();
        }
        return bytes;
    };
    const int64_t one = state_bytes(1, true);
    CHECK(state_bytes(4, true) == one);
    CHECK(state_bytes(4, false) == 4 * one);
}
