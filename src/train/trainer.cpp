#include "train/trainer.h"

#include <algorithm>
#include <cstring>
#include <map>

#include "base/text.h"
#include "base/units.h"
#include "kernels/cpu_device.h"
#include "train/batch_source.h"
#include "train/device.h"
#include "train/signals.h"

namespace longreach::train {

Trainer::Trainer(const Experiment& experiment, Console& console, Ops& ops, int rank, int ranks,
                 const Surroundings& surroundings)
    : session_(experiment, console, ops, rank, ranks, surroundings),
      agreement_(session_),
      stepper_(session_, agreement_),
      recorder_(session_),
      validator_(session_, agreement_, recorder_),
      saver_(session_, agreement_, stepper_, recorder_, validator_),
      memory_(session_, [this](model::Arena& arena, const MemoryPlan::Work& work) { reserve(arena, work); }) {
    describe();
    memory_.check();
}

void Trainer::reserve(model::Arena& arena, const MemoryPlan::Work& work) {
    session_.weights = model::plan_weights(arena, session_.model.params());
    stepper_.plan_state(arena, work.stages);
    agreement_.plan(arena);
    session_.model.plan_tables(arena);
    stepper_.plan_score_maxima(arena);
    // Training and validation never run at the same time: their activations share memory.
    arena.overlay(2, [&](size_t i) {
        if (i == 0)
            stepper_.plan_activations(arena, work.stages, work.recompute);
        else
            validator_.plan(arena, work.stages, work.longest);
    });
}

void Trainer::allocate() {
    session_.peak_flops = measure_peak(session_.ops);  // while there is room for its matrices
    memory_.check();
    memory_.allocate();
    session_.model.fill_tables(session_.ops);
}

void Trainer::describe() const {
    const Experiment& experiment = session_.experiment;
    const Schedule& schedule = session_.schedule;
    Console& console = session_.console;
    const model::ParamTable& table = session_.model.params();
    std::map<std::string, int64_t> by_group;
    for (const model::Param& p : table.params()) by_group[model::name_of(p.group)] += p.count();
    std::string parameters;
    for (const auto& [group, count] : by_group)
        parameters += fmt::format("{}{} {}", parameters.empty() ? "" : ", ", group,
                                  human_count(static_cast<double>(count)));
    if (const auto& only = experiment.optimizer.only; !only.empty()) {
        int64_t trained = 0;
        for (const model::Param& p : table.params())
            if (experiment.optimizer.trains(p.name)) trained += p.count();
        parameters += fmt::format("; {} of them trained", human_count(static_cast<double>(trained)));
    }
    const int64_t context = schedule.stages().back().context;
    console.line(fmt::format("model: {} parameters ({}), {} FLOP per training token at context {}",
                             human_count(static_cast<double>(table.count())), parameters,
                             human_count(session_.model.training_flops_per_token(context)), context));
    for (const Stage& s : schedule.stages())
        console.line(fmt::format(
            "stage {}: {} steps of {} tokens at context {}, {} micro-batch{} each{}", schedule.number_of(s),
            s.steps, human_count(static_cast<double>(s.tokens_per_step)), s.context, s.micro_batches(),
            s.micro_batches() == 1 ? "" : "es", s.lr == 1 ? "" : fmt::format(", lr x {}", s.lr)));
    if (session_.ranks > 1)
        console.line(fmt::format("ranks: {}; {}; each sends {} per step", session_.ranks,
                                 experiment.parallel.shard_optimizer
                                     ? stepper_.optimizer().ownership().describe()
                                     : "all update everything",
                                 human_bytes(stepper_.bytes_sent_per_step())));
    const std::string& no_data = session_.surroundings.no_data;
    const int64_t tokens = schedule.tokens();
    const auto count = [](auto n) { return human_count(static_cast<double>(n)); };
    if (!no_data.empty()) {
        console.line(fmt::format("data: {} training tokens; not looked at: {}", count(tokens), no_data));
    } else {
        const BatchSourceType& source = batch_source_type(experiment.data);
        const TrainingText text{session_.train_stream, stepper_.batch_plan()};
        console.line(fmt::format("data: {} training tokens ({} {}), {} validation tokens", count(tokens),
                                 source.use(experiment, text, tokens), count(session_.train_stream.tokens()),
                                 count(session_.val_stream.tokens())));
        if (const std::string more = source.further(experiment, text, tokens); !more.empty())
            console.line(more);
    }
    std::vector<std::string> sets;
    for (const ValidationSet& set : session_.val_sets)
        if (!set.name.empty()) sets.push_back(fmt::format("{} {}", set.name, count(set.stream.tokens())));
    if (no_data.empty() && !sets.empty())
        console.line(fmt::format("further validation tokens: {}", join(sets, ", ")));
    console.line(schedule.evaluation_line());
    if (!session_.surroundings.plan_shown) return;
    console.line("memory plan (activations of training and validation share theirs):\n" + memory_.table() +
                 fmt::format("  {:<24}{:>12}", "kernel scratch", human_bytes(session_.ops.scratch_bytes())));
}

std::string Trainer::time_line() const {
    constexpr double most = 0.8, least = 0.4;  // of the rate of products
    const double rate = measure_peak(session_.ops);
    if (rate <= 0) return "";
    // A forward pass more is a third of what forward and backward passes compute.
    const double again = session_.experiment.system.recompute ? session_.schedule.training_flops(0) / 3 : 0;
    const double seconds = (session_.schedule.flops() + again) / (rate * session_.ranks);
    return fmt::format("time: {} to {}, at {:.0f}% to {:.0f}% of the {} FLOP/s of matrix products here",
                       human_duration(seconds / most), human_duration(seconds / least), 100 * most,
                       100 * least, human_count(rate));
}

ExitCode Trainer::stop() {
    const int64_t step = session_.state.step;
    if (step > 0 && !saver_.saved(step) && !saver_.save()) return ExitCode::numerics;
    session_.console.line(fmt::format("stopped by {} after step {}; the same command resumes",
                                      strsignal(agreement_.stop_signal()), step));
    return ExitCode::stopped;
}

ExitCode Trainer::evaluate() {
    stepper_.settle();
    switch (validator_.evaluate()) {
        case Validator::End::complete:
            return ExitCode::ok;
        case Validator::End::stopped:
            return stop();
        case Validator::End::not_finite:
            break;
    }
    return ExitCode::numerics;
}

// Saves before it evaluates: a signal must not wait for an evaluation, which may take longer than the sender
// of the signal waits.
ExitCode Trainer::finish_step() {
    TrainState& state = session_.state;
    recorder_.note_lengths();
    validator_.set_done({});
    state.pending = validator_.due();
    const bool last = session_.schedule.last(state.step), stopping = agreement_.stop_signal() != 0;
    const int64_t save_every = session_.experiment.checkpoint.every;
    const bool due = last || stopping || (save_every > 0 && state.step % save_every == 0);
    if (due && !saver_.save()) return ExitCode::numerics;
    if (stopping) return stop();
    const ExitCode code = state.pending ? evaluate() : ExitCode::ok;
    if (code != ExitCode::ok || last || agreement_.stop_signal() == 0) return code;
    return stop();
}

ExitCode Trainer::advance() {
    const Stopwatch watch;
    const StepOutcome outcome = stepper_.step();
    if (outcome.refused) return ExitCode::numerics;
    const TrainState& state = session_.state;
    session_.team->set_step(state.step);
    recorder_.step(outcome, watch.seconds());
    if (Pool* pool = pool_of(session_.ops))
        if (const std::string news = pool->news(); !news.empty()) session_.console.line(news);
    memory_.compare();
    if (state.bad_in_a_row <= session_.experiment.optimizer.max_bad_steps) return finish_step();
    session_.console.end_line(
        fmt::format("giving up: {} steps in a row had a non-finite loss or gradient", state.bad_in_a_row));
    return ExitCode::numerics;
}

ExitCode Trainer::run(RunDirectory* directory, ranks::Comm& comm, ranks::Team& team) {
    check((directory != nullptr) == (session_.rank == 0), "rank {} and the run directory", session_.rank);
    session_.directory = directory;
    session_.comm = &comm;
    session_.team = &team;
    // Until there is something to save, a signal may end a single process at once. With several ranks, none
    // may end before the others know about the signal.
    std::optional<StopSignals> signals;
    if (session_.ranks > 1) signals.emplace();
    if (session_.writes()) session_.console.line("run: " + directory->path());
    allocate();
    stepper_.connect();
    saver_.start();
    const TrainState& state = session_.state;
    const int64_t steps = session_.schedule.steps();
    if (state.step >= steps && !validator_.pending()) {
        session_.console.line(fmt::format("nothing to do: all {} steps are done", steps));
        return ExitCode::ok;
    }
    saver_.open_records();
    if (!signals) signals.emplace();
    ExitCode code = ExitCode::ok;
    if (state.step == 0 && session_.experiment.checkpoint.at_start) {
        recorder_.note_lengths();
        code = saver_.save() ? ExitCode::ok : ExitCode::numerics;
    } else if (state.pending) {
        code = evaluate();
    }
    while (code == ExitCode::ok && state.step < steps) code = advance();
    if (code == ExitCode::ok) recorder_.end(io::SessionEnd::success);
    if (code == ExitCode::numerics) recorder_.end(io::SessionEnd::failure);
    session_.ops.synchronize();  // before the communicator is destroyed
    return code;
}

}  // namespace longreach::train
