// The files in which a run tells how it goes, step by step.
#include <fmt/chrono.h>

#include <charconv>
#include <cmath>
#include <numbers>

#include "eval/tables.h"
#include "train/trainer.h"

namespace longreach::train {

namespace {

// Bytes of the lines of timing.jsonl up to and including `step`. Its length depends on the clock, so unlike
// those of the other record files it is no part of a checkpoint: equal runs leave equal checkpoints.
int64_t timing_bytes(const std::string& path, int64_t step) {
    if (step == 0 || io::kind_of(path, io::Links::refuse) != io::PathKind::file) return 0;
    constexpr uint64_t largest = uint64_t{1} << 30;
    const std::string text = io::read_file(path, largest, io::Links::refuse);
    size_t begin = 0;
    for (size_t end; (end = text.find('\n', begin)) != std::string::npos; begin = end + 1) {
        constexpr std::string_view key = "{\"step\":";
        const std::string_view line = std::string_view(text).substr(begin, end - begin);
        int64_t at = 0;
        if (!line.starts_with(key)) break;
        if (std::from_chars(line.data() + key.size(), line.data() + line.size(), at).ec != std::errc()) break;
        if (at > step) break;
    }
    return static_cast<int64_t>(begin);
}

double seconds_since(std::chrono::steady_clock::time_point begin) {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

}  // namespace

void Trainer::open_records() {
    const auto bytes = [&](const char* name) {
        const auto later = resumed_bytes_.find(name), it = state_.file_bytes.find(name);
        if (later != resumed_bytes_.end()) return later->second;
        return it == state_.file_bytes.end() ? int64_t{0} : it->second;
    };
    metrics_ = directory_->open_record("metrics.jsonl", bytes("metrics.jsonl"));
    timing_ =
        directory_->open_record("timing.jsonl", timing_bytes(directory_->file("timing.jsonl"), state_.step));
    const auto open = [&](const auto& columns, io::RecordFile& file) {
        file = directory_->open_record(columns.file(), bytes(columns.file()), columns.header());
        const std::string text = io::read_file(file.path(), uint64_t{1} << 30, io::Links::refuse);
        const size_t n = columns.known(std::string_view(text).substr(0, text.find('\n')));
        require(n > 0, ExitCode::data, "{}: the first line is not the header of a {}", file.path(),
                columns.file());
        return n;
    };
    val_columns_ = open(eval::val_file, val_csv_);
    if (!state_.fingerprints)
        console_.line(
            "note: this run was started by an earlier version; its records cannot identify the "
            "scored tokens, so validation keeps scoring the head of the stream");
    positions_columns_ = open(eval::positions_file, positions_csv_);
    if (experiment_.probe.every > 0)
        probe_csv_ = directory_->open_record(eval::probe_file.file(), bytes(eval::probe_file.file()),
                                             eval::probe_file.header());
    if (experiment_.scores_task()) tasks_columns_ = open(eval::tasks_file, tasks_csv_);
    if (experiment_.run.events)
        events_ =
            EventLog(directory_->file("events"), experiment_, state_.step, console_, directory_->disk());
}

// Of a run that does not probe for a while, the length of probe.csv stays as it was.
std::vector<Trainer::Record> Trainer::records() {
    std::vector<Record> all = {{"metrics.jsonl", &metrics_, false},
                               {"val.csv", &val_csv_, true},
                               {"positions.csv", &positions_csv_, true}};
    if (experiment_.probe.every > 0) all.push_back({"probe.csv", &probe_csv_, true});
    if (experiment_.scores_task()) all.push_back({"tasks.csv", &tasks_csv_, true});
    return all;
}

void Trainer::note_lengths() {
    if (!speaks()) return;
    for (const Record& r : records()) state_.file_bytes[r.name] = r.file->bytes();
}

void Trainer::record_done() {
    Validated validated{state_.step, done_, {}};
    for (const Record& r : records()) {
        if (!r.evaluations) continue;
        r.file->sync();
        validated.file_bytes[r.name] = r.file->bytes();
    }
    io::write_file_atomically(directory_->file("validated.json"), format_validated(validated));
}

void Trainer::record_step(const StepOutcome& outcome, bool last) {
    const Stage& stage = stage_of(state_.step - 1);
    const double rate = busy_seconds_ > 0 ? static_cast<double>(busy_tokens_) / busy_seconds_ : 0;
    Progress p;
    p.step = state_.step;
    p.total_steps = total_steps_;
    p.context = stage.context;
    p.loss = outcome.loss;
    p.gradient_norm = outcome.gradient_norm;
    p.lr = outcome.lr;
    p.tokens_per_second = rate;
    // Of all ranks' devices together, as the FLOPs are.
    const double datasheet = ops_->traits().datasheet_flops * ranks_, peak = peak_flops_ * ranks_;
    p.mfu = datasheet > 0 && busy_seconds_ > 0 ? busy_flops_ / busy_seconds_ / datasheet : 0;
    p.peak_fraction = peak > 0 && busy_seconds_ > 0 ? busy_flops_ / busy_seconds_ / peak : 0;
    p.memory_bytes = resident_bytes();
    p.seconds_left = busy_seconds_ > 0 ? seconds_left(busy_flops_ / busy_seconds_) : 0;
    p.skipped = state_.skipped + state_.spikes_skipped;
    if (stages_.size() > 1) p.stage = fmt::format("stage {}/{}", &stage - stages_.data() + 1, stages_.size());

    if (!last && state_.step % experiment_.run.log_every != 0) {
        console_.status(progress_bar(p));
        return;
    }
    if (!speaks()) {
        busy_seconds_ = 0;
        busy_tokens_ = 0;
        busy_flops_ = 0;
        return;
    }
    console_.line(progress_line(p));
    json::Value metrics = json::Value::object();
    metrics.set("step", state_.step)
        .set("tokens", state_.tokens)
        .set("context", stage.context)
        .set("loss", std::isfinite(outcome.loss) ? json::Value(outcome.loss) : json::Value());
    const double bytes_per_token = train_stream_.bytes_per_token();
    // Of text: the answers of a task stand for no bytes of the corpus.
    if (bytes_per_token > 0 && std::isfinite(outcome.loss) &&
        experiment_.data.task.kind == data::TaskKind::none)
        metrics.set("bits_per_byte", outcome.loss / std::numbers::ln2 / bytes_per_token);
    metrics.set("grad_norm", outcome.finite ? json::Value(outcome.gradient_norm) : json::Value())
        .set("lr", outcome.lr)
        .set("skipped", state_.skipped);
    if (state_.spikes > 0) metrics.set("spikes", state_.spikes).set("spikes_skipped", state_.spikes_skipped);
    if (experiment_.optimizer.qk_clip.limit > 0)
        metrics.set("max_score", std::isfinite(outcome.largest_score) ? json::Value(outcome.largest_score)
                                                                      : json::Value());
    metrics_.append(json::write(metrics, json::Style::compact));

    json::Value timing = json::Value::object();
    const std::time_t now = std::time(nullptr);
    timing.set("step", state_.step)
        .set("time", fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(now)))
        .set("seconds", seconds_since(started_))
        .set("evaluation_seconds", evaluation_seconds_)
        .set("saving_seconds", saving_seconds_)
        .set("tokens_per_second", rate)
        .set("flops_per_second", busy_seconds_ > 0 ? busy_flops_ / busy_seconds_ : 0.0)
        .set("peak_fraction", p.peak_fraction)
        .set("mfu", p.mfu > 0 ? json::Value(p.mfu) : json::Value())  // null: no datasheet names a rate
        .set("memory_bytes", p.memory_bytes);
    if (ranks_ > 1) timing.set("ranks", ranks_).set("bytes_sent", comm_->bytes_sent());
    timing_.append(json::write(timing, json::Style::compact));
    events_.train_step(state_.step, outcome.loss,
                       outcome.finite ? std::optional(outcome.gradient_norm) : std::nullopt, outcome.lr,
                       rate);
    busy_seconds_ = 0;
    busy_tokens_ = 0;
    busy_flops_ = 0;
}

}  // namespace longreach::train
