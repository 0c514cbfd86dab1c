// The experiments under configs/, for tests that run all of them.
#pragma once

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "train/tiny_run.h"

namespace longreach::test {

// Experiments in a folder of configs/, without the files others build on.
inline std::vector<std::string> experiments(const std::string& folder) {
    const std::string root = io::join_path(LONGREACH_CONFIGS, folder);
    std::vector<std::string> files;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(root)) {
        const std::string name = entry.path().filename().string();
        if (entry.path().extension() == ".json" && name != "base.json" && name != "shrink.json")
            files.push_back(std::filesystem::relative(entry.path(), root).string());
    }
    std::sort(files.begin(), files.end());
    return files;
}

// A corpus of its own for every experiment, instead of data nobody has here.
inline std::string make_long_corpus(const std::string& directory) {
    data::SynthOptions options;
    options.output = directory;
    options.train_bytes = 200000;
    options.val_bytes = 200000;
    options.min_document = 64;
    options.max_document = 2000;
    options.max_distance = 1000;
    data::synthesize(options);
    return directory;
}

inline config::LoadedConfig<train::Experiment> load(const std::string& file, const std::string& data,
                                                    const std::string& runs,
                                                    std::vector<std::string> overrides = {}) {
    if (std::none_of(overrides.begin(), overrides.end(),
                     [](const std::string& o) { return o.starts_with("system.device="); }))
        overrides.push_back("system.device=" + std::string(device));
    overrides.insert(overrides.end(), {fmt::format("data.train=[\"{}/train_*.bin\"]", data),
                                       fmt::format("data.val=[\"{}/val_*.bin\"]", data), "run.dir=" + runs,
                                       "run.log_every=1", "system.threads=1"});
    return config::load_config<train::Experiment>(
        {.file = io::join_path(LONGREACH_CONFIGS, file), .overrides = overrides},
        [](train::Experiment& e, config::Problems& p) { e.check(p); });
}

}  // namespace longreach::test
