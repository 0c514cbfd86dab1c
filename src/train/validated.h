// validated.json: the newest step whose evaluations a run has finished, or which of them.
//
// A run saves its checkpoint of a step first and evaluates after that. This file says what has been done
// since, and how long the record files were then, so that a resumed run does not do it again.
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
// Nothing if there is no such file, if it is malformed, or if a record file is shorter than it says: what it
// claims is then done again.
std::optional<Validated> read_validated(const std::string& directory);

// Whether the run in `directory` has yet to make one of the evaluations that are due after the step of its
// checkpoint with this state.json.
bool awaits_evaluation(const std::string& directory, const std::string& state_file,
                       const std::vector<Part>& due);

}  // namespace longreach::train
