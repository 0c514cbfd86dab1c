// Same config, same bits: at any number of threads, on every instruction set, wherever the leaves of the
// gradient tree are computed; and the micro-batch decides memory, never which tokens a step sees.
#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <thread>

#include "kernels/cpu_device.h"
#include "train/tiny_run.h"

using namespace longreach;
using namespace longreach::test;

namespace {

// Big enough that every kernel splits its work: 4096 tokens per micro-batch, weights of more than one tile.
std::string small_config(const std::string& directory) {
    return fmt::format(R"({{
  "run": {{ "name": "run", "dir": "{0}", "log_every": 1 }},
  "model": {{
    "layers": 2, "width": 72, "mlp": {{ "hidden": 200 }}, "residual": {{ "x0": true, "values": "first" }},
    "norm": {{ "gain": true }}, "attention": {{ "heads": 3, "head_dim": 32 }},
    "layouts": {{ "near": {{ "window": 50 }}, "far": {{ "score": "scale_invariant" }} }},
    "pattern": ["near", "far"]
  }},
  "data": {{ "train": ["{0}/data/train_*.bin"], "val": ["{0}/data/val_*.bin"] }},
  "stages": [{{ "steps": 3, "context": 512 }}],
  "batch": {{ "tokens": 8192, "micro_tokens": 4096 }},
  "eval": {{ "every": 0, "lengths": [512, 2048], "final_tokens": 4096 }},
  "system": {{ "device": "cpu" }}
}})",
                       directory);
}

void make_larger_corpus(const std::string& directory) {
    text::SynthOptions options;
    options.output = directory;
    options.train_bytes = 20000;
    options.val_bytes = 6000;
    options.min_document = 256;
    options.max_document = 4096;
    options.max_distance = 2048;
    text::synthesize(options);
}

// The instruction set that the runs of one scope use, however the scope is left.
struct InstructionSet {
    explicit InstructionSet(const char* name) { REQUIRE(setenv("LONGREACH_ISA", name, 1) == 0); }
    ~InstructionSet() { unsetenv("LONGREACH_ISA"); }
};

}  // namespace

TEST_CASE("determinism: 1, 2, 3 and 8 threads end with the same bytes, on every instruction set") {
    const TempDir dir;
    make_larger_corpus(dir / "data");
    struct Device {
        const char *isa, *precision;
    };
    for (const Device& device : std::vector<Device>{{"generic", "fp32"},
                                                    {"avx2", "fp32"},
                                                    {"avx512", "fp32"},
                                                    {"avx512", "bf16"},
                                                    {"avx512_amx", "bf16"},
                                                    {"neon", "fp32"},
                                                    {"neon_bf16", "fp32"},
                                                    {"neon_bf16", "bf16"}}) {
        CAPTURE(device.isa);
        CAPTURE(device.precision);
        const InstructionSet chosen(device.isa);
        Results first;
        for (const char* threads : {"1", "2", "3", "8"}) {
            CAPTURE(threads);
            const auto config =
                load_tiny(small_config(dir.path()), {fmt::format("system.threads={}", threads),
                                                     fmt::format("system.precision={}", device.precision)});
            // REQUIRE reports an exception as a failure, so the call that may throw stands outside it.
            ExitCode code = ExitCode::internal;
            try {
                code = run_training(config, true);
            } catch (const Error& error) {
                if (error.code() != ExitCode::device) throw;
                MESSAGE(error.what());  // this machine lacks the instruction set
                break;
            }
            REQUIRE(code == ExitCode::ok);
            const Results results = results_of(dir / "run", 3);
            if (first.empty()) first = results;
            CHECK(differing(first, results) == "");
        }
    }
}

TEST_CASE("determinism: many variants at once, 1, 2, 3 and 8 threads") {
    const TempDir dir;
    make_larger_corpus(dir / "data");
    Results first;
    for (const char* threads : {"1", "2", "3", "8"}) {
        CAPTURE(threads);
        std::vector<std::string> overrides = many_variants();
        overrides.push_back(fmt::format("system.threads={}", threads));
        const auto config = load_tiny(small_config(dir.path()), overrides);
        REQUIRE(run_training(config, true) == ExitCode::ok);
        const train::Experiment& e = config.value;
        const Results results = results_of(io::join_path(e.run.dir, e.run.name), e.total_steps());
        if (first.empty()) first = results;
        CHECK(differing(first, results) == "");
    }
}

