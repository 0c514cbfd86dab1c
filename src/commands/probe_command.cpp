// longreach probe: statistics of attention in the model of a run or checkpoint, by layer and head.
#include "base/text.h"
#include "base/units.h"
#include "commands/command_line.h"
#include "commands/opened_model.h"
#include "measure/probe.h"
#include "model/registry.h"

namespace longreach::commands {

namespace {

struct ProbeOptions {
    ModelOptions model{"", "plain", {}};
    std::vector<int64_t> lengths;
    int64_t tokens = 0;
};

// Tokens of the pieces in which longer sequences are read where layers have states: eval.piece where it is given, and by
// default where no layer attends to keys. 0: all are read as a whole.
int64_t piece_of_states(const train::Experiment& e, const Ops& ops) {
    bool states = false, attends = false;
    for (const int64_t layer : e.model.distinct_layers()) {
        const model::AttentionConfig& attention = e.model.layer_attention(layer);
        states = states || model::mixer_type(attention.mixer).state != nullptr;
        attends = attends || attention.attends();
    }
    return states && (!attends || e.eval.piece > 0) ? eval::piece_of(e.eval, ops) : 0;
}

ExitCode probe(const ProbeOptions& options) {
    OpenedModel opened(options.model, false, [&](train::Experiment& e) {
        // The command probes once, at its own lengths.
        if (!options.lengths.empty()) e.probe.lengths = options.lengths;
        e.eval.take_lengths(e.probe_lengths(), 0);
        if (options.tokens > 0)
            e.probe.tokens = options.tokens;
        else if (e.probe.tokens > 0 && !e.eval.lengths.empty())
            e.probe.tokens = std::max(e.probe.tokens, e.eval.lengths.back());
    });
    train::Console& console = opened.console;
    const train::Experiment& experiment = opened.experiment;
    const data::TokenStream stream = opened.validation_set("").stream;
    measure::ProbeRequest request;
    request.lengths = experiment.probe_lengths();
    request.tokens = experiment.probe.tokens;
    request.document_mask = experiment.data.document_mask;
    request.pick = experiment.eval.pick;
    request.seed = experiment.data_seed();
    request.progress = [&](const std::string& text) { console.status("probe: " + text); };
    request.piece = piece_of_states(experiment, *opened.ops);
    const eval::ScoredTokens scored = eval::LengthEvaluator::check_request(stream, request.evaluation());
    const int64_t longest = request.lengths.back();
    const bool in_pieces = request.piece > 0 && longest > request.piece;
    if (in_pieces)
        opened.console.line(fmt::format(
            "sequences of more than {} tokens are read in pieces, for their states alone", request.piece));
    opened.build(longest);
    Ops& ops = *opened.ops;
    model::Transformer& model = *opened.model;
    eval::LengthEvaluator evaluator;
    measure::Probe probe;
    const auto plan = [&](model::Arena& arena, int64_t length) {
        const model::PlanSize size = evaluation_size(request.lengths, length, request.piece);
        evaluator.plan(arena, size.tokens, request.document_mask || in_pieces);
        model.plan_evaluation(arena, ops, size, request.document_mask);
        probe.plan(arena, experiment.model, size.tokens, request.document_mask);
    };
    opened.load(plan, longest);

    const measure::ProbeResult result =
        probe.run(ops, opened.comm, model, opened.weights, evaluator, stream, request);
    console.line(measure::probe_table(result.rows));
    io::make_directories(opened.directory);
    io::write_file_atomically(io::join_path(opened.directory, "probe.csv"),
                              measure::probe_file.header() + "\n" +
                                  join(measure::probe_lines(result.rows, opened.checkpoint.step), "\n") +
                                  "\n");
    // Keeps the request of another evaluation under this label.
    opened.write_request(request.lengths, request.tokens, {}, &scored, {}, true);
    console.line(fmt::format("peak memory of the process: {}", human_bytes(train::peak_resident_bytes())));
    return ExitCode::ok;
}

}  // namespace

void add_probe_command(Command& program) {
    auto options = std::make_shared<ProbeOptions>();
    Command command = program.add(
        "probe", "Statistics of attention, and of states of the delta rule, by layer, head and position");
    add_model_options(command, options->model);
    command
        .option("--lengths", options->lengths,
                "Context lengths: 1K,4K,64K; default: probe.lengths, else eval.lengths of the run")
        .comma_list()
        .in_range(int64_t{1}, int64_t{1} << 31)
        .token_counts();
    command
        .option("--tokens", options->tokens,
                "Tokens examined at each length (default: one sequence of the largest)")
        .positive()
        .token_counts();
    add_label_option(command, options->model, "Results go to RUN/eval/LABEL/probe.csv");
    command.run([options] { return probe(*options); });
}

}  // namespace longreach::commands
