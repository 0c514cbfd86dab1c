#include "train/recorder.h"

#include <fmt/chrono.h>

#include <charconv>
#include <cmath>
#include <numbers>

#include "train/batch_source.h"
#include "train/step_records.h"

namespace longreach::train {

namespace {

constexpr uint64_t largest_record = uint64_t{1} << 30;  // bytes

// Bytes of the lines of timing.jsonl up to and including `step`. This length depends on the clock, so unlike
// those of the other record files it is not stored in checkpoints: equal runs write equal checkpoints.
int64_t timing_bytes(const std::string& path, int64_t step) {
    if (step == 0 || io::kind_of(path, io::Links::refuse) != io::PathKind::file) return 0;
    const std::string text = io::read_file(path, largest_record, io::Links::refuse);
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

}  // namespace

void Recorder::open(const std::map<std::string, int64_t>& later) {
    RunDirectory& directory = *session_.directory;
    const Experiment& e = session_.experiment;
    const TrainState& state = session_.state;
    const auto bytes = [&](const std::string& name) {
        const auto ahead = later.find(name), it = state.file_bytes.find(name);
        if (ahead != later.end()) return ahead->second;
        return it == state.file_bytes.end() ? int64_t{0} : it->second;
    };
    const char* timing = timing_file.file();
    metrics_ = directory.open_record(metrics_file.file(), bytes(metrics_file.file()));
    timing_ = directory.open_record(timing, timing_bytes(directory.file(timing), state.step));
    // The order in which a checkpoint lists their copies.
    std::map<std::string, const Evaluation*> by_name;
    for (const auto& evaluation : session_.evaluations) by_name[evaluation->name()] = evaluation.get();
    for (const auto& [name, evaluation] : by_name)
        for (const std::string& record : evaluation->records()) {
            const EvaluationFile& known = evaluation_file(record);
            Table& table = tables_[record];
            table.file = directory.open_record(record, bytes(record), known.header());
            const std::string text = io::read_file(table.file.path(), largest_record, io::Links::refuse);
            table.columns = known.known(std::string_view(text).substr(0, text.find('\n')));
            require(!table.columns.empty(), ExitCode::data, "{}: the first line is not the header of a {}",
                    table.file.path(), known.name);
        }
    if (!state.fingerprints)
        session_.console.line(
            "note: this run was started by an earlier version; its records cannot identify the "
            "scored tokens, so validation keeps scoring the head of the stream");
    if (e.run.events)
        events_ = EventLog(directory.file("events"), e, state.step, session_.console, directory.disk());
    running_ = {};
}

// The records of an evaluation that the run does not make are not among them and keep their recorded lengths.
std::vector<Recorder::Record> Recorder::records() {
    std::vector<Record> all = {{metrics_file.file(), &metrics_, false}};
    for (auto& [path, table] : tables_) all.push_back({path, &table.file, true});
    return all;
}

void Recorder::note_lengths() {
    if (!session_.writes()) return;
    for (const Record& r : records()) session_.state.file_bytes[r.name] = r.file->bytes();
}

void Recorder::sync() {
    for (const Record& r : records()) r.file->sync();
}

std::map<std::string, int64_t> Recorder::evaluation_lengths() {
    std::map<std::string, int64_t> lengths;
    for (const Record& r : records()) {
        if (!r.evaluations) continue;
        r.file->sync();
        lengths[r.name] = r.file->bytes();
    }
    return lengths;
}

void Recorder::append(const std::string& record, const std::vector<std::string>& lines) {
    Table& table = tables_.at(record);
    for (const std::string& line : lines) table.file.append(io::cells_at(line, table.columns));
}

Progress Recorder::progress(const StepOutcome& outcome, const Stage& stage) const {
    const TrainState& state = session_.state;
    const Schedule& schedule = session_.schedule;
    const double rate = busy_.seconds > 0 ? busy_.flops / busy_.seconds : 0;  // FLOP/s
    // Of the devices of all ranks together, as the FLOPs are.
    const double datasheet = session_.ops.traits().datasheet_flops * session_.ranks;
    const double peak = session_.peak_flops * session_.ranks;
    Progress p;
    p.step = state.step;
    p.total_steps = schedule.steps();
    p.context = stage.context;
    p.loss = outcome.loss;
    p.gradient_norm = outcome.gradient_norm;
    p.index_loss = outcome.index_loss;
    p.lr = outcome.lr;
    p.tokens_per_second = busy_.seconds > 0 ? static_cast<double>(busy_tokens_) / busy_.seconds : 0;
    p.mfu = datasheet > 0 ? rate / datasheet : 0;
    p.peak_fraction = peak > 0 ? rate / peak : 0;
    p.memory_bytes = resident_bytes();
    p.seconds_left = rate > 0 ? schedule.seconds_left(state.step, rate, session_.spent) : 0;
    p.skipped = state.skipped + state.spikes_skipped;
    if (schedule.stages().size() > 1)
        p.stage = fmt::format("stage {}/{}", schedule.number_of(stage), schedule.stages().size());
    return p;
}

void Recorder::step(const StepOutcome& outcome, double seconds) {
    const int64_t done = session_.state.step;
    const Stage& stage = session_.schedule.stage_of(done - 1);
    busy_.seconds += seconds;
    busy_.flops += session_.schedule.step_flops(stage);
    busy_tokens_ += stage.tokens_per_step;
    const Progress p = progress(outcome, stage);
    if (!session_.schedule.last(done) && done % session_.experiment.run.log_every != 0) {
        session_.console.status(progress_bar(p));
        return;
    }
    if (session_.writes()) {
        session_.console.line(progress_line(p));
        write_metrics(outcome, stage);
        write_timing(p);
        events_.train_step(done, outcome, p.tokens_per_second);
    }
    busy_ = {};
    busy_tokens_ = 0;
}

void Recorder::write_metrics(const StepOutcome& outcome, const Stage& stage) {
    const TrainState& state = session_.state;
    const Experiment& e = session_.experiment;
    MetricsRow row{.step = state.step,
                   .tokens = state.tokens,
                   .context = stage.context,
                   .loss = outcome.loss,
                   .grad_norm = outcome.finite ? outcome.gradient_norm : NAN,
                   .lr = outcome.lr,
                   .skipped = state.skipped};
    const double bytes_per_token = session_.train_stream.bytes_per_token();
    if (bytes_per_token > 0 && std::isfinite(outcome.loss) && batch_source_type(e.data).text)
        row.bits_per_byte = outcome.loss / std::numbers::ln2 / bytes_per_token;
    if (state.spikes > 0) {
        row.spikes = state.spikes;
        row.spikes_skipped = state.spikes_skipped;
    }
    if (e.optimizer.qk_clip.limit > 0) row.max_score = outcome.largest_score;
    row.index_loss = outcome.index_loss;
    row.layer_grad_norms = outcome.layer_gradient_norms;
    metrics_.append(metrics_file.line(row));
}

void Recorder::write_timing(const Progress& p) {
    TimingRow row{.step = p.step,
                  .time = fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(std::time(nullptr))),
                  .seconds = running_.seconds(),
                  .evaluation_seconds = session_.spent.evaluating,
                  .saving_seconds = session_.spent.saving,
                  .tokens_per_second = p.tokens_per_second,
                  .flops_per_second = busy_.seconds > 0 ? busy_.flops / busy_.seconds : 0,
                  .peak_fraction = p.peak_fraction,
                  .mfu = p.mfu > 0 ? p.mfu : NAN,  // NaN: no datasheet rate is known
                  .memory_bytes = p.memory_bytes};
    if (session_.ranks > 1) {
        row.ranks = session_.ranks;
        row.bytes_sent = session_.comm->bytes_sent();
    }
    timing_.append(timing_file.line(row));
}

}  // namespace longreach::train
