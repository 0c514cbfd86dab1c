// What a run's plan is held against, what would fit, and what the plan turned out to be.
#include <algorithm>

#include "base/units.h"
#include "train/device.h"
#include "train/trainer.h"

namespace longreach::train {

int64_t Trainer::most_micro_tokens() const {
    int64_t n = 0;
    for (const Stage& s : stages_) n = std::max(n, s.micro_tokens);
    return n;
}

int64_t Trainer::most_micro_batches() const {
    int64_t n = 0;
    for (const Stage& s : stages_) n = std::max(n, s.micro_batches());
    return n;
}

// The shortest length is never left out.
std::vector<int64_t> Trainer::evaluated_up_to(int64_t longest) const {
    std::vector<int64_t> lengths = experiment_.evaluated_lengths();
    while (lengths.size() > 1 && lengths.back() > longest) lengths.pop_back();
    return lengths;
}

// Experiment::eval_batch_tokens, for the micro-batches and lengths of a trial.
int64_t Trainer::evaluated_tokens(int64_t longest) const {
    int64_t tokens = experiment_.eval.batch_tokens > 0 ? experiment_.eval.batch_tokens : most_micro_tokens();
    if (experiment_.data.task.kind != data::TaskKind::none)
        tokens = std::max(tokens, experiment_.block_tokens());
    return std::max(tokens, longest);
}

// On the CPU a second copy of the weights exists while they are initialised.
int64_t Trainer::needed(const model::Arena& arena) const {
    const bool host = ops_->native_queue().device < 0 && surroundings_.memory == 0;
    return arena.bytes() + (host ? 4 * model_.params().size() : 0);
}

// False if every stage takes one sequence at a time already.
bool Trainer::halve_micro_batches() {
    const int64_t most = most_micro_tokens() / 2;
    bool smaller = false;
    for (Stage& s : stages_) {
        int64_t sequences = std::max<int64_t>(1, std::min(s.micro_tokens, most) / s.context);
        while (s.tokens_per_step % (sequences * s.context) != 0) --sequences;
        smaller = smaller || sequences * s.context < s.micro_tokens;
        s.micro_tokens = sequences * s.context;
    }
    return smaller;
}

void Trainer::check_memory() {
    FreeMemory free = free_memory_of(*ops_, surroundings_.local_ranks);
    if (surroundings_.memory > 0) free = {surroundings_.memory, "the device planned for"};
    const int64_t wanted = needed(arena_);
    if (wanted <= free.bytes) return;
    // Smaller micro-batches first; where none fits, shorter evaluations as well.
    const std::vector<Stage> configured = stages_;
    const std::vector<int64_t> lengths = experiment_.evaluated_lengths();
    std::string advice = "not even one sequence at a time fits";
    for (auto length = lengths.rbegin(); length != lengths.rend(); ++length) {
        stages_ = configured;
        bool fits = false, smaller = true;
        while (!fits && smaller) {
            model::Arena trial(*ops_);
            plan(trial, *length);
            fits = needed(trial) <= free.bytes;
            if (!fits) smaller = halve_micro_batches();
        }
        if (!fits) continue;
        const std::string micro = fmt::format("batch.micro_tokens={}", most_micro_tokens());
        advice = *length == lengths.back()
                     ? "the largest micro-batch that fits: " + micro
                     : fmt::format(
                           "no micro-batch fits with evaluations at {}; the longest length that "
                           "fits: {}, with {}",
                           lengths.back(), *length, micro);
        break;
    }
    fail(ExitCode::device, "the plan needs {} of memory, {} are free ({}); {}", human_bytes(wanted),
         human_bytes(free.bytes), free.limit, advice);
}

// Of the GPU, else of this process.
int64_t Trainer::held_bytes() const {
    return ops_->native_queue().device >= 0 ? -ops_->free_bytes() : resident_bytes();
}

void Trainer::compare_memory() {
    if (memory_compared_) return;
    memory_compared_ = true;
    const bool on_device = held_before_plan_ < 0;
    const int64_t taken = (on_device ? held_bytes() : peak_resident_bytes()) - held_before_plan_;
    // Besides the plan a run holds batches in the loader, tables while they are filled and
    // pages of the allocator.
    constexpr int64_t tolerated = 64 << 20;
    console_.line(fmt::format("memory: planned {}, taken {}{}", human_bytes(arena_.bytes()),
                              human_bytes(taken),
                              taken > arena_.bytes() + tolerated ? "; warning: more than planned" : ""));
}

}  // namespace longreach::train
