#include "train/validation_set.h"

#include <algorithm>

#include "io/file.h"
#include "train/evaluation.h"

namespace longreach::train {

namespace {

std::vector<std::string> names_of_sets(const Experiment& experiment) {
    std::vector<std::string> names{""};
    for (const auto& [name, set] : experiment.data.val_sets) names.push_back(name);
    return names;
}

}  // namespace

std::string ValidationSet::field() const {
    return name.empty() ? "data.val" : "data.val_sets." + name;
}

ValidationSet open_validation_set(const Experiment& e, const std::string& name) {
    return {name, data::TokenStream::open(e.data.val_paths(name), e.data.stream_options(e.model.vocab_size))};
}

std::vector<ValidationSet> open_validation_sets(const Experiment& experiment) {
    std::vector<ValidationSet> out;
    for (const std::string& name : names_of_sets(experiment))
        out.push_back(open_validation_set(experiment, name));
    return out;
}

std::vector<ValidationSet> absent_validation_sets(const Experiment& experiment) {
    std::vector<ValidationSet> out;
    for (const std::string& name : names_of_sets(experiment))
        out.push_back({name, data::TokenStream::absent()});
    return out;
}

eval::ScoredTokens checked_request(const ValidationSet& set, const eval::EvalRequest& request) {
    try {
        return eval::LengthEvaluator::check_request(set.stream, request);
    } catch (const Error& error) {
        if (set.name.empty()) throw;
        throw Error(error.code(), fmt::format("{}: {}", set.field(), error.what()), error.hint());
    }
}

void check_lengths(const Experiment& e, const ValidationSet& set) {
    require(set.stream.tokens() > static_cast<uint64_t>(e.eval.lengths.back()), ExitCode::data,
            "{} has {} tokens; eval.lengths asks for sequences of {}", set.field(), set.stream.tokens(),
            e.eval.lengths.back());
    const int64_t fewest =
        e.eval.every > 0 ? std::min(e.eval.tokens, e.eval.final_tokens) : e.eval.final_tokens;
    checked_request(set, eval::make_request(e.eval, fewest, 0, e.data.document_mask));
}

std::string record_of_set(const std::string& set, std::string_view file) {
    return set.empty() ? std::string(file) : fmt::format("{}{}/{}", sets_directory, set, file);
}

std::string name_in_checkpoint(std::string record) {
    if (is_set_record(record)) std::replace(record.begin(), record.end(), '/', '.');
    return record;
}

}  // namespace longreach::train
