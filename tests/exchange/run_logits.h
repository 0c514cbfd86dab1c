// The logits of a run's newest checkpoint for a text, on the CPU in f32.
#pragma once

#include "config/loader.h"
#include "eval/decoder.h"
#include "model/transformer.h"
#include "train/experiment.h"
#include "train/run_directory.h"

namespace longreach::test {

// For each token the logits [V] of the next: from a pass over the text so far (steps false), or from decoding token
// by token after a prompt of one.
inline std::vector<std::vector<float>> run_logits(const std::string& run, const std::vector<int32_t>& text,
                                                  bool steps) {
    const io::Checkpoint checkpoint = train::find_checkpoint(run, [](const std::string&) {});
    const train::Experiment experiment =
        config::load_config<train::Experiment>({.file = checkpoint.file("config.json")},
                                               [](train::Experiment& e, config::Problems& p) { e.check(p); })
            .value;
    const auto length = static_cast<int64_t>(text.size());
    const std::unique_ptr<Ops> ops = make_cpu_ops({.threads = 1});
    model::Arena arena(*ops);
    model::Transformer model(experiment.model, length);
    eval::Decoder decoder(model, {.sequences = 1, .prompt = length, .room = length});
    const model::FlatParams weights = model::plan_weights(arena, model.params());
    model.plan_tables(arena);
    decoder.plan(arena, *ops);
    arena.commit();
    model.fill_tables(*ops);
    train::load_weights(checkpoint, *ops, model.params(), weights, {}, [](const std::string&) {});
    std::vector<std::vector<float>> logits;
    for (size_t i = 0; i < text.size(); ++i) {
        if (steps && i > 0)
            decoder.step(*ops, weights, {text[i]});
        else
            decoder.prefill(*ops, weights, {text.begin(), text.begin() + static_cast<int64_t>(i) + 1}, 1);
        logits.push_back(decoder.logits(*ops));
    }
    return logits;
}

}  // namespace longreach::test
