// validated.json: the newest evaluated step of a run, and which of its evaluations are done.
//
// A run saves the checkpoint of a step first and evaluates after that. This file names the evaluations done
// since, and the lengths of the record files after them, so that a resumed run does not repeat them.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

namespace longreach::train {

// The sums of an evaluation that a signal stopped between two batches.
inline constexpr const char* partial_file = "validation.partial";
inline constexpr const char* validated_file = "validated.json";

struct Validated {
    int64_t step = 0;
    std::vector<std::string> done;              // names of evaluations
    std::map<std::string, int64_t> file_bytes;  // lengths of the record files
};

std::string format_validated(const Validated& validated);
// Empty if there is no such file, if it is malformed, or if a record file is shorter than it says: the
// evaluations are then made again.
std::optional<Validated> read_validated(const std::string& directory);

// Whether an evaluation that is due after a checkpoint of the run in `directory` has not been made yet.
// state_file: the state.json of that checkpoint; due: the evaluations due after it.
bool awaits_evaluation(const std::string& directory, const std::string& state_file,
                       const std::vector<std::string>& due);

}  // namespace longreach::train
