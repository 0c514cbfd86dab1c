// Training on a task, on a mixture of sources, on one stream: the first kind that a config chooses.
#include "train/batch_source.h"

#include <algorithm>
#include <array>

#include "base/units.h"
#include "lab/evaluations.h"
#include "tasks/task_batches.h"

namespace longreach::lab {

namespace {

using train::BatchSourceType;
using train::Experiment;
using train::TrainingText;

std::string fits(const Experiment&, int64_t) {
    return "";
}

std::string nothing_further(const Experiment&, const TrainingText&, int64_t) {
    return "";
}

std::unique_ptr<data::BatchSource> make_stream(const Experiment&, const TrainingText& text) {
    return std::make_unique<data::StreamBatches>(text.stream, text.plan);
}

std::string too_short_for_task(const Experiment& e, int64_t context) {
    try {
        task_generator(e, nullptr).answer_tokens(context);
        return "";
    } catch (const Error& error) {
        return error.what();
    }
}

// "mixture: books 0.30 epochs of 1.2M, web 0.02 epochs of 80M"
std::string mixture_line(const Experiment& e, const TrainingText& text, int64_t tokens) {
    std::string line = "mixture:";
    size_t source = 0;
    for (const auto& [name, config] : e.data.mixture) {
        line += fmt::format("{} {} {:.2f} epochs of {}", source > 0 ? "," : "", name,
                            text.plan.epochs(static_cast<uint64_t>(tokens), source),
                            human_count(static_cast<double>(text.stream.sources()[source].tokens)));
        ++source;
    }
    return line;
}

constexpr std::array<BatchSourceType, 3> types{{
    {.chosen = [](const data::DataConfig& data) { return data.task.kind != data::TaskKind::none; },
     .text = false,
     .problem = too_short_for_task,
     .use =
         [](const Experiment& e, const TrainingText&, int64_t) {
             return fmt::format("samples of {}, text out of", data::name_of(e.data.task.kind));
         },
     .further = nothing_further,
     .make = [](const Experiment& e, const TrainingText& text) -> std::unique_ptr<data::BatchSource> {
         return std::make_unique<tasks::TaskBatches>(task_generator(e, &text.stream));
     }},
    {.chosen = [](const data::DataConfig& data) { return !data.mixture.empty(); },
     .text = true,
     .problem = fits,
     .use = [](const Experiment&, const TrainingText&, int64_t) { return std::string("out of"); },
     .further = mixture_line,
     .make = make_stream},
    {.chosen = [](const data::DataConfig&) { return true; },
     .text = true,
     .problem = fits,
     .use =
         [](const Experiment&, const TrainingText& text, int64_t tokens) {
             return fmt::format("{:.2f} epochs of", text.plan.epochs(static_cast<uint64_t>(tokens)));
         },
     .further = nothing_further,
     .make = make_stream},
}};

}  // namespace

}  // namespace longreach::lab

const longreach::train::BatchSourceType& longreach::train::batch_source_type(const data::DataConfig& data) {
    return *std::find_if(lab::types.begin(), lab::types.end(),
                         [&](const BatchSourceType& type) { return type.chosen(data); });
}
