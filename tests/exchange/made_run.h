// Run directories with random weights, for export.
#pragma once

#include "base/rng.h"
#include "config/loader.h"
#include "io/temp_dir.h"
#include "model/transformer.h"
#include "train/experiment.h"
#include "train/run_directory.h"

namespace longreach::test {

// A run of one checkpoint, of step 0, whose every weight is random. model: the section of a config. tokenizer: the
// fingerprint of its data.
inline train::Experiment make_run(const std::string& run, const std::string& model, uint64_t tokenizer = 0) {
    const std::string text = fmt::format(
        R"({{"run": {{"name": "{}", "dir": "{}"}}, "model": {}, "stages": [{{"steps": 1, "context": 32}}],
            "batch": {{"tokens": 32}}, "eval": {{"lengths": [32]}}, "data": {{"document_mask": false}},
            "system": {{"device": "cpu"}}, "resolved": true}})",
        io::base_name(run), io::parent_path(run), model);
    const auto loaded = config::load_config<train::Experiment>(
        {.file = "made", .text = text}, [](train::Experiment& e, config::Problems& p) { e.check(p); });
    const model::Transformer transformer(loaded.value.model, 32);
    const model::ParamTable& table = transformer.params();
    std::vector<float> weights;
    model::initialise(table, 7, weights);
    const Rng rng(31, Purpose::test);
    for (const model::Param& p : table.params()) {
        const double deviation = p.shape.size() > 1 ? 1 / std::sqrt(static_cast<double>(p.cols())) : 0.2;
        for (int64_t i = 0; i < p.count(); ++i) {
            const auto at = static_cast<size_t>(p.offset + i);
            weights[at] += static_cast<float>(deviation * rng.normal(at));
        }
    }
    io::make_directories(run);
    io::CheckpointWriter writer(io::join_path(run, "checkpoints"), 0);
    std::vector<io::StoredTensor> tensors;
    for (const model::Param& p : table.params()) {
        io::StoredTensor tensor;
        tensor.name = p.name;
        tensor.shape = p.shape;
        tensors.push_back(tensor);
    }
    writer.add_safetensors("model.safetensors", io::SafetensorsWriter(tensors),
                           [&](const io::StoredTensor& tensor, io::ByteSink& out) {
                               out.write(weights.data() + table.find(tensor.name)->offset, tensor.bytes());
                           });
    writer.add_text("config.json", config::write_resolved(loaded.value));
    train::TrainState state;
    state.data.tokenizer = tokenizer;
    writer.add_text("state.json", json::write(state.to_json(), json::Style::pretty));
    writer.commit({.keep = 1, .pinned = {}}, [](const std::string&) {});
    return loaded.value;
}

}  // namespace longreach::test
