#include "train/sweep_data.h"

#include "config/loader.h"
#include "io/checkpoint_dir.h"
#include "train/train_state.h"

namespace longreach::train {

const FoundData& DataOfRuns::of(const Experiment& e) {
    json::Value key = config::to_json(config::describe(e.data));
    key.set("vocabulary", e.model.vocab_size).set("eval", config::to_json(config::describe(e.eval)));
    const auto [it, first] = found_.try_emplace(json::write(key, json::Style::compact));
    FoundData& found = it->second;
    if (!first) return found;
    try {
        const data::TokenStream training =
            data::TokenStream::open_sources(e.data.sources(), e.data.stream_options(e.model.vocab_size));
        const std::vector<ValidationSet> validation = open_validation_sets(e);
        found.identity = DataIdentity::of(training, validation);
        for (const ValidationSet& set : validation) check_lengths(e, set);
    } catch (const Error& error) {
        found.problem = error.what();
    }
    return found;
}

DataIdentity data_of_run(const std::string& directory, int64_t step) {
    const std::string path =
        io::join_path(directory, "checkpoints/" + io::checkpoint_name(step) + "/state.json");
    try {
        const std::string text = io::read_file(path, uint64_t{1} << 20, io::Links::refuse);
        return TrainState::from_json(json::parse(text, path, {.code = ExitCode::checkpoint})).data;
    } catch (const Error& error) {
        if (error.code() == ExitCode::disk) throw;
        return {};  // a resume finds out
    }
}

}  // namespace longreach::train
