// The evaluations of a run; registry.cpp says which a run makes.
#pragma once

#include <memory>

#include "eval/lengths.h"
#include "tasks/generator.h"
#include "train/evaluation.h"
#include "train/session.h"

namespace longreach::lab {

// Of whose batch evaluations share the memory; the losses on data.val plan it.
using SharedEvaluator = std::shared_ptr<eval::LengthEvaluator>;

std::unique_ptr<train::Evaluation> losses_evaluation(const train::Experiment& experiment,
                                                     const std::string& set, SharedEvaluator evaluator);
// Whether validations score the training task.
bool scores_task(const train::Experiment& experiment);
std::unique_ptr<train::Evaluation> task_evaluation(const train::Experiment& experiment);
std::unique_ptr<train::Evaluation> probe_evaluation(const train::Experiment& experiment,
                                                    SharedEvaluator evaluator);

// Samples of data.task; `haystack` as for TaskGenerator.
tasks::TaskGenerator task_generator(const train::Experiment& experiment, const data::TokenStream* haystack);

// Asks for a stop once a signal has been received.
eval::Pause pause_on_signal();

}  // namespace longreach::lab
