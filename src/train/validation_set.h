// The validation sets of an experiment: data.val, whose name is empty, and those of data.val_sets.
//
// The records of data.val are in the directory of the run or of its evaluation; those of a further set are in the
// directory sets/<name> below that one.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "data/token_stream.h"
#include "eval/lengths.h"
#include "train/experiment.h"

namespace longreach::train {

struct ValidationSet {
    std::string name;
    data::TokenStream stream;
    std::string field() const;  // "data.val" or "data.val_sets.books"
};

ValidationSet open_validation_set(const Experiment& experiment, const std::string& name);
// data.val first, then the others by name.
std::vector<ValidationSet> open_validation_sets(const Experiment& experiment);
// The same without tokens, for planning without the data.
std::vector<ValidationSet> absent_validation_sets(const Experiment& experiment);

// The tokens that a request scores. Throws what the evaluation would throw, with the name of a further set.
eval::ScoredTokens checked_request(const ValidationSet& set, const eval::EvalRequest& request);
// Throws what a validation at the lengths and numbers of tokens of eval would throw.
void check_lengths(const Experiment& experiment, const ValidationSet& set);

// Where a run directory has the records of further sets.
inline constexpr std::string_view sets_directory = "sets/";
// "val.csv" of data.val, "sets/books/val.csv" of the set books.
std::string record_of_set(const std::string& set, std::string_view file);
// What checkpoints, which have no directories, call a record: "sets.books.val.csv", or its own name.
std::string name_in_checkpoint(std::string record);

}  // namespace longreach::train
