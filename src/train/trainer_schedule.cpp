// What a run has before it: FLOPs of training and of evaluations, and how long they take.
#include "base/text.h"
#include "train/trainer.h"

namespace longreach::train {

namespace {

// Multiples of `every` in [from, end).
int64_t multiples(int64_t every, int64_t from, int64_t end) {
    if (every == 0 || from >= end) return 0;
    return (end - 1) / every - (from - 1) / every;
}

}  // namespace

double Trainer::training_flops(int64_t from_step) const {
    double flops = 0;
    for (const Stage& s : stages_) {
        const int64_t steps =
            std::max<int64_t>(0, s.first_step + s.steps - std::max(from_step, s.first_step));
        flops += model_.training_flops_per_token(s.context) * static_cast<double>(steps * s.tokens_per_step);
    }
    return flops;
}

// Of one validation. An upper bound where the stream is shorter than what may be scored.
double Trainer::validation_flops(bool final) const {
    const eval::EvalConfig& e = experiment_.eval;
    const int64_t longest = e.lengths.back();
    const int64_t wanted =
        std::min(final ? e.final_tokens : e.tokens, static_cast<int64_t>(val_stream_.tokens()));
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
    if (!experiment_.scores_task()) return flops;
    const int64_t context = stages_.back().context, sequences = 2 * experiment_.data.task.samples;
    return flops + model_.evaluation_flops_per_token(context) * static_cast<double>(sequences * context);
}

double Trainer::probe_flops() const {
    const std::vector<int64_t>& lengths = experiment_.probe_lengths();
    const int64_t tokens = std::max(experiment_.probe.tokens, lengths.back());
    double flops = 0;
    for (const int64_t length : lengths)
        flops += model_.evaluation_flops_per_token(length) * static_cast<double>(tokens);
    return flops;
}

// Of training and of all that comes after this step's update, its own evaluations included. What has not been
// measured yet takes as long as training with as many FLOPs; saving, nothing.
double Trainer::seconds_left(double flops_per_second) const {
    const auto seconds = [&](const Spent& spent, double flops) {
        return spent.flops > 0 ? spent.seconds / spent.flops * flops : flops / flops_per_second;
    };
    const int64_t step = std::max<int64_t>(state_.step, 1);
    const double validation =
        static_cast<double>(multiples(experiment_.eval.every, step, total_steps_)) * validation_flops(false) +
        validation_flops(true);
    const int64_t probe_every = experiment_.probe.every, save_every = experiment_.checkpoint.every;
    double left = training_flops(state_.step) / flops_per_second + seconds(validations_, validation);
    if (probe_every > 0)
        left += seconds(probes_,
                        static_cast<double>(multiples(probe_every, step, total_steps_) + 1) * probe_flops());
    if (saves_ > 0)
        left += saving_seconds_ / static_cast<double>(saves_) *
                static_cast<double>(multiples(save_every, step, total_steps_) + 1);
    return left;
}

std::string Trainer::evaluation_plan() const {
    const eval::EvalConfig& e = experiment_.eval;
    const int64_t times = multiples(e.every, 1, total_steps_);
    const double all = static_cast<double>(times) * validation_flops(false) + validation_flops(true);
    const double training = training_flops(0);
    double probes = 0;
    std::string text = "validation: ";
    if (times > 0)
        text += fmt::format("{} of {} tokens, then ", counted(static_cast<size_t>(times), "time"), e.tokens);
    text +=
        fmt::format("once {} tokens at the end, at {}", e.final_tokens, counted(e.lengths.size(), "length"));
    if (experiment_.scores_task())
        text += fmt::format(" and {} of the task",
                            counted(static_cast<size_t>(experiment_.data.task.samples), "sample"));
    if (experiment_.probe.every > 0) {
        const int64_t count = multiples(experiment_.probe.every, 1, total_steps_) + 1;
        probes = static_cast<double>(count) * probe_flops();
        text += fmt::format("; {}", counted(static_cast<size_t>(count), "probe"));
    }
    return text +
           fmt::format("; {:.3g}% of the run's FLOPs", 100 * (all + probes) / (training + all + probes));
}

}  // namespace longreach::train
