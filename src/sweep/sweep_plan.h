// The plan of a sweep: its runs with resolved and checked configs, what is already done, what it will need.
#pragma once

#include "train/experiment.h"
#include "sweep/sweep_config.h"

namespace longreach::sweep {

// One evaluation of one run, as arguments of this program.
struct PlannedEvaluation {
    std::string label;
    std::vector<std::string> arguments;        // eval <run> --label <label> ...
    std::vector<std::string> probe_arguments;  // probe <run> --label <label> ...; empty: none asked for
    std::vector<int64_t> lengths;              // of the losses and of the tasks
    bool losses = true;                        // false: of tasks alone
};

enum class RunState { fresh, begun, trained };

struct PlannedRun {
    std::string variant;  // with the name of the point: "rope.tau-10"
    std::string of;       // the variant in the sweep file
    std::string point;    // "tau-10", or ""
    int64_t seed = 0;
    std::string name;       // "rope.tau-10.seed2"
    std::string directory;  // <sweep>/<name>
    train::Experiment experiment;
    std::string resolved;  // the config of the run, as text
    std::string
        origins;  // where its values came from: the sweep, its overlays, the configs (train::origins_text)
    std::string after;  // the run of this sweep from whose weights it starts; "": none
    std::vector<PlannedEvaluation> evaluations;
    RunState state = RunState::fresh;
    bool starts_over = false;  // what there is of it was trained on other data, and goes
    int64_t step = 0;          // of the newest checkpoint
    int64_t kept_bytes = 0;    // of checkpoints, once trained
    int64_t peak_bytes = 0;    // of checkpoints, while it trains
    double flops = 0;          // of what is left to train, of the validations and the evaluations asked for
};

struct SweepPlan {
    std::string name, directory, baseline;
    std::vector<PlannedRun> runs;      // all of the first seed, then all of the second ...
    std::vector<Contrast> contrasts;   // with their margins
    std::vector<int64_t> seeds;        // in the order in which contrasts look at them
    std::vector<std::string> skipped;  // contradictory points with reasons
    std::vector<std::string> notes;    // for the user, before it starts
    int64_t jobs = 1, threads = 1;     // threads of each run

    int64_t tokens_to_train() const;
    double flops() const;        // of the runs not trained yet
    int64_t disk_bytes() const;  // needed by the runs not trained yet
    std::string text() const;
};

// Resolves all configs and examines existing run directories; starts and
// writes nothing. Error(ExitCode::usage) lists the problems of all runs. To see a
// plan, the data need not be there: what is missing becomes a note.
enum class SweepData { required, may_be_missing };
// What happens to runs whose data changed since: Error(ExitCode::data) lists them, or they start over.
enum class ChangedData { refused, retrained };
SweepPlan plan_sweep(const SweepConfig& sweep, SweepData data = SweepData::required,
                     ChangedData changed = ChangedData::refused);

// The content of sweep.json, which lists the runs of the directory.
std::string sweep_json(const SweepPlan& plan);

// The state of a run directory: nothing trained, some steps of this config or all of them. Problems
// are differences between configs that forbid resuming; notes are differences in validation.
struct RunFound {
    RunState state = RunState::fresh;
    int64_t step = 0;
    std::vector<std::string> problems, notes;
};
RunFound look_at_run(const std::string& directory, const train::Experiment& experiment);

}  // namespace longreach::sweep
