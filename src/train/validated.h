// validated.json: the newest evaluated step of a run, and which of its evaluations are done.
//
// A run saves the checkpoint of a step first and evaluates after that. This file names the evaluations done
// since, and the lengths of the record files after them, so that a resumed run does not repeat them.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "train/experiment.h"
#include "train/train_state.h"

namespace longreach::train {

struct Validated {
    int64_t step = 0;
    std::vector<Part> done;
    std::map<std::string, int64_t> file_bytes;  // lengths of the record files
};

std::string format_validated(const Validated& validated);
// Empty if there is no such file, if it is malformed, or if a record file is shorter than it says: the
// evaluations are then made again.
std::optional<Validated> read_validated(const std::string& directory);

// Whether an evaluation that is due after a checkpoint of the run in `directory` has not been made yet.
// state_file: the state.json of that checkpoint; due: the evaluations due after it.
bool awaits_evaluation(const std::string& directory, const std::string& state_file,
                       const std::vector<Part>& due);

}  // namespace longreach::train
