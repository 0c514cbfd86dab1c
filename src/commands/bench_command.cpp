// longreach bench: the time of a training step by operation, compared with the limits of this machine.
#include <algorithm>
#include <cmath>
#include <iostream>
#include <numeric>

#include "base/contention.h"
#include "base/rng.h"
#include "base/units.h"
#include "commands/commands.h"
#include "commands/yardsticks.h"
#include "kernels/op_times.h"
#include "model/device_batch.h"
#include "model/transformer.h"
#include "optim/optimizer.h"
#include "train/device.h"

namespace longreach::commands {

namespace {

using Clock = std::chrono::steady_clock;

struct BenchOptions {
    std::string config;
    std::vector<std::string> set;
    std::vector<int64_t> contexts;
    int64_t steps = 5;
    bool on_request = false;
};

// One model on random tokens, without data or run directory.
class StepBench {
  public:
    StepBench(const train::Experiment& e, Ops& ops, int64_t context)
        : ops_(ops),
          context_(context),
          tokens_(step_tokens(e, context)),
          recompute_(e.system.recompute),
          model_(e.model, context),
          optimizer_(e.optimizer, model_.params()),
          arena_(ops) {
        plan();
        arena_.commit();
        model_.fill_tables(ops);
        std::vector<float> weights;
        model::initialise(model_.params(), 1, weights);
        ops.upload(weights_.flat, weights.data());
        weights_.round(ops);
        std::vector<int32_t> ids(static_cast<size_t>(tokens_));
        // As frequent as words are: a token's frequency is about the inverse of its rank. Uniform ones would hide what
        // a gradient of the embedding costs.
        const Rng rng(1, Purpose::test);
        const auto vocabulary = static_cast<double>(e.model.vocab_size);
        for (size_t i = 0; i < ids.size(); ++i)
            ids[i] = static_cast<int32_t>(std::min(std::pow(vocabulary, rng.uniform(i)), vocabulary) - 1);
        std::vector<int32_t> next = ids;
        std::rotate(next.begin(), next.begin() + 1, next.end());
        batch_ = memory_.upload(ops, context, ids, next, {});
    }

    void step(Ops& ops) {
        ops.replay("step", [&] {
            model_.forward_backward(ops, weights_, gradients_, batch_, 1.0f / static_cast<float>(tokens_));
        });
        optimizer_.measure(ops, gradients_);
        optimizer_.step(ops, weights_, gradients_, 1.0, 0);
        weights_.round(ops);
        ops.synchronize();
    }
    int64_t tokens() const { return tokens_; }
    double flops() const { return model_.training_flops_per_token(context_) * static_cast<double>(tokens_); }

  private:
    // A micro-batch where the config gives its size, else a step, in whole sequences of the context length.
    static int64_t step_tokens(const train::Experiment& e, int64_t context) {
        const train::Stage stage = e.resolved_stages().back();
        const int64_t tokens = e.batch.micro_tokens > 0 ? stage.micro_tokens : stage.tokens_per_step;
        return std::max<int64_t>(1, tokens / context) * context;
    }
    void plan() {
        arena_.group("bench");
        weights_ = model::plan_weights(arena_, model_.params());
        gradients_.flat = arena_.reserve("gradients", DType::f32, {model_.params().size()});
        gradients_.write = Write::set;
        optimizer_.plan(arena_, ops_);
        model_.plan_tables(arena_);
        memory_.plan(arena_, tokens_, {});
        model_.plan_training(arena_, ops_,
                             {.tokens = tokens_, .lengths = {context_}, .recompute = recompute_}, false);
    }

