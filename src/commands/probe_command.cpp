// longreach probe: what attention does in a run's or checkpoint's model, layer by layer and head by head.
#include <CLI/CLI.hpp>

#include <algorithm>

#include "base/units.h"
#include "commands/commands.h"
#include "eval/probe.h"
#include "train/console.h"
#include "train/device.h"
#include "train/run_directory.h"

namespace longreach {

namespace {

struct ProbeOptions {
    std::string target, label = "plain", rope;
    std::vector<int64_t> lengths;
    std::vector<std::string> set;
    int64_t tokens = 0;
};

// <run>/eval/<label> of the run that has this checkpoint.
std::string results_directory(const Checkpoint& checkpoint, const std::string& label) {
    const auto allowed = [](char c) {
        return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_' || c == '.' || c == '-';
    };
    require(!label.empty() && label[0] != '.' && std::all_of(label.begin(), label.end(), allowed),
            ExitCode::usage,
            "the label '{}' has other characters than a-z, 0-9, '_', '-' and '.', or starts with one", label);
    const std::string checkpoints = parent_path(checkpoint.path);
    require(base_name(checkpoints) == "checkpoints", ExitCode::usage,
            "{} is no checkpoint of a run directory, where the results would go", checkpoint.path);
    return join_path(parent_path(checkpoints), "eval/" + label);
}

void write_results(const std::string& directory, const ProbeOptions& options, const ProbeRequest& request,
                   const ProbeResult& result, int64_t step) {
    make_directories(directory);
    std::string text = std::string(probe_header) + "\n";
    for (const std::string& line : probe_lines(result.rows, step)) text += line + "\n";
    write_file_atomically(join_path(directory, "probe.csv"), text);
    // What another evaluation under this label was asked stays.
    const std::string asked = join_path(directory, "request.json");
    if (kind_of(asked, Links::refuse) == PathKind::file) return;
    json::Value set = json::Value::array(), lengths = json::Value::array();
    for (const std::string& change : options.set) set.push(change);
    for (const int64_t length : request.lengths) lengths.push(length);
    json::Value v = json::Value::object();
    v.set("checkpoint", step).set("set", set).set("lengths", lengths).set("tokens", request.tokens);
    v.set("tasks", json::Value::array());
    write_file_atomically(asked, json::write(v, json::Style::pretty));
}

ExitCode probe(const ProbeOptions& given) {
    Console console;
    const Notice notice = [&](const std::string& text) { console.line(text); };
    const Checkpoint checkpoint = find_checkpoint(given.target, notice);
    ProbeOptions options = given;
    if (!options.rope.empty()) options.set.push_back("eval.rope.kind=\"" + options.rope + "\"");
    const std::string directory = results_directory(checkpoint, options.label);
    const Experiment experiment =
        load_config<Experiment>({.file = checkpoint.file("config.json"), .overrides = options.set},
                                [&](Experiment& e, Problems& p) {
                                    // The command looks once, and at its own lengths.
                                    if (!options.lengths.empty()) e.probe.lengths = options.lengths;
                                    e.eval.lengths = e.probe_lengths();
                                    if (options.tokens > 0)
                                        e.probe.tokens = options.tokens;
                                    else if (e.probe.tokens > 0)
                                        e.probe.tokens = std::max(e.probe.tokens, e.eval.lengths.back());
                                    e.eval.tokens = std::max(e.eval.tokens, e.eval.lengths.back());
                                    e.eval.final_tokens =
                                        std::max(e.eval.final_tokens, e.eval.lengths.back());
                                    e.check(p);
                                })
            .value;
    std::string note;
    const std::unique_ptr<Ops> ops = open_device(experiment.system, note);
    console.line(note);
    console.line("checkpoint: " + checkpoint.path);
    const TokenStream stream =
        TokenStream::open(experiment.data.val, experiment.data.stream_options(experiment.model.vocab_size));

    ProbeRequest request;
    request.lengths = experiment.probe_lengths();
    request.tokens = experiment.probe.tokens;
    request.document_mask = experiment.data.document_mask;
    request.seed = experiment.data_seed();
    request.progress = [&](const std::string& text) { console.status("probe: " + text); };
    LengthEvaluator::check_request(stream, request.evaluation());
    const int64_t longest = request.lengths.back();
    Transformer model(experiment.model, longest, experiment.eval.rope);
    model.set_stage_window(experiment.window_at(checkpoint.step > 0 ? checkpoint.step - 1 : 0));
    LengthEvaluator evaluator;
    Probe probe;
    Arena arena(*ops);
    FlatParams weights;
    const auto plan = [&] {
        weights = plan_weights(arena, model.params());
        model.plan_tables(arena);
        evaluator.plan(arena, longest, request.document_mask);
        model.plan_evaluation(arena, *ops, {longest, request.lengths}, request.document_mask);
        probe.plan(arena, experiment.model, longest);
    };
    plan();
    console.line("memory plan:\n" + arena.table());
    arena.commit();
    plan();
    model.fill_tables(*ops);
    load_weights(checkpoint, *ops, model.params(), weights, false, notice);
    weights.round(*ops);

    const ProbeResult result = probe.run(*ops, model, weights, evaluator, stream, request);
    console.line(probe_table(result.rows));
    write_results(directory, options, request, result, checkpoint.step);
    console.line("written: " + join_path(directory, "probe.csv"));
    console.line(fmt::format("peak memory of the process: {}", human_bytes(peak_resident_bytes())));
    return ExitCode::ok;
}

}  // namespace

void add_probe_command(CLI::App& app, Action& action) {
    auto options = std::make_shared<ProbeOptions>();
    CLI::App* command =
        app.add_subcommand("probe", "What attention does, by layer, head and number of visible keys");
    command
        ->add_option("target", options->target,
                     "Run directory (its newest checkpoint) or one of its checkpoint directories")
        ->required();
    command
        ->add_option("--lengths", options->lengths,
                     "Context lengths: 1024,4096,65536; default: probe.lengths, else eval.lengths of the run")
        ->delimiter(',')
        ->check(CLI::Range(int64_t{1}, int64_t{1} << 31));
    command
        ->add_option("--tokens", options->tokens,
                     "Tokens looked at, at each length; default: one sequence of the largest")
        ->check(CLI::PositiveNumber);
    command->add_option("--label", options->label, "Results go to RUN/eval/LABEL/probe.csv")
        ->capture_default_str();
    command->add_option("--rope", options->rope,
                        "Change positions beyond the training context, as in longreach eval");
    command->add_option("--set", options->set, "Override a field of the run's config")
        ->expected(1)
        ->take_all();
    command->callback([options, &action] { action = [options] { return probe(*options); }; });
}

}  // namespace longreach
