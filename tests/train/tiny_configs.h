// The experiments under configs/, for tests that run all of them.
#pragma once

#include <algorithm>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "train/tiny_run.h"

namespace longreach::test {

inline constexpr const char* studies[] = {"si162", "nor2k", "nor4k", "kx", "hybrids"};

// Experiments in a folder of configs/, without base.json and the overlay cpu.json.
inline std::vector<std::string> experiments(const std::string& folder) {
    std::vector<std::string> files;
    for (const auto& entry : std::filesystem::directory_iterator(io::join_path(LONGREACH_CONFIGS, folder))) {
        const std::string name = entry.path().filename().string();
        if (entry.path().extension() == ".json" && name != "base.json" && name != "cpu.json")
            files.push_back(io::join_path(folder, name));
    }
    std::sort(files.begin(), files.end());
    return files;
}

// The experiments of every study.
inline std::vector<std::string> experiments() {
    std::vector<std::string> all;
    for (const char* study : studies)
        for (std::string& file : experiments(study)) all.push_back(std::move(file));
    return all;
}

// A corpus that replaces the data of every experiment, which are not available here.
inline std::string make_long_corpus(const std::string& directory) {
    text::SynthOptions options;
    options.output = directory;
    options.train_bytes = 200000;
    options.val_bytes = 200000;
    options.min_document = 64;
    options.max_document = 2000;
    options.max_distance = 1000;
    text::synthesize(options);
    return directory;
}

inline config::LoadedConfig<train::Experiment> load(config::ConfigSource source, const std::string& data,
                                                    const std::string& runs) {
    std::vector<std::string>& overrides = source.overrides;
    if (std::none_of(overrides.begin(), overrides.end(),
                     [](const std::string& o) { return o.starts_with("system.device="); }))
        overrides.push_back("system.device=" + std::string(device));
    overrides.insert(overrides.end(), {fmt::format("data.train=[\"{}/train_*.bin\"]", data),
                                       fmt::format("data.val=[\"{}/val_*.bin\"]", data), "run.dir=" + runs,
                                       "run.log_every=1", "system.threads=1"});
    return config::load_config<train::Experiment>(
        source, [](train::Experiment& e, config::Problems& p) { e.check(p); });
}

// An experiment as its file defines it.
inline config::LoadedConfig<train::Experiment> load(const std::string& file, const std::string& data,
                                                    const std::string& runs) {
    return load(config::ConfigSource{.file = io::join_path(LONGREACH_CONFIGS, file)}, data, runs);
}

// Fields that configs/shrink.json does not shrink: windows, chunks, lengths and widths
// that an experiment sets itself.
inline const std::map<std::string, std::vector<std::string>> shrink_more = {
    {"hybrids/grok2.json", {"model.attention.params.length.init=64"}},
    {"hybrids/kimi_linear.json",
     {"model.layouts.global.latent.width=24", "model.layouts.global.latent.shared=8"}},
    {"hybrids/llama4.json",
     {"model.layouts.local.chunk=32", "model.layouts.global.params.floor_scale.init=64"}},
    {"hybrids/local_si_global_sqrt2logn.json", {"model.layouts.local.window=32"}},
    {"hybrids/rnope_swa.json", {"model.layouts.local.window=32"}},
    {"hybrids/speedrun_2025.json",
     {"model.attention.window=96", "model.residual.value_embeddings=2", "model.residual.backout=2",
      "window_warmup.to=96", "window_warmup.from=16", "window_warmup.multiple=16"}},
    {"kx/baseline_leaky_rerope.json", {"eval.rope.window=32"}},
    {"kx/baseline_rerope.json", {"eval.rope.window=32"}},
    {"kx/hwfa.json", {"model.layouts.local.window=16"}},
    {"nor2k/beta_d16.json", {"model.attention.heads=4", "model.attention.head_dim=16"}},
    {"nor2k/qk_clip_si.json", {"model.attention.score_base=0.70710678"}},
    {"nor2k/solve_c_cos.json", {"model.attention.heads=4", "model.attention.head_dim=16"}},
    // Fresh weights, needles written as text.
    {"si162/needle_finetune.json",
     {"run.init_from=\"\"", "data.task={\"kind\":\"needle\",\"form\":\"text\",\"samples\":16}",
      "optimizer.schedule.warmup_steps=7"}},
};

// An experiment at four layers and 20 steps.
inline config::LoadedConfig<train::Experiment> load_tiny_version(
    const std::string& file, const std::string& data, const std::string& runs,
    const std::vector<std::string>& overrides = {}) {
    std::vector<std::string> all;
    if (const auto more = shrink_more.find(file); more != shrink_more.end()) all = more->second;
    all.insert(all.end(), overrides.begin(), overrides.end());
    const std::string root = LONGREACH_CONFIGS;
    const std::string text = fmt::format(R"({{ "base": ["{0}/{1}", "{0}/shrink.json"] }})", root, file);
    return load(config::ConfigSource{.file = file, .overrides = all, .text = text}, data, runs);
}

}  // namespace longreach::test
