#include "train/schedule.h"

#include <algorithm>
#include <limits>

#include "base/text.h"

namespace longreach::train {

namespace {

// Multiples of `every` in [from, end).
int64_t multiples(int64_t every, int64_t from, int64_t end) {
    if (every == 0 || from >= end) return 0;
    return (end - 1) / every - (from - 1) / every;
}

}  // namespace

int64_t most_micro_tokens(const std::vector<Stage>& stages) {
    int64_t n = 0;
    for (const Stage& s : stages) n = std::max(n, s.micro_tokens);
    return n;
}

int64_t most_micro_batches(const std::vector<Stage>& stages) {
    int64_t n = 0;
    for (const Stage& s : stages) n = std::max(n, s.micro_batches());
    return n;
}

Schedule::Schedule(const Experiment& experiment, const model::Transformer& model,
                   const std::vector<ValidationSet>& sets)
    : experiment_(experiment),
      model_(model),
      sets_(sets),
      stages_(experiment.resolved_stages()),
      steps_(experiment.total_steps()) {}

int64_t Schedule::tokens() const {
    int64_t n = 0;
    for (const Stage& s : stages_) n += s.steps * s.tokens_per_step;
    return n;
}

const Stage& Schedule::stage_of(int64_t step) const {
    for (const Stage& s : stages_)
        if (step < s.first_step + s.steps) return s;
    return stages_.back();
}

double Schedule::step_flops(const Stage& stage) const {
    return model_.training_flops_per_token(stage.context) * static_cast<double>(stage.tokens_per_step);
}

double Schedule::training_flops(int64_t from_step) const {
    double flops = 0;
    for (const Stage& s : stages_) {
        const int64_t steps = s.first_step + s.steps - std::max(from_step, s.first_step);
        flops += step_flops(s) * static_cast<double>(std::max<int64_t>(0, steps));
    }
    return flops;
}

double Schedule::losses_flops(bool final, const ValidationSet& set) const {
    return stream_flops(final, static_cast<int64_t>(set.stream.tokens()));
}

double Schedule::stream_flops(bool final, int64_t stream_tokens) const {
    const eval::EvalConfig& e = experiment_.eval;
    const int64_t longest = e.lengths.back();
    const int64_t wanted = std::min(final ? e.final_tokens : e.tokens, stream_tokens);
    double flops = 0;
    for (const int64_t length : e.lengths) {
        int64_t tokens = wanted / longest * longest;
        if (e.align == eval::EvalAlign::suffix) {
            const int64_t scored =
                e.suffix_tokens > 0 ? e.suffix_tokens : std::max<int64_t>(1, e.lengths.front() / 2);
            tokens = wanted / scored * length;
        }
        flops += model_.evaluation_flops_per_token(length) * static_cast<double>(tokens);
    }
    return flops;
}

double Schedule::task_flops() const {
    if (!experiment_.scores_task()) return 0;
    const int64_t context = stages_.back().context, sequences = 2 * experiment_.data.task.samples;
    return model_.evaluation_flops_per_token(context) * static_cast<double>(sequences * context);
}

double Schedule::validation_flops(bool final) const {
    double flops = task_flops();
    for (const ValidationSet& set : sets_) flops += losses_flops(final, set);
    if (sets_.empty()) flops += stream_flops(final, std::numeric_limits<int64_t>::max());
    return flops;
}

double Schedule::probe_flops() const {
    const std::vector<int64_t>& lengths = experiment_.probe_lengths();
    const int64_t tokens = std::max(experiment_.probe.tokens, lengths.back());
    double flops = 0;
    for (const int64_t length : lengths)
        flops += model_.evaluation_flops_per_token(length) * static_cast<double>(tokens);
    return flops;
}

double Schedule::seconds_left(int64_t step, double flops_per_second, const TimeSpent& spent) const {
    const auto seconds = [&](const Measured& measured, double flops) {
        return measured.flops > 0 ? measured.seconds / measured.flops * flops : flops / flops_per_second;
    };
    const int64_t from = std::max<int64_t>(step, 1);
    const auto times = [&](int64_t every) { return static_cast<double>(multiples(every, from, steps_)); };
    double left = training_flops(step) / flops_per_second +
                  seconds(spent.validations,
                          times(experiment_.eval.every) * validation_flops(false) + validation_flops(true));
    if (experiment_.probe.every > 0)
        left += seconds(spent.probes, (times(experiment_.probe.every) + 1) * probe_flops());
    if (spent.saves > 0)
        left += spent.saving / static_cast<double>(spent.saves) * (times(experiment_.checkpoint.every) + 1);
    return left;
}

double Schedule::flops() const {
    double flops =
        training_flops(0) + validation_flops(true) +
        static_cast<double>(multiples(experiment_.eval.every, 1, steps_)) * validation_flops(false);
    if (experiment_.probe.every > 0)
        flops += static_cast<double>(multiples(experiment_.probe.every, 1, steps_) + 1) * probe_flops();
    return flops;
}

std::string Schedule::evaluations() const {
    const eval::EvalConfig& e = experiment_.eval;
    const int64_t times = multiples(e.every, 1, steps_);
    std::string text = "validation: ";
    if (times > 0)
        text += fmt::format("{} of {} tokens, then ", counted(static_cast<size_t>(times), "time"), e.tokens);
    text +=
        fmt::format("once {} tokens at the end, at {}", e.final_tokens, counted(e.lengths.size(), "length"));
    if (sets_.size() > 1)
        text += fmt::format(", on data.val and {}", counted(sets_.size() - 1, "further set"));
    if (experiment_.scores_task())
        text += fmt::format(" and {} of the task",
                            counted(static_cast<size_t>(experiment_.data.task.samples), "sample"));
    if (experiment_.probe.every > 0) {
        const int64_t count = multiples(experiment_.probe.every, 1, steps_) + 1;
        text += fmt::format("; {}", counted(static_cast<size_t>(count), "probe"));
    }
    return text + fmt::format("; {:.3g}% of the run's FLOPs", 100 * (1 - training_flops(0) / flops()));
}

}  // namespace longreach::train
