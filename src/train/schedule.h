// The plan of a run in steps and FLOPs: the stage of each step, the cost of training and evaluations, and
// the time that is left.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "model/transformer.h"
#include "train/evaluation.h"

namespace longreach::train {

// Duration and FLOPs of some work.
struct Measured {
    double seconds = 0, flops = 0;
};

// Time that this process has spent outside training steps.
struct TimeSpent {
    std::map<std::string, Measured> evaluations;  // by name; those that were complete
    double evaluating = 0, saving = 0;            // seconds
    int64_t saves = 0;
};

class Schedule {
  public:
    // All four must outlive it. sets: their lengths bound what a validation scores; none are open
    // while a plan is made without the data, which is then taken to be long enough.
    Schedule(const Experiment& experiment, const model::Transformer& model,
             const std::vector<ValidationSet>& sets, const EvaluationList& evaluations);

    const std::vector<Stage>& stages() const { return stages_; }
    int64_t steps() const { return steps_; }
    int64_t tokens() const;                     // of all stages
    const Stage& stage_of(int64_t step) const;  // past the end: the last
    int64_t number_of(const Stage& stage) const { return &stage - stages_.data() + 1; }
    bool last(int64_t step) const { return step == steps_; }

    double step_flops(const Stage& stage) const;
    double training_flops(int64_t from_step) const;
    double flops_after(const Evaluation& evaluation, int64_t step) const;
    double flops() const;  // of the whole run, with its evaluations

    // Seconds from the update of step `step` to the end of the run, including the evaluations of that step.
    // Work that has not been measured is assumed to run at `flops_per_second`, and saving to take no time.
    double seconds_left(int64_t step, double flops_per_second, const TimeSpent& spent) const;
    // "validation: 2 times of 65536 tokens, then once ...; 3.1% of the run's FLOPs"
    std::string evaluation_line() const;

  private:
    // Of those after the steps from `step` on, until and with the one at the end.
    double flops_from(const Evaluation& evaluation, int64_t step) const;

    const Experiment& experiment_;
    const model::Transformer& model_;
    const std::vector<ValidationSet>& sets_;
    const EvaluationList& evaluations_;
    const std::vector<Stage> stages_;
    const int64_t steps_;
};

// The maximum over all stages.
int64_t most_micro_tokens(const std::vector<Stage>& stages);
int64_t most_micro_batches(const std::vector<Stage>& stages);

}  // namespace longreach::train
