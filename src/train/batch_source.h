// Where the micro-batches of a run come from: a data::BatchSource, whose kinds are listed
// in src/lab/batch_sources.cpp.
#pragma once

#include <memory>
#include <string>

#include "data/data_config.h"
#include "data/loader.h"

namespace longreach::train {

struct Experiment;

// The training text of a run, and the order in which it is read.
struct TrainingText {
    const data::TokenStream& stream;
    const data::BatchPlan& plan;
};

struct BatchSourceType {
    bool (*chosen)(const data::DataConfig& data);
    bool text;  // all targets are text: their losses have bits per byte
    // Why it has no sequences of `context` tokens; empty: it has.
    std::string (*problem)(const Experiment& experiment, int64_t context);
    // How a run that consumes `tokens` uses the text, "0.30 epochs of", and a further line about it or "".
    std::string (*use)(const Experiment& experiment, const TrainingText& text, int64_t tokens);
    std::string (*further)(const Experiment& experiment, const TrainingText& text, int64_t tokens);
    // The text must outlive it.
    std::unique_ptr<data::BatchSource> (*make)(const Experiment& experiment, const TrainingText& text);
};

const BatchSourceType& batch_source_type(const data::DataConfig& data);

}  // namespace longreach::train
