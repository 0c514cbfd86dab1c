// Runs a sweep: up to `jobs` processes at a time, each a train, eval or probe command of this program.
//
// <sweep>/sweep.json  configs/<run>.json  logs/<run>.log  logs/<run>.<label>.log  <run>/...
//
// The run directories alone determine what is done, so a sweep that was killed can be continued:
// a run is trained if its newest checkpoint is of its last step; an evaluation is done if its
// directory contains an asked.json with the same arguments, checkpoint and request.json.
#pragma once

#include <functional>

#include "train/console.h"
#include "sweep/sweep_plan.h"

namespace longreach::sweep {

struct SweepOptions {
    std::string program = "/proc/self/exe";
    std::function<void()> on_progress;  // called after each command; may be empty
    bool goes_on = false;  // after a call with fewer runs, which opened the log and told what was done before
};

struct SweepOutcome {
    size_t done = 0, failed = 0, left = 0;  // runs and evaluations; left: not started, or stopped
    bool stopped = false;                   // by a signal
};

// Error(ExitCode::locked) if another process runs the same
// sweep; Error(ExitCode::disk) if the disk is too small.
SweepOutcome run_sweep(const SweepPlan& plan, const SweepOptions& options, train::Console& console);

// Whether an evaluation was completed with these arguments and the run's newest checkpoint.
bool is_evaluated(const PlannedRun& run, const PlannedEvaluation& evaluation);

}  // namespace longreach::sweep
