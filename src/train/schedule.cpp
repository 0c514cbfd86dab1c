#include "train/schedule.h"

#include <algorithm>

#include <fmt/format.h>

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
                   const std::vector<ValidationSet>& sets, const EvaluationList& evaluations)
    : experiment_(experiment),
      model_(model),
      sets_(sets),
      evaluations_(evaluations),
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

double Schedule::flops_after(const Evaluation& evaluation, int64_t step) const {
    return evaluation.flops(model_, sets_, last(step));
}

double Schedule::flops_from(const Evaluation& evaluation, int64_t step) const {
    return static_cast<double>(multiples(evaluation.every(), step, steps_)) *
               evaluation.flops(model_, sets_, false) +
           evaluation.flops(model_, sets_, true);
}

double Schedule::seconds_left(int64_t step, double flops_per_second, const TimeSpent& spent) const {
    const int64_t from = std::max<int64_t>(step, 1);
    double left = training_flops(step) / flops_per_second;
    for (const auto& evaluation : evaluations_) {
        const auto measured = spent.evaluations.find(evaluation->name());
        const double rate = measured != spent.evaluations.end() && measured->second.flops > 0
                                ? measured->second.flops / measured->second.seconds
                                : flops_per_second;
        left += flops_from(*evaluation, from) / rate;
    }
    if (spent.saves > 0)
        left += spent.saving / static_cast<double>(spent.saves) *
                static_cast<double>(multiples(experiment_.checkpoint.every, from, steps_) + 1);
    return left;
}

double Schedule::flops() const {
    double flops = training_flops(0);
    for (const auto& evaluation : evaluations_) flops += flops_from(*evaluation, 1);
    return flops;
}

std::string Schedule::evaluation_line() const {
    std::string line;
    for (const auto& evaluation : evaluations_)
        line += evaluation->phrase(multiples(evaluation->every(), 1, steps_));
    return line + fmt::format("; {:.3g}% of the run's FLOPs", 100 * (1 - training_flops(0) / flops()));
}

}  // namespace longreach::train