TEST_CASE("determinism: latents, 1, 3 and 8 threads") {
    const TempDir dir;
    make_larger_corpus(dir / "data");
    Results first;
    for (const char* threads : {"1", "3", "8"}) {
        CAPTURE(threads);
        std::vector<std::string> overrides = latents();
        overrides.insert(overrides.end(),
                         {"model.residual.values=none", fmt::format("system.threads={}", threads)});
        REQUIRE(run_training(load_tiny(small_config(dir.path()), overrides), true) == ExitCode::ok);
        const Results results = results_of(dir / "run", 3);
        if (first.empty()) first = results;
        CHECK(differing(first, results) == "");
    }
}

TEST_CASE(
    "determinism: 64 and 128 threads, and a number that changes all the time, end with the same bytes") {
    const TempDir dir;
    make_larger_corpus(dir / "data");
    Results first;
    for (const char* threads : {"1", "64", "128", "8"}) {
        CAPTURE(threads);
        std::vector<std::string> overrides = many_variants();
        overrides.push_back(fmt::format("system.threads={}", threads));
        const auto config = load_tiny(small_config(dir.path()), overrides);
        const train::Experiment& e = config.value;
        std::string note;
        const std::unique_ptr<Ops> ops = train::open_device(e.system, note);
        Pool* pool = pool_of(*ops);
        REQUIRE(pool != nullptr);
        std::atomic<bool> stop{false};
        std::thread changing([&] {
            for (int i = 0; pool->threads() == 8 && !stop; ++i) {
                pool->use(1 + i * 5 % 8);
                std::this_thread::sleep_for(std::chrono::microseconds(300));
            }
        });
        ExitCode code = ExitCode::internal;
        run_ranks(1, [&](ranks::Comm& comm) { code = run_training(config, true, comm, *ops); });
        stop = true;
        changing.join();
        REQUIRE(code == ExitCode::ok);
        const Results results = results_of(io::join_path(e.run.dir, e.run.name), e.total_steps());
        if (first.empty()) first = results;
        CHECK(differing(first, results) == "");
    }
}

TEST_CASE(
    "determinism: the micro-batch does not change which tokens a step sees, nor, but for rounding, the "
    "loss") {
    const TempDir dir;
    make_corpus(dir / "data");
    std::vector<int32_t> expected;
    std::vector<double> losses;
    for (const char* micro : {"32", "64", "128", "0"}) {
        CAPTURE(micro);
        const auto config = load_tiny(tiny_config(dir.path()), {fmt::format("batch.micro_tokens={}", micro)});
        const train::Experiment& e = config.value;
        const data::TokenStream stream =
            data::TokenStream::open(e.data.train, e.data.stream_options(e.model.vocab_size));
        const data::BatchPlan plan(stream.tokens(), e.block_tokens(), e.data_seed(), e.data.shuffle);
        data::StreamBatches source(stream, plan);
        data::Loader loader(source, {.max_tokens = 128});
        std::vector<int32_t> seen;  // tokens, targets and document starts of each step
        for (const train::Stage& s : e.resolved_stages())
            for (int64_t step = 0; step < s.steps; ++step) {
                std::vector<int32_t> targets, starts;
                for (int64_t m = 0; m < s.micro_batches(); ++m) {
                    const int64_t at = s.first_token + step * s.tokens_per_step + m * s.micro_tokens;
                    loader.request({static_cast<uint64_t>(at), s.micro_tokens / s.context, s.context});
                    const data::MicroBatch batch = loader.take();
                    seen.insert(seen.end(), batch.tokens.begin(), batch.tokens.end());
                    targets.insert(targets.end(), batch.targets.begin(), batch.targets.end());
                    starts.insert(starts.end(), batch.doc_start.begin(), batch.doc_start.end());
                }
                seen.insert(seen.end(), targets.begin(), targets.end());
                seen.insert(seen.end(), starts.begin(), starts.end());
            }
        if (expected.empty()) expected = seen;
        CHECK(seen == expected);

        REQUIRE(run_training(config, true) == ExitCode::ok);
        const std::string line = get(dir / "run/metrics.jsonl");
        const json::Value first = json::parse(line.substr(0, line.find('\n')), "metrics.jsonl");
        losses.push_back(first.find("loss")->as_number());
        // Step 1 sums the same 128 single-precision losses, each off by a few units in the last
        // place of log V.
        CHECK(std::abs(losses.back() - losses.front()) < 16 * 0x1p-24 * std::log(257));
    }
}

