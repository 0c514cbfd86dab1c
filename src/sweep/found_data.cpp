#include "sweep/found_data.h"

#include "config/loader.h"
#include "io/checkpoint_dir.h"
#include "train/train_state.h"

namespace longreach::sweep {

const FoundData& DataOfRuns::of(const train::Experiment& e) {
    json::Value key = config::to_json(config::describe(e.data));
    key.set("vocabulary", e.model.vocab_size).set("eval", config::to_json(config::describe(e.eval)));
    const auto [it, first] = found_.try_emplace(json::write(key, json::Style::compact));
    FoundData& found = it->second;
    if (!first) return found;
    try {
        const data::TokenStream training =
            data::TokenStream::open_sources(e.data.sources(), e.data.stream_options(e.model.vocab_size));
        const std::vector<train::ValidationSet> validation = train::open_validation_sets(e);
        found.identity = train::DataIdentity::of(training, validation);
        for (const train::ValidationSet& set : validation) train::check_lengths(e, set);
    } catch (const Error& error) {
        found.problem = error.what();
    }
    return found;
}

train::DataIdentity data_of_run(const std::string& directory, int64_t step) {
    const std::string path =
        io::join_path(directory, "checkpoints/" + io::checkpoint_name(step) + "/state.json");
    try {
        const std::string text = io::read_file(path, uint64_t{1} << 20, io::Links::refuse);
        return train::TrainState::from_json(json::parse(text, path, {.code = ExitCode::checkpoint})).data;
    } catch (const Error& error) {
        if (error.code() == ExitCode::disk) throw;
        return {};  // a resume finds out
    }
}

}  // namespace longreach::sweep
