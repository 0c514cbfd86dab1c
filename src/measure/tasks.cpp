#include "measure/tasks.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>

#include "base/error.h"
#include "base/hash.h"
#include "tasks/task_batches.h"

namespace longreach::measure {

namespace {

// Mean and standard error of the mean.
struct Moments {
    double sum = 0, squares = 0;
    int64_t count = 0;
    void add(double x) {
        sum += x;
        squares += x * x;
        ++count;
    }
    double mean() const { return sum / static_cast<double>(count); }
    std::optional<double> error() const {
        if (count < 2) return std::nullopt;
        const double n = static_cast<double>(count);
        return std::sqrt(std::max(0.0, (squares - sum * sum / n) / (n - 1) / n));
    }
};

// The model's result for a sequence: a sample with its answer or with its decoy. Ranks send it as five numbers.
struct SequenceFinding {
    double loss = 0, accuracy = 0, answer_tokens = 0;
    uint64_t hash = 0;  // of tokens and targets; f64 holds each half of it exactly

    void append_to(std::vector<double>& numbers) const {
        numbers.insert(numbers.end(), {loss, accuracy, answer_tokens, static_cast<double>(hash >> 32),
                                       static_cast<double>(hash & 0xffffffff)});
    }
    static std::vector<SequenceFinding> list(std::span<const double> numbers) {
        std::vector<SequenceFinding> all;
        for (; numbers.size() >= 5; numbers = numbers.subspan(5))
            all.push_back({numbers[0], numbers[1], numbers[2],
                           static_cast<uint64_t>(numbers[3]) << 32 | static_cast<uint64_t>(numbers[4])});
        return all;
    }
};

// The model's results for one sample.
struct Score {
    double accuracy = 0;
    double loss = 0, decoy_loss = 0;  // nats, sums over the answer's and the decoy's tokens
    double answer_tokens = 0;
    std::array<uint64_t, 2> hash{};  // of the sequences with the answer and with the decoy
};

uint64_t hash_of(std::span<const int32_t> tokens, std::span<const int32_t> targets) {
    Xxh64 hash;
    hash.update(tokens.data(), tokens.size_bytes());
    hash.update(targets.data(), targets.size_bytes());
    return hash.digest();
}

double sum(std::span<const float> losses) {
    double total = 0;
    for (const float loss : losses) total += loss;
    return total;
}

TaskRow row_of(const std::vector<Score>& scores, bool decoys) {
    Moments accuracy, margin, loss;
    Xxh64 fingerprint;
    for (const Score& s : scores) {
        accuracy.add(s.accuracy);
        margin.add(s.decoy_loss - s.loss);
        loss.add(s.loss / s.answer_tokens);
        fingerprint.update(s.hash.data(), sizeof s.hash);
    }
    TaskRow row;
    row.samples = static_cast<int64_t>(scores.size());
    row.accuracy = accuracy.mean();
    row.accuracy_error = accuracy.error();
    if (decoys) {
        row.margin = margin.mean();
        row.margin_error = margin.error();
    }
    row.loss = loss.mean();
    row.fingerprint = format_hash64(fingerprint.digest());
    return row;
}

}  // namespace

double share_right(const tasks::Sample& sample, std::span<const int32_t> best) {
    const auto answer = sample.tokens.begin() + sample.answer_begin;
    int64_t begin = 0, right = 0;
    for (const int64_t end : sample.reference_ends) {
        right += std::equal(answer + begin, answer + end, best.begin() + begin);
        begin = end;
    }
    return static_cast<double>(right) / static_cast<double>(sample.reference_ends.size());
}

void TaskEvaluator::plan(model::Arena& arena, int64_t batch_tokens, bool document_mask, int rank, int ranks) {
    arena.group("batch, tasks");
    batch_.plan(arena, batch_tokens, {.documents = document_mask});
    collector_.plan(arena, rank, ranks);
}

std::vector<double> TaskEvaluator::run_batch(Ops& ops, model::Transformer& model,
                                             const model::FlatParams& weights,
                                             const tasks::SampleSource& source, int64_t length, double depth,
                                             size_t first, size_t count) const {
    const size_t l = static_cast<size_t>(length), n = count * l;
    const size_t per_sample = source.has_decoys() ? 2 : 1;
    std::vector<tasks::Sample> samples;
    std::vector<int32_t> tokens, targets(n), best(n);
    std::vector<float> losses(n);
    for (size_t b = 0; b < count; ++b) {
        const size_t sequence = first + b;
        tasks::Sample sample =
            source.make(length, tasks::first_evaluation_sample + sequence / per_sample, depth);
        if (sequence % per_sample == 1)
            std::copy(sample.decoy.begin(), sample.decoy.end(), sample.tokens.begin() + sample.answer_begin);
        tokens.insert(tokens.end(), sample.tokens.begin(), sample.tokens.end());
        tasks::answer_targets(sample, std::span(targets).subspan(b * l, l));
        samples.push_back(std::move(sample));
    }
    const int64_t total = static_cast<int64_t>(n);
    const std::vector<int32_t> doc_start(batch_.documents() ? n : 0, 0);
    model.forward(ops, weights, batch_.upload(ops, length, tokens, targets, doc_start));
    ops.download(losses.data(), model.evaluation_losses(total));
    ops.download(best.data(), model.evaluation_best(total));
    std::vector<double> found;
    for (size_t b = 0; b < count; ++b) {
        // A token's prediction is at the position before it.
        const size_t at = b * l + static_cast<size_t>(samples[b].answer_begin) - 1;
        const size_t answer = static_cast<size_t>(samples[b].answer_tokens());
        SequenceFinding sequence;
        sequence.loss = sum(std::span<const float>(losses).subspan(at, answer));
        sequence.accuracy = share_right(samples[b], std::span<const int32_t>(best).subspan(at, answer));
        sequence.answer_tokens = static_cast<double>(answer);
        sequence.hash = hash_of(std::span(tokens).subspan(b * l, l), std::span(targets).subspan(b * l, l));
        sequence.append_to(found);
    }
    return found;
}

std::optional<TaskRow> TaskEvaluator::run_one(Ops& ops, ranks::Comm& comm, model::Transformer& model,
                                              const model::FlatParams& weights,
                                              const tasks::SampleSource& source, const TaskRequest& request,
                                              int64_t length, double depth) const {
    const size_t rank = static_cast<size_t>(comm.rank()), ranks = static_cast<size_t>(comm.ranks());
    std::vector<Score> scores(static_cast<size_t>(source.samples(request.samples)));
    const size_t per_sample = source.has_decoys() ? 2 : 1, sequences = per_sample * scores.size();
    const size_t per_batch = static_cast<size_t>(std::max<int64_t>(1, request.batch_tokens / length));
    for (size_t round = 0; round < sequences; round += ranks * per_batch) {
        std::vector<double> found;
        if (const size_t first = round + rank * per_batch; first < sequences)
            found = run_batch(ops, model, weights, source, length, depth, first,
                              std::min(per_batch, sequences - first));
        size_t sequence = round;
        bool stop = request.pause != nullptr && request.pause->asked && request.pause->asked();
        for (const std::vector<double>& of_rank : collector_.collect(ops, comm, std::move(found), stop))
            for (const SequenceFinding& finding : SequenceFinding::list(of_rank)) {
                Score& score = scores.at(sequence / per_sample);
                score.hash[sequence % per_sample] = finding.hash;
                if (sequence++ % per_sample == 1) {
                    score.decoy_loss = finding.loss;
                } else {
                    score.loss = finding.loss;
                    score.accuracy = finding.accuracy;
                    score.answer_tokens = finding.answer_tokens;
                }
            }
        if (request.progress && rank == 0)
            request.progress(fmt::format("{} at {}: {}/{} samples", source.name(), length,
                                         sequence / per_sample, scores.size()));
        if (stop && round + ranks * per_batch < sequences) {
            request.pause->stopped = true;
            return std::nullopt;
        }
    }
    if (rank != 0) return std::nullopt;
    TaskRow row = row_of(scores, source.has_decoys());
    row.task = source.name();
    row.length = length;
    return row;
}

std::vector<TaskRow> TaskEvaluator::run(Ops& ops, ranks::Comm& comm, model::Transformer& model,
                                        const model::FlatParams& weights, const data::TokenStream& stream,
                                        const TaskRequest& request) const {
    check(request.samples >= 1 && !request.lengths.empty(), "tasks without samples or lengths");
    std::vector<tasks::TaskGenerator> generators;
    for (const data::TaskKind task : request.tasks)
        generators.emplace_back(task, request.config, model.config().vocab_size, request.seed, &stream);
    std::vector<const tasks::SampleSource*> sources;
    for (const tasks::TaskGenerator& generator : generators) sources.push_back(&generator);
    if (request.questions) sources.push_back(request.questions);
    for (const tasks::SampleSource* source : sources)
        for (const int64_t length : request.lengths) source->make(length, tasks::first_evaluation_sample, -1);
    std::vector<TaskRow> rows;
    for (const tasks::SampleSource* source : sources)
        for (const int64_t length : request.lengths) {
            model.use_length(ops, length);
            const auto run_at = [&](double depth) -> std::optional<TaskRow> {
                if (request.pause != nullptr && request.pause->stopped) return std::nullopt;
                return run_one(ops, comm, model, weights, *source, request, length, depth);
            };
            if (request.depths.empty() || !source->has_depth(length)) {
                if (const std::optional<TaskRow> row = run_at(-1)) rows.push_back(*row);
                continue;
            }
            for (const int64_t depth : request.depths)
                if (const std::optional<TaskRow> row = run_at(static_cast<double>(depth))) {
                    rows.push_back(*row);
                    rows.back().depth = static_cast<double>(depth);
                }
        }
    model.use_length(ops, 0);
    if (request.pause != nullptr && request.pause->stopped) rows.clear();
    return rows;
}

std::string depth_grid(const std::vector<TaskRow>& rows, const std::string& task) {
    std::vector<int64_t> lengths;
    std::map<double, std::map<int64_t, double>> grid;  // depth, length
    for (const TaskRow& r : rows) {
        if (r.task != task || !r.depth) continue;
        grid[*r.depth][r.length] = r.accuracy;
        if (std::find(lengths.begin(), lengths.end(), r.length) == lengths.end()) lengths.push_back(r.length);
    }
    if (grid.empty()) return "";
    std::string out = fmt::format("{:>18}", "depth \\ length");
    for (const int64_t length : lengths) out += fmt::format(" {:>8}", length);
    for (const auto& [depth, by_length] : grid) {
        out += fmt::format("\n{:>17}%", depth);
        for (const int64_t length : lengths) {
            const auto it = by_length.find(length);
            out += it == by_length.end() ? fmt::format(" {:>8}", "") : fmt::format(" {:>8.3f}", it->second);
        }
    }
    return out;
}

}  // namespace longreach::measure
