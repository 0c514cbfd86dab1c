// What a run evaluates, and the files that evaluations write.
#include <array>

#include "measure/key_tokens.h"
#include "measure/probe.h"
#include "eval/tables.h"
#include "measure/task_rows.h"
#include "lab/evaluations.h"
#include "train/signals.h"

namespace longreach::lab {

namespace {

template <const auto& columns>
constexpr train::EvaluationFile file_of(bool of_runs, bool of_sets) {
    return {.name = columns.file(),
            .of_runs = of_runs,
            .of_sets = of_sets,
            .header = [] { return columns.header(); },
            .known = [](std::string_view header_line) { return columns.known(header_line); }};
}

constexpr std::array files{file_of<eval::val_file>(true, true), file_of<eval::positions_file>(true, true),
                           file_of<measure::key_tokens_file>(false, true),
                           file_of<measure::tasks_file>(true, false),
                           file_of<measure::probe_file>(true, false)};

}  // namespace

eval::Pause pause_on_signal() {
    eval::Pause pause;
    pause.asked = [] { return train::StopSignals::received() != 0; };
    return pause;
}

}  // namespace longreach::lab

std::span<const longreach::train::EvaluationFile> longreach::train::evaluation_files() {
    return lab::files;
}

longreach::train::EvaluationList longreach::train::evaluations_of(const Experiment& e) {
    const auto evaluator = std::make_shared<eval::LengthEvaluator>();
    EvaluationList all;
    all.push_back(lab::losses_evaluation(e, "", evaluator));
    for (const auto& [name, set] : e.data.val_sets) all.push_back(lab::losses_evaluation(e, name, evaluator));
    if (lab::scores_task(e)) all.push_back(lab::task_evaluation(e));
    if (e.probe.every > 0) all.push_back(lab::probe_evaluation(e, evaluator));
    return all;
}
