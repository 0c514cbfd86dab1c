#include "train/validator.h"

#include <algorithm>
#include <cmath>

#include "eval/tables.h"
#include "train/signals.h"
#include "train/validated.h"

namespace longreach::train {

namespace {

constexpr const char* partial_file = "validation.partial";
constexpr uint64_t largest_partial = uint64_t{1} << 32;

template <class T>
void hash_value(Xxh64& hash, T value) {
    hash.update(&value, sizeof value);
}

eval::Pause make_pause() {
    eval::Pause pause;
    pause.asked = [] { return StopSignals::received() != 0; };
    return pause;
}

}  // namespace

Validator::Validator(Session& session, RankAgreement& agreement, Recorder& recorder)
    : session_(session), agreement_(agreement), recorder_(recorder) {
    if (session.surroundings.no_data.empty()) check_data();
}

void Validator::check_data() const {
    const Experiment& e = session_.experiment;
    for (const ValidationSet& set : session_.val_sets) check_lengths(e, set);
    const data::TokenStream& stream = session_.val_stream;
    if (e.probe.every > 0) eval::LengthEvaluator::check_request(stream, probe_request().evaluation());
    if (e.scores_task()) e.task_generator(&stream).make(e.block_tokens(), tasks::first_evaluation_sample);
}

void Validator::plan(model::Arena& arena, const std::vector<Stage>& stages, int64_t longest) {
    const Experiment& e = session_.experiment;
    const bool documents = e.data.document_mask;
    model::PlanSize size{0, e.evaluated_lengths()};
    while (size.lengths.size() > 1 && size.lengths.back() > longest) size.lengths.pop_back();
    // As Experiment::eval_batch_tokens, but for these stages and lengths.
    size.tokens = e.eval.batch_tokens > 0 ? e.eval.batch_tokens : most_micro_tokens(stages);
    if (e.data.task.kind != data::TaskKind::none) size.tokens = std::max(size.tokens, e.block_tokens());
    size.tokens = std::max(size.tokens, size.lengths.back());

    evaluator_.plan(arena, size.tokens, documents, session_.rank, session_.ranks);
    if (e.scores_task()) {
        task_evaluator_.plan(arena, size.tokens, documents, session_.rank, session_.ranks);
        for (const Stage& s : stages) size.lengths.push_back(s.context);
    }
    session_.model.plan_evaluation(arena, session_.ops, size, documents);
    if (e.probe.every > 0)
        probe_.plan(arena, e.model, std::min(e.probe_lengths().back(), longest), documents);
}

std::vector<Part> Validator::parts_left() const {
    const TrainState& state = session_.state;
    if (!state.pending || state.step > session_.schedule.steps()) return {};
    std::vector<Part> parts = session_.experiment.parts_after(state.step);
    std::erase_if(parts,
                  [&](const Part& p) { return std::find(done_.begin(), done_.end(), p) != done_.end(); });
    return parts;
}

// If the records of a run have no fingerprints, it must keep scoring the tokens it scored before.
eval::EvalPick Validator::pick() const {
    return session_.state.fingerprints ? session_.experiment.eval.pick : eval::EvalPick::head;
}

// Includes the weights themselves, because their step does not show whether they have changed since.
uint64_t Validator::context(const ValidationSet& set) const {
    Xxh64 hash;
    const std::string config = json::write(
        config::to_json(longreach::config::describe(session_.experiment.eval)), json::Style::compact);
    hash.update(config.data(), config.size());
    hash_value(hash, session_.state.step);
    hash_value(hash, set.stream.fingerprint());
    hash_value(hash, static_cast<int64_t>(session_.experiment.system.precision));
    hash_value(hash, static_cast<int64_t>(session_.ops.native_queue().device < 0));
    std::vector<float> host;
    for (const model::Param& p : session_.model.params().params()) {
        host.resize(static_cast<size_t>(p.count()));
        session_.ops.download(host.data(), session_.weights.view(p));
        hash.update(host.data(), host.size() * sizeof(float));
    }
    return hash.digest();
}

bool Validator::validate(const ValidationSet& set, std::string& not_finite) {
    const Experiment& e = session_.experiment;
    const int64_t step = session_.state.step;
    const bool writes = session_.writes();
    if (writes) session_.directory->check_names();
    eval::EvalRequest request =
        eval::make_request(e.eval, session_.schedule.last(step) ? e.eval.final_tokens : e.eval.tokens,
                           e.eval_batch_tokens(), e.data.document_mask);
    request.pick = pick();
    request.seed = e.data_seed();
    const std::string prefix = set.name.empty() ? "" : set.name + ": ";
    request.progress = [&](const std::string& text) { session_.console.status(prefix + text); };
    eval::Pause pause = make_pause();
    pause.resumable = true;
    pause.context = [&] { return context(set); };
    const std::string partial = writes ? session_.directory->file(partial_file) : "";
    const bool begun = writes && io::kind_of(partial, io::Links::refuse) == io::PathKind::file;
    if (begun) pause.sums = io::read_file(partial, largest_partial, io::Links::refuse);
    request.pause = &pause;
    const std::vector<eval::LengthResult> results =
        evaluator_.run(session_.ops, *session_.comm, session_.model, session_.weights, set.stream, request);
    if (pause.stopped && writes) io::write_file_atomically(partial, pause.sums);
    if (pause.stopped || !writes) return !pause.stopped;
    if (begun) io::remove_file(partial);
    recorder_.losses(set, results);
    const std::string name =
        fmt::format("validation at step {}{}", step, set.name.empty() ? "" : " on " + set.name);
    std::string text = name + ":";
    for (const eval::LengthResult& r : results) text += fmt::format("  {} {:.4f}", r.length, r.loss.mean());
    session_.console.line(text);
    for (const eval::LengthResult& r : results)
        if (!std::isfinite(r.loss.mean()) && not_finite.empty())
            not_finite = fmt::format("{}: the loss at length {} is not finite; {}", name, r.length,
                                     session_.earlier_checkpoint(step));
    return true;
}

// Scores the task at the context of the last step; `longreach eval --tasks` scores tasks at other lengths
// and depths, and other tasks.
bool Validator::validate_task() {
    const Experiment& e = session_.experiment;
    eval::TaskRequest request;
    request.tasks = {e.data.task.kind};
    request.lengths = {session_.schedule.stage_of(session_.state.step - 1).context};
    request.samples = e.data.task.samples;
    request.batch_tokens = e.eval_batch_tokens();
    request.config = e.data.task;
    request.seed = e.task_seed();
    request.progress = [&](const std::string& text) { session_.console.status(text); };
    eval::Pause pause = make_pause();
    request.pause = &pause;
    const std::vector<eval::TaskRow> rows = task_evaluator_.run(
        session_.ops, *session_.comm, session_.model, session_.weights, session_.val_stream, request);
    if (pause.stopped || !session_.writes()) return !pause.stopped;
    recorder_.task(rows);
    const eval::TaskRow& row = rows[0];
    session_.console.line(fmt::format(
        "{} at {}: accuracy {:.3f}{}, margin {:.2f}", row.task, row.length, row.accuracy,
        row.accuracy_error ? fmt::format(" +- {:.3f}", *row.accuracy_error) : "", row.margin.value_or(0)));
    return true;
}

eval::ProbeRequest Validator::probe_request() const {
    const Experiment& e = session_.experiment;
    eval::ProbeRequest request;
    request.lengths = e.probe_lengths();
    request.tokens = e.probe.tokens;
    request.document_mask = e.data.document_mask;
    request.pick = pick();
    request.seed = e.data_seed();
    request.progress = [this](const std::string& text) { session_.console.status("probe: " + text); };
    return request;
}

bool Validator::probe() {
    eval::ProbeRequest request = probe_request();
    eval::Pause pause = make_pause();
    request.pause = &pause;
    const eval::ProbeResult result = probe_.run(session_.ops, *session_.comm, session_.model,
                                                session_.weights, evaluator_, session_.val_stream, request);
    if (pause.stopped || !session_.writes()) return !pause.stopped;
    recorder_.probe(result);
    return true;
}

bool Validator::run_part(const Part& part, std::string& not_finite) {
    const Stopwatch watch;
    const Schedule& schedule = session_.schedule;
    TimeSpent& spent = session_.spent;
    bool complete = false;
    double flops = 0;
    switch (part.kind) {
        case Part::Kind::losses: {
            const auto named = [&](const ValidationSet& set) { return set.name == part.set; };
            const auto set = std::find_if(session_.val_sets.begin(), session_.val_sets.end(), named);
            check(set != session_.val_sets.end(), "no validation set {}", part.set);
            complete = validate(*set, not_finite);
            flops = schedule.losses_flops(schedule.last(session_.state.step), *set);
            break;
        }
        case Part::Kind::task:
            complete = validate_task();
            flops = schedule.task_flops();
            break;
        case Part::Kind::probe:
            complete = probe();
            flops = schedule.probe_flops();
            break;
    }
    const double seconds = watch.seconds();
    spent.evaluating += seconds;
    if (!complete) return false;
    Measured& measured = part.kind == Part::Kind::probe ? spent.probes : spent.validations;
    measured.seconds += seconds;
    measured.flops += flops;
    return true;
}

void Validator::write_done() {
    io::write_file_atomically(session_.directory->file("validated.json"),
                              format_validated({session_.state.step, done_, recorder_.evaluation_lengths()}));
}

Validator::End Validator::evaluate() {
    session_.model.set_stage_window(session_.experiment.window_at(session_.state.step - 1));
    for (const Part& part : parts_left()) {
        std::string not_finite;
        if (!run_part(part, not_finite)) {
            if (session_.ranks > 1)
                agreement_.gather_with_signals(0, [](int) { return std::vector<Tensor>(); });
            return End::stopped;
        }
        if (const std::string text = agreement_.text(not_finite); !text.empty()) {
            session_.console.end_line(text);
            return End::not_finite;
        }
        done_.push_back(part);
        if (session_.writes()) write_done();
    }
    session_.state.pending = false;
    recorder_.note_lengths();
    return End::complete;
}

}  // namespace longreach::train
