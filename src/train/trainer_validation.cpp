// What a run evaluates between steps: losses by length, the task it trains on, what attention does.
#include <algorithm>
#include <cmath>

#include "eval/tables.h"
#include "train/signals.h"
#include "train/trainer.h"

namespace longreach::train {

namespace {

using Clock = std::chrono::steady_clock;

constexpr const char* partial_file = "validation.partial";
constexpr uint64_t largest_partial = uint64_t{1} << 32;

template <class T>
void hash_value(Xxh64& hash, T value) {
    hash.update(&value, sizeof value);
}

}  // namespace

std::vector<Part> Trainer::parts_left() const {
    if (!state_.pending || state_.step > total_steps_) return {};
    std::vector<Part> parts = experiment_.parts_after(state_.step);
    std::erase_if(parts, [&](Part p) { return std::find(done_.begin(), done_.end(), p) != done_.end(); });
    return parts;
}

eval::Pause Trainer::make_pause() const {
    eval::Pause pause;
    pause.asked = [] { return StopSignals::received() != 0; };
    return pause;
}

// The weights themselves, not their step: nobody may have changed them in between.
uint64_t Trainer::evaluation_context() const {
    Xxh64 hash;
    const std::string config =
        json::write(config::to_json(longreach::config::describe(experiment_.eval)), json::Style::compact);
    hash.update(config.data(), config.size());
    hash_value(hash, state_.step);
    hash_value(hash, val_stream_.fingerprint());
    hash_value(hash, static_cast<int64_t>(experiment_.system.precision));
    hash_value(hash, static_cast<int64_t>(ops_->native_queue().device < 0));
    std::vector<float> host;
    for (const model::Param& p : model_.params().params()) {
        host.resize(static_cast<size_t>(p.count()));
        ops_->download(host.data(), weights_.view(p));
        hash.update(host.data(), host.size() * sizeof(float));
    }
    return hash.digest();
}

bool Trainer::validate(std::string& not_finite) {
    if (speaks()) directory_->check_names();
    const eval::EvalConfig& config = experiment_.eval;
    const bool final = state_.step == total_steps_;
    eval::EvalRequest request =
        eval::make_request(config, final ? config.final_tokens : config.tokens,
                           experiment_.eval_batch_tokens(), experiment_.data.document_mask);
    request.pick = pick();
    request.seed = experiment_.data_seed();
    request.progress = [&](const std::string& text) { console_.status(text); };
    eval::Pause pause = make_pause();
    pause.resumable = true;
    pause.context = [&] { return evaluation_context(); };
    const std::string partial = speaks() ? directory_->file(partial_file) : "";
    const bool begun = speaks() && io::kind_of(partial, io::Links::refuse) == io::PathKind::file;
    if (begun) pause.sums = io::read_file(partial, largest_partial, io::Links::refuse);
    request.pause = &pause;
    const std::vector<eval::LengthResult> results =
        evaluator_.run(*ops_, *comm_, model_, weights_, val_stream_, request);
    if (pause.stopped && speaks()) io::write_file_atomically(partial, pause.sums);
    if (pause.stopped || !speaks()) return !pause.stopped;
    if (begun) io::remove_file(partial);
    for (const std::string& line :
         eval::val_lines(results, state_.step, state_.tokens, val_stream_.bytes_per_token()))
        val_csv_.append(io::first_cells(line, val_columns_));
    for (const std::string& line : eval::positions_lines(results, state_.step))
        positions_csv_.append(io::first_cells(line, positions_columns_));
    events_.validation(state_.step, results);
    events_.weights(state_.step, *ops_, model_.params(), weights_);
    std::string text = fmt::format("validation at step {}:", state_.step);
    for (const eval::LengthResult& r : results) text += fmt::format("  {} {:.4f}", r.length, r.loss.mean());
    console_.line(text);
    for (const eval::LengthResult& r : results)
        if (!std::isfinite(r.loss.mean()) && not_finite.empty())
            not_finite = fmt::format("validation at step {}: the loss at length {} is not finite; {}",
                                     state_.step, r.length, newest_checkpoint_before(state_.step));
    return true;
}

// At the context that was trained on; other lengths, depths and tasks are `longreach eval --tasks`.
bool Trainer::validate_task() {
    const data::TaskConfig& config = experiment_.data.task;
    eval::TaskRequest request;
    request.tasks = {config.kind};
    request.lengths = {stage_of(state_.step - 1).context};
    request.samples = config.samples;
    request.batch_tokens = experiment_.eval_batch_tokens();
    request.config = config;
    request.seed = experiment_.task_seed();
    request.progress = [&](const std::string& text) { console_.status(text); };
    eval::Pause pause = make_pause();
    request.pause = &pause;
    const std::vector<eval::TaskRow> rows =
        task_evaluator_.run(*ops_, *comm_, model_, weights_, val_stream_, request);
    if (pause.stopped || !speaks()) return !pause.stopped;
    for (const std::string& line : eval::task_lines(rows, state_.step))
        tasks_csv_.append(io::first_cells(line, tasks_columns_));
    const eval::TaskRow& row = rows[0];
    console_.line(fmt::format(
        "{} at {}: accuracy {:.3f}{}, margin {:.2f}", row.task, row.length, row.accuracy,
        row.accuracy_error ? fmt::format(" +- {:.3f}", *row.accuracy_error) : "", row.margin.value_or(0)));
    return true;
}

eval::ProbeRequest Trainer::probe_request() const {
    eval::ProbeRequest request;
    request.lengths = experiment_.probe_lengths();
    request.tokens = experiment_.probe.tokens;
    request.document_mask = experiment_.data.document_mask;
    request.pick = pick();
    request.seed = experiment_.data_seed();
    request.progress = [this](const std::string& text) { console_.status("probe: " + text); };
    return request;
}

bool Trainer::probe() {
    eval::ProbeRequest request = probe_request();
    eval::Pause pause = make_pause();
    request.pause = &pause;
    const eval::ProbeResult result =
        probe_.run(*ops_, *comm_, model_, weights_, evaluator_, val_stream_, request);
    if (pause.stopped || !speaks()) return !pause.stopped;
    for (const std::string& line : eval::probe_lines(result.rows, state_.step)) probe_csv_.append(line);
    events_.scores(state_.step, result.scores);
    return true;
}

bool Trainer::run_part(Part part, std::string& not_finite) {
    const Clock::time_point begin = Clock::now();
    bool complete = true;
    switch (part) {
        case Part::losses:
            complete = validate(not_finite);
            break;
        case Part::task:
            complete = validate_task();
            break;
        case Part::probe:
            complete = probe();
            break;
    }
    const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
    evaluation_seconds_ += seconds;
    if (!complete || part == Part::task) return complete;
    Spent& spent = part == Part::losses ? validations_ : probes_;
    spent.seconds += seconds;
    spent.flops += part == Part::losses ? validation_flops(state_.step == total_steps_) : probe_flops();
    return true;
}

ExitCode Trainer::evaluate() {
    if (!state_.pending) return ExitCode::ok;
    traffic_.settle();
    model_.set_stage_window(experiment_.window_at(state_.step - 1));
    for (const Part part : parts_left()) {
        std::string not_finite;
        if (!run_part(part, not_finite)) {
            if (ranks_ > 1) share_signals();
            return stop();
        }
        if (const std::string text = share_text(not_finite); !text.empty()) {
            console_.line(text);
            return ExitCode::numerics;
        }
        done_.push_back(part);
        if (speaks()) record_done();
    }
    state_.pending = false;
    note_lengths();
    return ExitCode::ok;
}

}  // namespace longreach::train
