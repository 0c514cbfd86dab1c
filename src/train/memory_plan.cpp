#include "train/memory_plan.h"

#include <algorithm>
#include <limits>

#include "base/units.h"
#include "train/device.h"

namespace longreach::train {

namespace {

// Returns false if every stage already takes one sequence at a time.
bool halve_micro_batches(std::vector<Stage>& stages) {
    const int64_t most = most_micro_tokens(stages) / 2;
    bool smaller = false;
    for (Stage& s : stages) {
        int64_t sequences = std::max<int64_t>(1, std::min(s.micro_tokens, most) / s.context);
        while (s.tokens_per_step % (sequences * s.context) != 0) --sequences;
        smaller = smaller || sequences * s.context < s.micro_tokens;
        s.micro_tokens = sequences * s.context;
    }
    return smaller;
}

}  // namespace

MemoryPlan::MemoryPlan(const Session& session, Reserve reserve)
    : session_(session), reserve_(std::move(reserve)), arena_(session.ops) {
    reserve_(arena_, {session.schedule.stages(), std::numeric_limits<int64_t>::max(), recomputes()});
}

// On the CPU, a second copy of the weights exists during their initialisation.
int64_t MemoryPlan::needed(const model::Arena& arena) const {
    const bool host = session_.ops.native_queue().device < 0 && session_.surroundings.memory == 0;
    return arena.bytes() + (host ? 4 * session_.model.params().size() : 0);
}

int64_t MemoryPlan::needed(const Work& work) const {
    model::Arena trial(session_.ops);
    reserve_(trial, work);
    return needed(trial);
}

// Tries smaller micro-batches first; if none fits, shorter evaluations as well.
std::string MemoryPlan::what_fits(int64_t free) const {
    const std::vector<int64_t> lengths = session_.experiment.evaluated_lengths();
    for (auto length = lengths.rbegin(); length != lengths.rend(); ++length) {
        std::vector<Stage> stages = session_.schedule.stages();
        bool fits = false, smaller = true;
        while (!fits && smaller) {
            fits = needed({stages, *length, recomputes()}) <= free;
            if (!fits) smaller = halve_micro_batches(stages);
        }
        if (!fits) continue;
        const std::string micro = fmt::format("batch.micro_tokens={}", most_micro_tokens(stages));
        if (*length == lengths.back()) return "the largest micro-batch that fits: " + micro;
        return fmt::format(
            "no micro-batch fits with evaluations at {}; the longest length that fits: {}, with {}",
            lengths.back(), *length, micro);
    }
    return "not even one sequence at a time fits";
}

void MemoryPlan::check() const {
    FreeMemory free = free_memory_of(session_.ops, session_.surroundings.local_ranks);
    if (session_.surroundings.memory > 0) free = {session_.surroundings.memory, "the device planned for"};
    const int64_t wanted = needed(arena_);
    if (wanted <= free.bytes) return;
    std::string advice = what_fits(free.bytes);
    if (!recomputes()) {
        const int64_t less = needed({session_.schedule.stages(), std::numeric_limits<int64_t>::max(), true});
        if (less < wanted) advice += fmt::format("; system.recompute=true needs {}", human_bytes(less));
    }
    fail(ExitCode::device, "the plan needs {} of memory, {} are free ({}); {}", human_bytes(wanted),
         human_bytes(free.bytes), free.limit, advice);
}

// Resident bytes of this process; with a GPU, minus the free bytes of the GPU.
int64_t MemoryPlan::held() const {
    return session_.ops.native_queue().device >= 0 ? -session_.ops.free_bytes() : resident_bytes();
}

void MemoryPlan::allocate() {
    held_before_ = held();
    arena_.commit();
}

void MemoryPlan::compare() {
    if (compared_) return;
    compared_ = true;
    const bool on_device = held_before_ < 0;
    const int64_t taken = (on_device ? held() : peak_resident_bytes()) - held_before_;
    // Outside the plan, a run holds batches in the loader, tables while they are being filled, and pages
    // that the allocator keeps for reuse.
    constexpr int64_t tolerated = 64 << 20;
    session_.console.line(
        fmt::format("memory: planned {}, taken {}{}", human_bytes(arena_.bytes()), human_bytes(taken),
                    taken > needed(arena_) + tolerated ? "; warning: more than planned" : ""));
}

}  // namespace longreach::train
