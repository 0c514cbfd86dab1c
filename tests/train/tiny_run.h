// Runs that take a fraction of a second: a small corpus, a small model, two stages with different contexts,
// and more steps than one epoch of the data has.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "base/json.h"
#include "config/loader.h"
#include "text/synth.h"
#include "ranks/thread_comm.h"
#include "io/temp_dir.h"
#include "train/device.h"
#include "train/trainer.h"

namespace longreach::test {

// The device of the runs: ctest sets the variable for programs that have another backend.
inline const char* const device =
    std::getenv("LONGREACH_TEST_DEVICE") != nullptr ? std::getenv("LONGREACH_TEST_DEVICE") : "cpu";

inline void make_corpus(const std::string& directory, uint64_t seed = 1) {
    text::SynthOptions options;
    options.output = directory;
    options.seed = seed;
    options.train_bytes = 1000;
    options.val_bytes = 800;
    options.min_document = 64;
    options.max_document = 200;
    options.max_distance = 128;
    text::synthesize(options);
}

// A run of 12 steps on the data of `directory`/data, in `directory`/<name>.
inline std::string tiny_config(const std::string& directory, const std::string& name = "run") {
    return fmt::format(R"({{
  "run": {{ "name": "{1}", "dir": "{0}", "log_every": 1 }},
  "model": {{
    "layers": 1, "width": 16, "mlp": {{ "hidden": 24 }}, "attention": {{ "heads": 2, "head_dim": 8 }}
  }},
  "data": {{ "train": ["{0}/data/train_*.bin"], "val": ["{0}/data/val_*.bin"] }},
  "stages": [{{ "steps": 5, "context": 16 }}, {{ "steps": 7, "context": 32 }}],
  "batch": {{ "tokens": 128, "micro_tokens": 32 }},
  "eval": {{ "every": 4, "lengths": [16, 64], "tokens": 128, "final_tokens": 256 }},
  "checkpoint": {{ "every": 3, "keep": 2 }},
  "system": {{ "device": "{2}", "threads": 1 }}
}})",
                       directory, name, device);
}

inline config::LoadedConfig<train::Experiment> load_tiny(const std::string& text,
                                                         const std::vector<std::string>& overrides = {}) {
    return config::load_config<train::Experiment>(
        {.file = "tiny.json", .overrides = overrides, .text = text},
        [](train::Experiment& e, config::Problems& p) { e.check(p); });
}

// Overrides of tiny_config that combine many variants in one model, with learned scalars everywhere.
inline std::vector<std::string> many_variants() {
    return {"model.layers=2",
            "model.attention.angle_scaling.kind=yarn",
            "model.attention.angle_scaling.factor=4",
            "model.attention.qk.kind=none",
            "optimizer.qk_clip.limit=0.01",
            "model.attention.window=24",
            "window_warmup.to=24",
            "window_warmup.from=4",
            "window_warmup.multiple=4",
            R"j(model.attention.score=["5*tanh(z/5)", "logn_bias", "scale_invariant", "forgetting"])j",
            "model.attention.params.tau.learn=layout",
            "model.attention.params.tau.positive=true",
            "model.attention.params.c.learn=layout",
            "model.attention.sink=learned",
            "model.attention.conv.size=3",
            "model.attention.output_norm.kind=head",
            "model.attention.output_norm.gain=true",
            "model.attention.gate.kind=elementwise",
            "model.attention.post_norm=true",
            "model.init.zero_projections=false",
            "model.residual.values=first",
            "model.residual.value_embeddings=1",
            "model.residual.smear=true",
            "model.residual.backout=0",
            "eval.rope.kind=rerope",
            "eval.rope.layers=all",
            "loss.weight=tanh(p/10)",
            "positions.range=1000"};
}

// Keys and values made of latents, clipped, which exclude some of the variants above.
inline std::vector<std::string> latents() {
    return {"model.attention.qk.kind=none",      "model.attention.latent.width=8",
            "model.attention.latent.shared=4",   "model.attention.latent.queries=12",
            "model.init.zero_projections=false", "optimizer.qk_clip.limit=0.01"};
}

// Copies the newest checkpoint of a run, which then says that another tokenizer made its tokens.
inline void copy_with_other_tokenizer(const std::string& run, const std::string& to) {
    const std::string root = run + "/checkpoints";
    const io::Checkpoint source = io::verify_checkpoint(root, io::checkpoint_steps(root).front());
    io::CheckpointWriter writer(to + "/checkpoints", source.step);
    for (const io::ManifestEntry& entry : source.files) {
        std::string text = get(source.file(entry.name));
        if (entry.name == "state.json") {
            const size_t at = text.find("\"tokenizer\": \"") + 14;
            text[at] = text[at] == '0' ? '1' : '0';
        }
        writer.add_text(entry.name, text);
    }
    writer.commit({}, [](const std::string&) {});
}

inline std::vector<double> training_losses(const std::string& run) {
    std::vector<double> losses;
    const std::string text = get(run + "/metrics.jsonl");
    for (size_t at = 0, end; (end = text.find('\n', at)) != std::string::npos; at = end + 1)
        losses.push_back(json::parse(text.substr(at, end - at), "metrics.jsonl").find("loss")->as_number());
    return losses;
}

// Does what `longreach train` does, without a console, on a device of the caller.
inline ExitCode run_training(const config::LoadedConfig<train::Experiment>& config, bool fresh,
                             ranks::Comm& comm, Ops& ops) {
    train::Console console(true);
    const train::Experiment& e = config.value;
    train::Trainer trainer(e, console, ops, comm.rank(), comm.ranks());
    ranks::Team team;
    if (comm.rank() > 0) return trainer.run(nullptr, comm, team);
    train::RunDirectory directory(io::join_path(e.run.dir, e.run.name));
    if (fresh) directory.start_over();
    directory.adopt_config(config::describe(e), config.origins);
    console.open_log(directory.file("log.txt"));
    return trainer.run(&directory, comm, team);
}
inline ExitCode run_training(const config::LoadedConfig<train::Experiment>& config, bool fresh,
                             ranks::Comm& comm) {
    std::string note;
    return run_training(config, fresh, comm, *train::open_device(config.value.system, note));
}

// The same with ranks as threads of this process.
inline ExitCode run_training(const config::LoadedConfig<train::Experiment>& config, bool fresh = false,
                             int ranks = 1) {
    std::vector<ExitCode> codes(static_cast<size_t>(ranks));
    run_ranks(ranks, [&](ranks::Comm& comm) {
        codes[static_cast<size_t>(comm.rank())] = run_training(config, fresh, comm);
    });
    for (ExitCode code : codes) check(code == codes[0], "ranks end with different exit codes");
    return codes[0];
}

// Everything that a run must reproduce, by file name.
using Results = std::map<std::string, std::string>;
inline Results results_of(const std::string& run, int64_t step) {
    Results files;
    for (const char* name : {"metrics.jsonl", "val.csv", "positions.csv"})
        files[name] = get(io::join_path(run, name));
    const std::string checkpoint = io::join_path(run, "checkpoints/" + io::checkpoint_name(step));
    for (const char* name : {"model.safetensors", "optimizer.safetensors", "state.json"})
        files[name] = get(io::join_path(checkpoint, name));
    return files;
}

// Names of the files in which two runs differ: "" if none.
inline std::string differing(const Results& a, const Results& b) {
    std::string names;
    for (const auto& [name, bytes] : a)
        if (!b.count(name) || b.at(name) != bytes) names += name + " ";
    return names;
}

}  // namespace longreach::test
