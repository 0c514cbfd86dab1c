// The event files that a run writes for TensorBoard: <run>/events, one file per start or resume.
//
// They only repeat metrics.jsonl and val.csv, so they must never end a run: after
// the first failure the log prints a warning and stops writing.
#pragma once

#include <optional>

#include "eval/lengths.h"
#include "io/event_file.h"
#include "model/param_table.h"
#include "train/console.h"
#include "train/experiment.h"

namespace longreach::train {

struct StepOutcome;  // stepper.h

// The fields that differ from their defaults, one entry per leaf: "stages.0.steps". Lists become JSON text.
std::vector<io::HyperParameter> hyperparameters_of(const Experiment& experiment);

// Buckets of equal width from the smallest to the largest of `values`. At least one value is needed, all
// finite. If all values are equal, they share one bucket around them.
struct Histogram {
    std::vector<double> edges, counts;  // one more edge than counts
};
Histogram histogram_of(const std::vector<double>& values);

class EventLog {
  public:
    EventLog() = default;  // writes nothing
    // `step`: steps done when this process starts.
    EventLog(const std::string& directory, const Experiment& experiment, int64_t step, Console& console,
             io::Disk& disk = io::Disk::system());

    void train_step(int64_t step, const StepOutcome& outcome, double tokens_per_second);
    // set: empty for data.val.
    void validation(int64_t step, const std::string& set, const std::vector<eval::LengthResult>& results);
    // Records gains, biases, mixing weights, learned scales and the like (ParamGroup::scalar): few numbers
    // in total. The tensors of one name in all layers share one histogram.
    void weights(int64_t step, Ops& ops, const model::ParamTable& table, const model::FlatParams& weights);
    // Records the scores z that a probe sampled, by layer.
    void scores(int64_t step, const std::vector<std::vector<double>>& by_layer);
    void end(io::SessionEnd status);

  private:
    template <class Action>
    void attempt(Action action);

    std::optional<io::EventFile> file_;
    Console* console_ = nullptr;
};

}  // namespace longreach::train
