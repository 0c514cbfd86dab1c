#include "commands/opened_model.h"

#include <CLI/CLI.hpp>

#include "base/json.h"
#include "train/device.h"

namespace longreach {

namespace {

// <run>/eval/<label> of the run that has this checkpoint.
std::string label_directory(const Checkpoint& checkpoint, const std::string& label) {
    if (label.empty()) return "";
    const std::string checkpoints = parent_path(checkpoint.path);
    require(base_name(checkpoints) == "checkpoints", ExitCode::usage,
            "{} is no checkpoint of a run directory, where results under a label go", checkpoint.path);
    return join_path(parent_path(checkpoints), "eval/" + label);
}

}  // namespace

void add_model_options(CLI::App& command, ModelOptions& options, const std::string& rope_note) {
    command
        .add_option("target", options.target, "Run directory (its newest checkpoint) or checkpoint directory")
        ->required();
    command.add_option("--set", options.set, "Override a field of the run's config")->expected(1)->take_all();
    // Behind those of --set, whose vector is there by now: options are taken in the order they were added.
    command.add_option_function<std::string>(
        "--rope",
        [&options](const std::string& kind) { options.set.push_back("eval.rope.kind=\"" + kind + "\""); },
        "Change positions beyond the training context: pi, ntk, ntk_old, ntk_su, ntk_mixed, "
        "ntk_dynamic, yarn, rerope, leaky_rerope (details: --set eval.rope.factor=8 ...)" +
            rope_note);
}

void add_label_option(CLI::App& command, ModelOptions& options, const std::string& help) {
    const auto problem = [](const std::string& label) -> std::string {
        if (is_label(label)) return "";
        return "'" + label + "' is no label: lower case letters, digits and _.- make one, no dot first";
    };
    command.add_option("--label", options.label, help)->check(problem, "")->capture_default_str();
}

OpenedModel::OpenedModel(const ModelOptions& options, bool quiet,
                         const std::function<void(Experiment&)>& adjust)
    : console(quiet),
      checkpoint(find_checkpoint(options.target, notice)),
      directory(label_directory(checkpoint, options.label)),
      overrides(options.set),
      experiment(load_config<Experiment>({.file = checkpoint.file("config.json"), .overrides = overrides},
                                         [&](Experiment& e, Problems& p) {
                                             adjust(e);
                                             e.check(p);
                                         })
                     .value),
      ops(open_device(experiment.system, device_note_)),
      arena_(*ops) {
    console.line(device_note_);
    console.line("checkpoint: " + checkpoint.path);
}

TokenStream OpenedModel::validation_stream() const {
    return TokenStream::open(experiment.data.val,
                             experiment.data.stream_options(experiment.model.vocab_size));
}

void OpenedModel::build(int64_t longest) {
    model.emplace(experiment.model, longest, experiment.eval.rope);
    model->set_stage_window(experiment.window_at(checkpoint.step > 0 ? checkpoint.step - 1 : 0));
}

void OpenedModel::load(const std::function<void(Arena&)>& plan) {
    const auto reserve = [&] {
        weights = plan_weights(arena_, model->params());
        model->plan_tables(arena_);
        plan(arena_);
    };
    reserve();
    console.line("memory plan:\n" + arena_.table());
    arena_.commit();
    reserve();
    model->fill_tables(*ops);
    load_weights(checkpoint, *ops, model->params(), weights, {.non_finite = true}, notice);
    weights.round(*ops);
}

void OpenedModel::write_request(const std::vector<int64_t>& lengths, int64_t tokens,
                                const std::vector<std::string>& tasks, bool keep) {
    const std::string path = join_path(directory, "request.json");
    if (!keep || kind_of(path, Links::refuse) != PathKind::file) {
        const json::Value request =
            json::Value::object({{"checkpoint", checkpoint.step},
                                 {"set", json::Array(overrides.begin(), overrides.end())},
                                 {"lengths", json::Array(lengths.begin(), lengths.end())},
                                 {"tokens", tokens},
                                 {"tasks", json::Array(tasks.begin(), tasks.end())}});
        write_file_atomically(path, json::write(request, json::Style::pretty));
    }
    console.line("written: " + directory);
}

}  // namespace longreach