    Ops& ops_;
    int64_t context_, tokens_;
    bool recompute_;
    model::Transformer model_;
    optim::Optimizer optimizer_;
    model::Arena arena_;
    model::FlatParams weights_, gradients_;
    model::DeviceBatch memory_;
    model::Batch batch_;
};

double seconds_of(const std::function<void()>& body) {
    const Clock::time_point begin = Clock::now();
    body();
    return std::chrono::duration<double>(Clock::now() - begin).count();
}

// The limits of the machine, as the best of a few measurements between the steps.
struct Ceilings {
    double peak = 0, copy = 0;  // FLOP/s of a matrix product, bytes/s of a copy, read plus written
    // Returns the rate of the product as it is now.
    double measure(Ops& ops) {
        const double product = train::measure_peak(ops);
        peak = std::max(peak, product);
        copy = std::max(copy, measure_copy(ops));
        return product;
    }
};

// The FLOPs of a step's operations: those of the model, of the optimizer, and of scores that backward computes again.
double computed_flops(const OpTimes& timing, int64_t steps) {
    double sum = 0;
    for (const auto& [name, total] : timing.totals()) sum += total.flops;
    return sum / static_cast<double>(steps);
}

void print_ops(const OpTimes& timing, int64_t steps, double peak, double copy) {
    std::vector<std::pair<std::string, OpTimes::Total>> rows(timing.totals().begin(), timing.totals().end());
    std::sort(rows.begin(), rows.end(),
              [](const auto& a, const auto& b) { return a.second.seconds > b.second.seconds; });
    const double all = std::accumulate(rows.begin(), rows.end(), 0.0,
                                       [](double sum, const auto& row) { return sum + row.second.seconds; });
    fmt::print("| operation | calls/step | ms/step | share | GFLOP/s | of peak | GB/s | of copy |\n");
    fmt::print("|---|---:|---:|---:|---:|---:|---:|---:|\n");
    for (const auto& [name, t] : rows) {
        const double flops = t.flops / t.seconds, bytes = t.bytes / t.seconds;
        fmt::print("| {} | {:.0f} | {:.3f} | {:.1f}% | {} | {} | {:.1f} | {:.0f}% |\n", name,
                   static_cast<double>(t.calls) / static_cast<double>(steps),
                   1e3 * t.seconds / static_cast<double>(steps), 100 * t.seconds / all,
                   flops > 0 ? fmt::format("{:.0f}", flops / 1e9) : "",
                   flops > 0 ? fmt::format("{:.0f}%", 100 * flops / peak) : "", bytes / 1e9,
                   100 * bytes / copy);
    }
    // No product comes that far above the measured peak.
    if (std::any_of(rows.begin(), rows.end(),
                    [&](const auto& row) { return row.second.flops / row.second.seconds > 1.3 * peak; }))
        fmt::print(
            "\nFLOPs count every visible pair; attention leaves out keys whose weight is 0, and so can come above 100%.\n");
}

// After each line of standard input: one step, because caches and clock are another program's, then the rate of timed ones
// and what other programs took from them. tools/peers/compare lets programs take turns step by step in this way.
void answer_requests(StepBench& step, Ops& ops, const std::string& note, int64_t context, int64_t steps) {
    fmt::print("ready: {}; context {}, {} tokens/step\n", note, context, step.tokens());
    std::fflush(stdout);
    for (std::string line; std::getline(std::cin, line);) {
        step.step(ops);
        const ContentionMeter meter;
        std::vector<double> times;
        for (int64_t i = 0; i < steps; ++i) times.push_back(seconds_of([&] { step.step(ops); }));
        fmt::print("{:.1f} {}\n", static_cast<double>(step.tokens()) / median(times), describe(meter.seen()));
        std::fflush(stdout);
    }
}

ExitCode bench(const BenchOptions& options) {
    const train::Experiment experiment = load_experiment(options.config, options.set).value;
    std::string note;
    const std::unique_ptr<Ops> ops = train::open_device(experiment.system, note);
    std::vector<int64_t> contexts = options.contexts;
    if (contexts.empty()) contexts.push_back(experiment.stages.back().context);
    if (options.on_request) {
        require(contexts.size() == 1, ExitCode::usage, "--on-request times one context length, {} are given",
                contexts.size());
        StepBench step(experiment, *ops, contexts[0]);
        answer_requests(step, *ops, note, contexts[0], options.steps);
        return ExitCode::ok;
    }
    for (int64_t context : contexts) {
        StepBench step(experiment, *ops, context);
        const auto timing = std::make_shared<OpTimes>(*ops);
        // The limits are measured between the steps, because a busy machine slows both. The speed of a shared machine
        // changes within seconds: each step is also compared with the products just before and after it.
        std::vector<double> times, shares;
        Ceilings ceilings;
        const ContentionMeter meter;
        for (int64_t i = 0; i < options.steps; ++i) {
            const double before = ceilings.measure(*ops);
            // Warms up caches, and recordings, which are lost when memory is released.
            for (int w = 0; w < 2; ++w) step.step(*ops);
            times.push_back(seconds_of([&] { step.step(*ops); }));
            const double after = ceilings.measure(*ops);
            shares.push_back(2 * step.flops() / times.back() / (before + after));
            ops->decorate(timing);
            step.step(*ops);
            ops->decorate(nullptr);
        }
        const Contention contention = meter.seen();
        const double peak = ceilings.peak, copy = ceilings.copy;
        const double seconds = median(times), share = 100 * median(shares);
        fmt::print(
            "{}\ncontext {}: {} tokens/step, median {:.3f} ms, {} tokens/s, {:.0f} GFLOP/s, {:.0f}% of the "
            "measured {:.0f} GFLOP/s; copy {:.1f} GB/s\n",
            note, context, step.tokens(), 1e3 * seconds,
            human_count(static_cast<double>(step.tokens()) / seconds), step.flops() / seconds / 1e9,
            100 * step.flops() / seconds / peak, peak / 1e9, copy / 1e9);
        fmt::print(
            "of the products timed around each step: {:.0f}%, and {:.0f}% with what operations compute "
            "again\n"
            "contention: {}\n\n",
            share, share * computed_flops(*timing, options.steps) / step.flops(), describe(contention));
        print_ops(*timing, options.steps, peak, copy);
        fmt::print("\n");
    }
    return ExitCode::ok;
}

}  // namespace

void add_bench_command(Command& program) {
    auto options = std::make_shared<BenchOptions>();
    Command command = program.add("bench", "Time a training step of a config, operation by operation");
    command.option("config", options->config, "JSON config file").required();
    command.option("--set", options->set, "Override a field").repeatable();
    command.option("--contexts", options->contexts, "Context lengths to time").comma_list();
    command.option("--steps", options->steps, "Timed steps per context").positive();
    command.flag("--on-request", options->on_request, "Time --steps steps after each line of standard input");
    command.run([options] { return bench(*options); });
}

}  // namespace longreach::commands