TEST_CASE("determinism: leaves of the gradient computed by a process of their own sum to the same bits") {
    const TempDir dir;
    make_corpus(dir / "data");
    const train::Experiment e = load_tiny(tiny_config(dir.path())).value;
    const data::TokenStream stream =
        data::TokenStream::open(e.data.train, e.data.stream_options(e.model.vocab_size));
    const data::BatchPlan plan(stream.tokens(), e.block_tokens(), e.data_seed(), e.data.shuffle);
    constexpr int64_t micro_batches = 19, length = 16, sequences = 2, n = sequences * length;

    // One rank: a model, weights and the buffers it needs for its part of the tree.
    struct Rank {
        std::unique_ptr<Ops> ops = make_cpu_ops({.threads = 1});
        model::Arena arena{*ops};
        model::Transformer model;
        train::GradientTree tree;
        model::FlatParams weights, leaf;
        Tensor tokens, targets, doc_start;
        explicit Rank(const train::Experiment& experiment) : model(experiment.model, length) {
            const int64_t size = model.params().size();
            weights.flat = arena.reserve("weights", DType::f32, {size});
            leaf.flat = arena.reserve("leaf", DType::f32, {size});
            tree.plan(arena, size, micro_batches);
            tokens = arena.reserve("tokens", DType::i32, {n});
            targets = arena.reserve("targets", DType::i32, {n});
            doc_start = arena.reserve("doc_start", DType::i32, {n});
            model.plan_tables(arena);
            model.plan_training(arena, *ops, {n, {length}}, true);
            arena.commit();
            model.fill_tables(*ops);
            std::vector<float> host;
            model::initialise(model.params(), 1, host);
            ops->upload(weights.flat, host.data());
        }
        void accumulate(const model::FlatParams& gradient, const data::TokenStream& data,
                        const data::BatchPlan& order, int64_t m) {
            std::vector<int32_t> t(n), y(n), d(n);
            std::vector<data::Piece> pieces;
            data::fill_batch(data, order, {static_cast<uint64_t>(m * n), sequences, length}, t, y, d, pieces);
            ops->upload(tokens, t.data());
            ops->upload(targets, y.data());
            ops->upload(doc_start, d.data());
            model.forward_backward(*ops, weights, gradient, {sequences, length, tokens, targets, doc_start},
                                   1.0f / (micro_batches * n));
        }
        std::vector<float> host(const model::FlatParams& from) const {
            std::vector<float> out(static_cast<size_t>(model.params().size()));
            ops->download(out.data(), from.flat);
            return out;
        }
    };

    Rank whole(e);
    whole.tree.begin_step(micro_batches);
    for (int64_t m = 0; m < micro_batches; ++m) {
        whole.accumulate(whole.tree.begin(m), stream, plan, m);
        whole.tree.end(*whole.ops, m);
    }
    std::vector<std::vector<float>> leaves;
    for (int64_t l = 0; l < 8; ++l) {
        Rank rank(e);
        for (int64_t m = 0; m < micro_batches; ++m)
            if (m * 8 / micro_batches == l) rank.accumulate(rank.leaf, stream, plan, m);
        leaves.push_back(rank.host(rank.leaf));
    }
    for (size_t apart = 1; apart < 8; apart *= 2)
        for (size_t l = 0; l < 8; l += 2 * apart)
            for (size_t i = 0; i < leaves[l].size(); ++i) leaves[l][i] += leaves[l + apart][i];
    const std::vector<float> total = whole.host(whole.tree.result());
    CHECK(total == leaves[0]);
    CHECK(std::any_of(total.begin(), total.end(), [](float g) { return g != 0; }));
}
