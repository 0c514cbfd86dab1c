#include "config/field_info.h"
#include "fuzz/seeds.h"
#include "fuzz/target.h"
#include "report/sample_runs.h"
#include "train/experiment.h"
#include "sweep/sweep_config.h"

namespace longreach::fuzz {

namespace {

std::vector<Seed> configs() {
    const std::string root = io::join_path(LONGREACH_CONFIGS, "quickstart");
    const std::string base = test::get(io::join_path(root, "base.json"));
    std::vector<Seed> seeds;
    for (const char* name : {"rope", "scale_invariant", "kna", "alibi", "sqrt2logn"})
        seeds.push_back({name, test::get(io::join_path(root, std::string(name) + ".json")) + separator +
                                   base + separator + "run.seed=2" + separator + "model.layers=2"});
    seeds.push_back(
        {"tiny", R"({"model": {"layers": 1, "width": 32, "vocab_size": 257, "attention": {"heads": 1,
 "head_dim": 32}}, "data": {"train": ["a.bin"], "val": ["b.bin"]}, "stages": [{"steps": 10, "context": 64}],
 "batch": {"tokens": 64}})"});
    return seeds;
}

std::vector<Seed> sweeps() {
    const std::string variant = configs().back().bytes;
    return {{"grid", R"({"name": "s", "variants": [{"name": "a", "config": "variant.json"}],
 "grid": {"optimizer.muon.lr": [0.01, 0.02]}, "seeds": [1, 2],
 "evaluations": [{"name": "plain"}, {"name": "ntk", "set": {"eval.rope.kind": "ntk"}, "lengths": [128]}]})" +
                         (separator + variant)},
            {"list", R"({"name": "s", "variants": [{"name": "a", "config": "variant.json"},
 {"name": "b", "config": "variant.json", "set": {"model.layers": 2}}], "baseline": "b",
 "list": [{"name": "p", "set": {"run.seed": 3}}], "zip": {"batch.tokens": [64, 128]}, "jobs": 2,
 "contrasts": [{"name": "c", "arms": ["a.tokens-64.p", "b.tokens-64.p"], "at": 1024, "of": "gap", "expect": "none"}],
 "skip_contradictory": true})" +
                         (separator + variant) + separator + "seeds=[3]"}};
}

// The files of a sample run, joined as the target takes them apart.
std::vector<Seed> records() {
    const test::TempDir directory;
    test::SampleSweep sample;
    sample.seeds = 1;
    sample.steps = 20;
    sample.lengths = {256, 512};
    sample.layers = 1;
    const test::SampleWriter writer(sample);
    writer.write_run(directory / "rope", 0, 1);
    std::string all;
    const auto add = [&](const std::string& path) {
        if (!all.empty()) all += separator;
        all += test::get(path);
    };
    add(directory / "rope/val.csv");
    add(directory / "rope/positions.csv");
    add(directory / "rope/eval/plain/probe.csv");
    add(directory / "rope/eval/plain/tasks.csv");
    for (const char* name : {"metrics.jsonl", "timing.jsonl", "config.json", "build.json"})
        add(io::join_path(directory / "rope", name));
    const std::string small =
        "step,tokens,length,loss,standard_error,scored,documents,bits_per_byte,top1,top1_error,fingerprint\n"
        "4,32,16,1.5,0.1,16,2,2.1,0.5,0.01,0123456789abcdef\n";
    return {{"all", all}, {"losses", small}};
}

}  // namespace

std::vector<Seed> seeds_of(std::string_view target) {
    if (target == "experiment") return configs();
    if (target == "sweep") return sweeps();
    if (target == "records") return records();
    fail(ExitCode::internal, "no seeds for the target '{}'", target);
}

std::string dictionary_of(std::string_view target) {
    if (target == "experiment") return dictionary_of_fields(config::describe<train::Experiment>());
    if (target == "sweep") return dictionary_of_fields(config::describe<sweep::SweepConfig>());
    return "";
}

}  // namespace longreach::fuzz
