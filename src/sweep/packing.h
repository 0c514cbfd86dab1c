// How many runs of a sweep train at the same time, where the sweep file leaves it open.
//
// A core that has a run of its own waits for no other, so on a CPU there is a run for each core, one thread each, as far as
// their memory fits; fewer runs than cores share them. On a GPU there is one.
#pragma once

#include <cstdint>
#include <span>

#include "sweep/sweep_config.h"
#include "sweep/sweep_plan.h"

namespace longreach::sweep {

struct Packing {
    int64_t jobs = 1, threads = 1;  // threads of each run
};

struct PackingRequest {
    int64_t jobs = 0, threads = 0;  // as the sweep file says; 0: open
    int64_t cores = 1, free_bytes = 0;
    bool on_cpu = true;
    std::span<const int64_t> bytes{};  // memory of each run
};
Packing pack(const PackingRequest& request);

// Sets jobs and threads of the plan, and the threads of its runs.
void pack_runs(SweepPlan& plan, const SweepConfig& sweep);

// About how much memory the run takes on a CPU, with its validations.
int64_t memory_of(const train::Experiment& experiment);

}  // namespace longreach::sweep
