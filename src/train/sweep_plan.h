// The runs a sweep file asks for: every config resolved and checked, what is already there,
// what it will take.
#pragma once

#include "train/experiment.h"
#include "train/sweep_config.h"

namespace longreach::train {

// One evaluation of one run, as arguments of this program.
struct PlannedEvaluation {
    std::string label;
    std::vector<std::string> arguments;        // eval <run> --label <label> ...
    std::vector<std::string> probe_arguments;  // probe <run> --label <label> ...; empty: none asked for
};

enum class RunState { fresh, begun, trained };

struct PlannedRun {
    std::string variant;  // with what the point adds: "rope.tau-10"
    std::string of;       // the variant of the sweep file
    std::string point;    // "tau-10", or ""
    int64_t seed = 0;
    std::string name;       // "rope.tau-10.seed2"
    std::string directory;  // <sweep>/<name>
    Experiment experiment;
    std::string resolved;  // the config the run is given
    std::vector<PlannedEvaluation> evaluations;
    RunState state = RunState::fresh;
    int64_t step = 0;        // of the newest checkpoint
    int64_t kept_bytes = 0;  // of checkpoints, once trained
    int64_t peak_bytes = 0;  // of checkpoints, while it trains
};

struct SweepPlan {
    std::string name, directory, baseline;
    std::vector<PlannedRun> runs;      // all of the first seed, then all of the second ...
    std::vector<std::string> skipped;  // contradictory points, each with its reason
    std::vector<std::string> notes;    // worth knowing before it starts
    int64_t jobs = 1, threads = 1;     // threads of each run

    int64_t tokens_to_train() const;
    int64_t disk_bytes() const;  // that the runs not trained yet will come to need
    std::string text() const;
};

// Resolves everything and looks at what is already there; starts and writes nothing. Error(ExitCode::usage)
// lists the problems of all runs.
SweepPlan plan_sweep(const SweepConfig& sweep);

// The sweep.json that tells readers what is in the directory.
std::string sweep_json(const SweepPlan& plan);

// What has been trained in a run directory: nothing, some steps of this config or all of them. Problems are
// differences across which a run may not go on; notes are differences in how it was validated.
struct RunFound {
    RunState state = RunState::fresh;
    int64_t step = 0;
    std::vector<std::string> problems, notes;
};
RunFound look_at_run(const std::string& directory, const Experiment& experiment);

}  // namespace longreach::train
