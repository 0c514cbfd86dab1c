// longreach eval: loss by context length of a run or a checkpoint.
#include <algorithm>
#include <map>

#include "base/text.h"
#include "base/units.h"
#include "commands/command_line.h"
#include "commands/opened_model.h"
#include "measure/key_tokens.h"
#include "measure/repeat.h"
#include "eval/selection.h"
#include "eval/tables.h"
#include "measure/tasks.h"
#include "io/result_file.h"
#include "serve/vocabulary.h"
#include "tasks/question_answering.h"
#include "tokenizer/byte_text.h"

namespace longreach::commands {

namespace {

constexpr const char* question_task = "qa";

struct EvalOptions {
    ModelOptions model;
    std::string token_losses, key_tokens, out;  // key_tokens: "self" or a file of token losses
    std::vector<int64_t> lengths;
    std::vector<std::string> data, sets, tasks;
    std::string questions;  // file of the task qa
    std::vector<int64_t> depths;
    int64_t tokens = 0, samples = 100;
    bool buckets = false, repeat = false, replace = false;
    // Whether to measure losses by length: not if only tasks are requested.
    bool losses() const {
        return tasks.empty() || tokens > 0 || buckets || repeat || !token_losses.empty() ||
               !key_tokens.empty();
    }
    bool asks() const { return std::count(tasks.begin(), tasks.end(), question_task) > 0; }
    // Tasks that data.task says how to write.
    std::vector<data::TaskKind> kinds() const {
        std::vector<data::TaskKind> known;
        for (const std::string& name : tasks)
            if (name != question_task) known.push_back(data::task_by_name(name));
        return known;
    }
    bool judges_itself() const { return key_tokens == "self"; }
};

// A validation set and the losses on it.
struct Scored {
    train::ValidationSet set;
    eval::ScoredTokens tokens;
    std::vector<eval::LengthResult> results;
    std::vector<measure::KeyTokenRow> key_tokens;
};

// Writes a record file, or removes that of an earlier request if this one measured nothing of the kind.
template <class Columns>
void put(const std::string& directory, const Columns& columns, const std::vector<std::string>& lines) {
    const std::string path = io::join_path(directory, columns.file());
    if (lines.empty()) return io::remove_file(path);
    io::make_directories(directory);
    io::write_file_atomically(path, columns.header() + "\n" + join(lines, "\n") + "\n");
}

void put_losses(const std::string& directory, const Scored* scored, int64_t step) {
    const std::vector<eval::LengthResult> none, &results = scored ? scored->results : none;
    const double bytes_per_token = scored ? scored->set.stream.bytes_per_token() : 0;
    put(directory, eval::val_file, eval::val_lines(results, step, 0, bytes_per_token));
    put(directory, eval::positions_file, eval::positions_lines(results, step));
    put(directory, measure::key_tokens_file,
        scored ? measure::key_tokens_file.lines(scored->key_tokens) : std::vector<std::string>());
}

// The directories of the further sets that an earlier request wrote below a directory of results.
std::vector<std::string> earlier_sets(const std::string& directory) {
    std::vector<std::string> names;
    const std::string sets = io::join_path(directory, "sets");
    if (io::kind_of(sets, io::Links::refuse) != io::PathKind::directory) return names;
    for (const std::string& name : io::list_directory(sets))
        if (config::is_plain_name(name) &&
            io::kind_of(io::join_path(sets, name), io::Links::refuse) == io::PathKind::directory)
            names.push_back(name);
    return names;
}

// Error(ExitCode::usage) if --out or --token-losses would write over something else than results.
void check_places(const EvalOptions& options) {
    const std::string& losses = options.token_losses;
    if (!losses.empty() &&
        (io::kind_of(losses, io::Links::follow) != io::PathKind::file || !eval::is_token_losses(losses)))
        io::require_replaceable(losses, options.replace);
    if (options.out.empty()) return;
    for (const char* name : {"checkpoints", "config.json", "manifest.json"})
        require(io::kind_of(io::join_path(options.out, name), io::Links::follow) == io::PathKind::missing,
                ExitCode::usage, "--out {}: it holds {}, so it is not a directory of results",
                shown(options.out), name);
    const auto check = [&](const std::string& directory, const auto& columns) {
        io::require_replaceable(io::join_path(directory, columns.file()), options.replace, columns.header());
    };
    std::vector<std::string> directories{options.out};
    for (const std::string& set : earlier_sets(options.out))
        directories.push_back(io::join_path(options.out, "sets/" + set));
    for (const std::string& directory : directories) {
        check(directory, eval::val_file);
        check(directory, eval::positions_file);
        check(directory, measure::key_tokens_file);
    }
    check(options.out, measure::tasks_file);
}

void write_results(const std::string& directory, const std::vector<Scored>& scored,
                   const std::vector<measure::TaskRow>& tasks, int64_t step) {
    io::make_directories(directory);
    std::map<std::string, const Scored*> by_set{{"", nullptr}};
    const std::string sets = io::join_path(directory, "sets");
    for (const std::string& name : earlier_sets(directory)) by_set[name] = nullptr;
    for (const Scored& s : scored) by_set[s.set.name] = &s;
    for (const auto& [name, losses] : by_set)
        put_losses(name.empty() ? directory : io::join_path(sets, name), losses, step);
    put(directory, measure::tasks_file, measure::task_lines(tasks, step));
}

// The names of the validation sets to score: data.val first, whose name is empty.
std::vector<std::string> sets_to_score(const EvalOptions& options, const train::Experiment& experiment) {
    const auto& known = experiment.data.val_sets;
    std::vector<std::string> names{""}, all;
    for (const auto& [name, set] : known) all.push_back(name);
    require(options.data.empty() || options.sets.empty(), ExitCode::usage,
            "--data replaces data.val and leaves data.val_sets out: --sets has nothing to choose from");
    for (const std::string& name : options.sets)
        require(known.contains(name), ExitCode::usage, "--sets {}: data.val_sets has {}", shown(name),
                all.empty() ? "no sets" : "only " + join(all, ", "));
    if (!options.losses()) return {};
    if (options.data.empty())
        for (const std::string& name : all)
            if (options.sets.empty() || std::count(options.sets.begin(), options.sets.end(), name) > 0)
                names.push_back(name);
    return names;
}

void print_losses(train::Console& console, const Scored& scored, bool buckets) {
    const std::string& name = scored.set.name;
    console.line((name.empty() ? "" : name + ":\n") +
                 eval::results_table(scored.results, scored.set.stream.bytes_per_token()) +
                 eval::scored_line(scored.tokens));
    if (buckets)
        console.line(eval::buckets_table(scored.results, false) + "\n" +
                     eval::buckets_table(scored.results, true));
}

measure::TaskRequest task_request(const EvalOptions& options, const train::Experiment& e,
                                  int64_t batch_tokens) {
    measure::TaskRequest r;
    r.tasks = options.kinds();
    r.lengths = e.eval.lengths;
    r.depths = options.depths;
    r.samples = options.samples;
    r.batch_tokens = batch_tokens;
    r.config = e.data.task;
    r.seed = e.task_seed();
    return r;
}

// The samples of qa, for every length of the experiment.
tasks::QuestionSamples question_samples(const EvalOptions& options, const OpenedModel& opened) {
    const train::Experiment& e = opened.experiment;
    const serve::Vocabulary vocabulary(e.model.vocab_size, run_tokenizer(opened.checkpoint));
    require(
        vocabulary.reads_text(), ExitCode::usage,
        "--tasks qa asks in text: the model's vocabulary is not that of bytes ({} tokens instead of {}) and "
        "the run directory has no tokenizer",
        vocabulary.size(), tokenizer::byte_vocabulary);
    tasks::QuestionSamples samples(
        data::read_questions(options.questions), options.questions,
        [&](std::string_view text) { return vocabulary.encode(text, false); }, e.eval.lengths.front(),
        e.task_seed());
    samples.check(e.eval.lengths.back(), options.samples);
    return samples;
}

// The split of the losses on one set by the judge's tokens; without a judge, the model's own.
std::vector<measure::KeyTokenRow> key_tokens_of(const Scored& scored, const eval::EvalRequest& request,
                                                const std::optional<measure::JudgeLosses>& judge,
                                                const std::string& run, int64_t step) {
    measure::JudgeLosses losses = judge ? *judge : measure::judge_of(scored.results);
    if (!judge) losses.name = run;
    const std::vector<measure::TokenPart> parts = measure::parts_of(losses, {});
    const std::vector<int32_t> documents = eval::select(scored.set.stream, request).document;
    return measure::split_losses(scored.results, {losses, parts, documents, judge.has_value(), request.seed},
                                 step);
}

void print_tasks(train::Console& console, const EvalOptions& options,
                 const std::vector<measure::TaskRow>& rows) {
    console.line(measure::tasks_table(rows));
    for (const std::string& name : options.depths.empty() ? std::vector<std::string>{} : options.tasks)
        if (const std::string grid = measure::depth_grid(rows, name); !grid.empty())
            console.line(fmt::format("accuracy of {} by depth and length\n{}", name, grid));
}

model::PlanSize plan_size(const eval::EvalConfig& config, int64_t longest, int64_t piece) {
    model::PlanSize size = evaluation_size(config.lengths, longest, piece);
    size.tokens = std::max(size.tokens, config.batch_tokens);
    return size;
}

eval::EvalRequest losses_request(const EvalOptions& options, const OpenedModel& opened, int64_t batch) {
    const train::Experiment& e = opened.experiment;
    eval::EvalRequest request = eval::make_request(e.eval, e.eval.final_tokens, batch, e.data.document_mask);
    request.seed = e.data_seed();
    request.keep_token_losses = !options.token_losses.empty() || !options.key_tokens.empty();
    request.progress = opened.progress;
    return request;
}

// The results, to --out and under the label, and there what was asked for.
void write_out(const EvalOptions& options, OpenedModel& opened, const std::vector<Scored>& scored,
               const std::vector<measure::TaskRow>& tasks) {
    for (const std::string& directory : {options.out, opened.directory})
        if (!directory.empty()) write_results(directory, scored, tasks, opened.checkpoint.step);
    std::vector<std::string> names;
    for (size_t i = 0; i < tasks.size(); ++i)
        if (i == 0 || tasks[i].task != tasks[i - 1].task) names.push_back(tasks[i].task);
    std::vector<std::string> sets;
    for (const Scored& s : scored)
        if (!s.set.name.empty()) sets.push_back(s.set.name);
    if (!opened.directory.empty())
        opened.write_request(opened.experiment.eval.lengths, opened.experiment.eval.final_tokens, names,
                             scored.empty() ? nullptr : &scored[0].tokens, sets, false);
}

ExitCode evaluate(const EvalOptions& options) {
    require(options.asks() == !options.questions.empty(), ExitCode::usage,
            "--tasks qa and --questions FILE go together");
    check_places(options);
    OpenedModel opened(options.model, false, [&](train::Experiment& e) {
        e.eval.take_lengths(options.lengths, options.tokens);
        if (!options.data.empty()) e.data.val = options.data;
        e.data.task.evaluated = !options.kinds().empty();
    });
    if (!options.data.empty())
        opened.overrides.push_back(
            "data.val=" +
            json::write(json::Array(options.data.begin(), options.data.end()), json::Style::compact));
    train::Console& console = opened.console;
    const train::Experiment& experiment = opened.experiment;
    std::vector<Scored> scored;
    for (const std::string& name : sets_to_score(options, experiment))
        scored.push_back({opened.validation_set(name), {}, {}, {}});
    std::optional<train::ValidationSet> only;  // of tasks alone
    if (scored.empty()) only = opened.validation_set("");
    const data::TokenStream& stream = only ? only->stream : scored[0].set.stream;
    const bool documents = experiment.data.document_mask;
    const int64_t longest = experiment.eval.lengths.back();
    // Tasks and repeated texts are whole sequences.
    const bool whole = !options.tasks.empty() || options.repeat;
    const int64_t piece = whole ? 0 : eval::piece_of(experiment.eval, *opened.ops);
    const int64_t batch = plan_size(experiment.eval, longest, piece).tokens;
    eval::EvalRequest request = losses_request(options, opened, batch);
    request.piece = piece;
    for (Scored& s : scored) s.tokens = train::checked_request(s.set, request);
    std::optional<measure::JudgeLosses> judge;
    if (!options.key_tokens.empty()) {
        require(experiment.eval.lengths.size() > 1, ExitCode::usage,
                "--key-tokens compares losses at two lengths or more; --lengths 1K,8K names two");
        if (!options.judges_itself())
            judge = measure::read_judge(options.key_tokens, scored[0].tokens,
                                        eval::select(scored[0].set.stream, request).document);
    }
    std::optional<tasks::QuestionSamples> questions;
    if (options.asks()) {
        questions.emplace(question_samples(options, opened));
        if (questions->left_out() > 0)
            console.line(fmt::format("qa: {} left out, which with their passage are longer than {} tokens",
                                     counted(static_cast<size_t>(questions->left_out()), "question"),
                                     experiment.eval.lengths[0]));
    }
    opened.build(longest);
    Ops& ops = *opened.ops;
    model::Transformer& model = *opened.model;
    measure::TaskRequest task = task_request(options, experiment, batch);
    task.progress = opened.progress;
    task.questions = questions ? &*questions : nullptr;
    eval::LengthEvaluator evaluator;
    measure::TaskEvaluator task_evaluator;
    measure::RepeatEvaluator repeater;
    const auto plan = [&](model::Arena& arena, int64_t length) {
        const model::PlanSize size = plan_size(experiment.eval, length, piece);
        if (options.losses()) evaluator.plan(arena, size.tokens, documents || size.room > 0);
        if (!options.tasks.empty()) task_evaluator.plan(arena, size.tokens, documents);
        if (options.repeat) repeater.plan(arena, size.tokens, documents);
        model.plan_evaluation(arena, ops, size, documents);
    };
    opened.load(plan, longest);
    const model::FlatParams& weights = opened.weights;

    for (Scored& s : scored) {
        s.results = evaluator.run(ops, opened.comm, model, weights, s.set.stream, request);
        print_losses(console, s, options.buckets);
        if (request.keep_token_losses && !options.key_tokens.empty()) {
            s.key_tokens = key_tokens_of(s, request, judge, experiment.run.name, opened.checkpoint.step);
            console.line(measure::key_tokens_table(s.key_tokens, {}));
        }
        // A file holds the losses of data.val alone.
        request.keep_token_losses = options.judges_itself();
    }
    if (!options.token_losses.empty())
        eval::write_token_losses(options.token_losses, scored[0].results, experiment.run.name);
    std::vector<measure::TaskRow> tasks;
    if (options.repeat) {
        tasks = repeater.run(ops, model, weights, stream,
                             {experiment.eval.lengths, experiment.model.train_context, request.tokens, batch,
                              documents, request.pick, request.progress});
        console.line(measure::tasks_table(tasks));
    }
    if (!options.tasks.empty()) {
        const std::vector<measure::TaskRow> rows =
            task_evaluator.run(ops, opened.comm, model, weights, stream, task);
        print_tasks(console, options, rows);
        tasks.insert(tasks.end(), rows.begin(), rows.end());
    }
    write_out(options, opened, scored, tasks);
    console.line(fmt::format("peak memory of the process: {}", human_bytes(train::peak_resident_bytes())));
    return ExitCode::ok;
}

}  // namespace

void add_eval_command(Command& program) {
    auto options = std::make_shared<EvalOptions>();
    Command command = program.add("eval", "Loss by context length of a run or checkpoint");
    add_model_options(command, options->model);
    command.option("--lengths", options->lengths, "Context lengths: 2K,4K,64K (K is 1024)")
        .comma_list()
        .in_range(int64_t{1}, int64_t{1} << 31)
        .token_counts();
    command.option("--tokens", options->tokens, "Tokens scored at each length: 1M").positive().token_counts();
    command
        .option("--data", options->data,
                "Token shards instead of the config's data.val; data.val_sets are left out")
        .repeatable();
    command
        .option("--sets", options->sets, "Which of data.val_sets to score besides data.val: books,code (all)")
        .comma_list();
    command.flag("--buckets", options->buckets, "Also print loss by position bucket");
    command.option("--token-losses", options->token_losses,
                   "Write the loss of every token of data.val to this safetensors file");
    command.option(
        "--key-tokens", options->key_tokens,
        "Split the losses by whether the longest of --lengths helps a token that the shortest does not: "
        "self, or FILE, the --token-losses of the model whose tokens all models are compared on");
    command.flag("--repeat", options->repeat,
                 "Also score texts of the training length, repeated to fill each length, and the same text "
                 "without repetition");
    std::vector<std::string> names;
    for (const data::TaskKind task : data::all_tasks()) names.emplace_back(data::name_of(task));
    command
        .option("--tasks", options->tasks,
                "Score tasks instead of losses: " + join(names, ", ") + ", qa" +
                    " (with --tokens, losses too; how tasks are written: --set data.task.digits=5 ...)")
        .comma_list();
    command.option("--questions", options->questions,
                   "JSONL of the task qa: \"context\", \"question\" and \"answers\" on each line");
    command
        .option("--depths", options->depths,
                "Position of the answer in tasks, in percent of the context: 0,25,50,75,100 (default: random "
                "positions)")
        .comma_list()
        .in_range(0, 100);
    command.option("--samples", options->samples, "Samples per task, length and depth (100)")
        .in_range(int64_t{1}, int64_t{1} << 30);
    command.option("--out", options->out,
                   "Write val.csv, positions.csv, tasks.csv, key_tokens.csv and sets/ into this directory");
    add_replace_flag(command, options->replace);
    add_label_option(command, options->model,
                     "Write them and request.json into eval/LABEL of the run directory");
    command.run([options] { return evaluate(*options); });
}

}  // namespace longreach::commands
