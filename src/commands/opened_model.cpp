#include "commands/opened_model.h"

#include "base/hash.h"
#include "base/json.h"
#include "base/text.h"
#include "base/units.h"
#include "commands/command_line.h"
#include "data/tokenizer_file.h"
#include "model/changed_layers.h"
#include "train/device.h"
#include "train/file_name.h"

namespace longreach::commands {

namespace {

// <run>/eval/<label> of the run that contains this checkpoint.
std::string label_directory(const io::Checkpoint& checkpoint, const std::string& label) {
    if (label.empty()) return "";
    const std::string checkpoints = io::parent_path(checkpoint.path);
    require(io::base_name(checkpoints) == "checkpoints", ExitCode::usage,
            "{} is not a checkpoint of a run directory, which --label needs", checkpoint.path);
    return io::join_path(io::parent_path(checkpoints), "eval/" + label);
}

}  // namespace

void add_model_options(Command& command, ModelOptions& options, const std::string& rope_note) {
    command.option("target", options.target, "Run directory (its newest checkpoint) or checkpoint directory")
        .required();
    command.option("--set", options.set, "Override a field of the run's config").repeatable();
    // Added after --set, so that it is appended to its vector: options are processed in the order added.
    command.option(
        "--rope",
        [&options](const std::string& kind) { options.set.push_back("eval.rope.kind=\"" + kind + "\""); },
        "Change positions beyond the training context: pi, ntk, ntk_old, ntk_su, ntk_mixed, "
        "ntk_dynamic, yarn, llama3, rerope, leaky_rerope (details: --set eval.rope.factor=8 ...)" +
            rope_note);
}

void add_label_option(Command& command, ModelOptions& options, const std::string& help) {
    const auto problem = [](const std::string& label) -> std::string {
        if (train::is_label(label)) return train::too_long(label);
        return fmt::format("'{}' is not a valid label: use a-z, 0-9, '_', '.', '-'; no leading '.'",
                           one_line(label));
    };
    command.option("--label", options.label, help).check(problem).show_default();
}

std::shared_ptr<const tokenizer::Tokenizer> run_tokenizer(const io::Checkpoint& checkpoint) {
    const std::string run = io::parent_path(io::parent_path(checkpoint.path));
    const auto holds = [&](const char* name) {
        return io::kind_of(io::join_path(run, name), io::Links::refuse) == io::PathKind::file;
    };
    if (!holds("tokenizer.json") && !holds("vocab.json")) return nullptr;
    auto tokenizer = data::load_tokenizer(run);
    const uint64_t trained = train::tokenizer_of(checkpoint);
    require(trained == 0 || trained == tokenizer->fingerprint(), ExitCode::data,
            "the model was trained on tokens of the tokenizer {}; that in {} is {}", format_hash64(trained),
            run, format_hash64(tokenizer->fingerprint()));
    return tokenizer;
}

OpenedModel::OpenedModel(const ModelOptions& options, bool quiet,
                         const std::function<void(train::Experiment&)>& adjust)
    : console(quiet),
      checkpoint(train::find_checkpoint(options.target, notice)),
      directory(label_directory(checkpoint, options.label)),
      overrides(options.set),
      experiment([&] {
          auto loaded = config::load_config<train::Experiment>(
              {.file = checkpoint.file("config.json"), .overrides = overrides},
              [&](train::Experiment& e, config::Problems& p) {
                  adjust(e);
                  e.check(p);
              });
          print_warnings(loaded.warnings);
          return loaded.value;
      }()),
      ops(train::open_device(experiment.system, device_note_)),
      arena_(*ops) {
    console.line(device_note_);
    console.line("checkpoint: " + checkpoint.path);
}

train::ValidationSet OpenedModel::validation_set(const std::string& name) const {
    train::ValidationSet set = train::open_validation_set(experiment, name);
    const uint64_t trained = train::tokenizer_of(checkpoint), own = set.stream.tokenizer();
    require(trained == 0 || own == 0 || trained == own, ExitCode::data,
            "the model was trained on tokens of the tokenizer {}; those of {} are of {}",
            format_hash64(trained), set.field(), format_hash64(own));
    return set;
}

int64_t OpenedModel::stage_window() const {
    return experiment.window_at(checkpoint.step > 0 ? checkpoint.step - 1 : 0);
}

void OpenedModel::build(int64_t longest) {
    model.emplace(experiment.model, longest, experiment.eval.rope);
    model->set_stage_window(stage_window());
}

std::vector<int64_t> lengths_up_to(const std::vector<int64_t>& lengths, int64_t longest) {
    std::vector<int64_t> out;
    for (const int64_t length : lengths)
        if (length < longest) out.push_back(length);
    out.push_back(longest);
    return out;
}

model::PlanSize evaluation_size(const std::vector<int64_t>& lengths, int64_t longest, int64_t piece) {
    model::PlanSize size{piece > 0 ? std::min(piece, longest) : longest, lengths_up_to(lengths, longest)};
    if (piece > 0 && longest > piece) size.piece = piece, size.room = longest;
    return size;
}

void OpenedModel::check_memory(const Plan& plan, int64_t longest) {
    const FreeMemory free = train::free_memory_of(*ops);
    const int64_t wanted = arena_.bytes();
    if (wanted <= free.bytes) return;
    const auto fits = [&](int64_t length) {
        build(length);
        model::Arena trial(*ops);
        model::plan_weights(trial, model->params());
        model->plan_tables(trial);
        plan(trial, length);
        return trial.bytes() <= free.bytes;
    };
    int64_t length = longest / 2;
    while (length > 0 && !fits(length)) length /= 2;
    // Between this length and its double, to three binary digits.
    for (int64_t part = length / 2; part > 0 && part >= length / 8; part /= 2)
        if (length + part < longest && fits(length + part)) length += part;
    const std::string advice = length > 0 ? fmt::format("the longest length that fits: {}", length)
                                          : "not even the shortest sequence fits";
    fail(ExitCode::device, "sequences of {} tokens need {} of memory, {} are free ({}); {}", longest,
         human_bytes(wanted), human_bytes(free.bytes), free.limit, advice);
}

void OpenedModel::load(const Plan& plan, int64_t longest, bool continues) {
    const std::string changed =
        model::changed_layers_line(experiment.model, experiment.eval.rope,
                                   lengths_up_to(experiment.eval.lengths, longest), stage_window());
    if (!changed.empty()) console.line(changed);
    weights = model::plan_weights(arena_, model->params());
    model->plan_tables(arena_);
    plan(arena_, longest);
    const std::vector<model::ParamRef> products = model->products();
    const int64_t more = continues ? model::HeldWeights::bytes(*ops, weights, products) : 0;
    // Not to the last byte, since it works without.
    if (more > 0 && arena_.bytes() + more <= train::free_memory_of(*ops).bytes / 4 * 3)
        held.plan(arena_, *ops, weights, products);
    console.line("memory plan:\n" + arena_.table());
    check_memory(plan, longest);
    arena_.commit();
    model->fill_tables(*ops);
    train::load_weights(checkpoint, *ops, model->params(), weights, {.non_finite = true}, notice);
    weights.round(*ops);
    held.fill(*ops);
}

void OpenedModel::write_request(const std::vector<int64_t>& lengths, int64_t tokens,
                                const std::vector<std::string>& tasks, const eval::ScoredTokens* scored,
                                const std::vector<std::string>& sets, bool keep) {
    const std::string path = io::join_path(directory, "request.json");
    if (!keep || io::kind_of(path, io::Links::refuse) != io::PathKind::file) {
        json::Value request = json::Value::object({{"checkpoint", checkpoint.step},
                                                   {"set", json::Array(overrides.begin(), overrides.end())},
                                                   {"lengths", json::Array(lengths.begin(), lengths.end())},
                                                   {"tokens", tokens},
                                                   {"tasks", json::Array(tasks.begin(), tasks.end())}});
        if (scored)
            request.set("fingerprint", format_hash64(scored->fingerprint))
                .set("pick", scored->pick == eval::EvalPick::head ? "head" : "spread")
                .set("align", scored->align == eval::EvalAlign::suffix ? "suffix" : "chunk")
                .set("documents", scored->documents > 0 ? json::Value(scored->documents) : json::Value());
        if (!sets.empty()) request.set("sets", json::Array(sets.begin(), sets.end()));
        io::write_file_atomically(path, json::write(request, json::Style::pretty));
    }
    console.line("written: " + directory);
}

}  // namespace longreach::commands
