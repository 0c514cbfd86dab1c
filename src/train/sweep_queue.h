// Works through a sweep: `jobs` processes at a time, each a train, eval or probe of this program.
//
// <sweep>/sweep.json  configs/<run>.json  logs/<run>.log  logs/<run>.<label>.log  <run>/...
//
// The run directories alone determine what is done, so a sweep that was killed continues: a run is trained when
// its newest checkpoint is of its last step; an evaluation is done when its directory holds an asked.json with
// the same arguments, checkpoint and request.json.
#pragma once

#include <functional>

#include "train/console.h"
#include "train/sweep_plan.h"

namespace longreach::train {

struct SweepOptions {
    std::string program = "/proc/self/exe";
    std::function<void()> on_progress;  // after anything was finished; may be empty
};

struct SweepOutcome {
    size_t done = 0, failed = 0, left = 0;  // runs and evaluations; left: not reached, or stopped
    bool stopped = false;                   // by a signal
};

// Error(ExitCode::locked) if another process works on the same sweep; Error(ExitCode::disk) if it cannot fit.
SweepOutcome run_sweep(const SweepPlan& plan, const SweepOptions& options, Console& console);

// Whether the results of an evaluation are those of these arguments and this checkpoint of the run.
bool is_evaluated(const PlannedRun& run, const PlannedEvaluation& evaluation);

}  // namespace longreach::train
