#include "eval/lengths.h"

#include <algorithm>
#include <array>
#include <bit>
#include <chrono>
#include <cmath>
#include <limits>

#include "base/hash.h"
#include "base/rng.h"
#include "base/units.h"
#include "eval/partial_sums.h"
#include "eval/selection.h"

namespace longreach::eval {

namespace {

// A sequence of the stream and the part of it that is scored. The target of a position is the next token.
struct Window {
    uint64_t sequence_begin;  // position in the stream
    int64_t scored_from;      // first scored position, relative to the sequence
    size_t first_slot;        // index of its first scored token among all scored tokens
};

// The sequences that score the selection at one length.
std::vector<Window> windows_of(const Selection& s, const EvalRequest& request, int64_t length) {
    std::vector<Window> out;
    for (size_t a = 0; a < s.anchors.size(); ++a) {
        const size_t slot = a * static_cast<size_t>(s.scored);
        if (request.align == EvalAlign::suffix) {
            out.push_back({s.anchors[a] - static_cast<uint64_t>(length), length - s.scored, slot});
            continue;
        }
        for (int64_t begin = 0; begin < s.scored; begin += length)
            out.push_back(
                {s.anchors[a] + static_cast<uint64_t>(begin), 0, slot + static_cast<size_t>(begin)});
    }
    return out;
}

size_t bucket_of(int64_t context) {
    return static_cast<size_t>(std::bit_width(static_cast<uint64_t>(context)) - 1);
}

void add_to(std::vector<LossSum>& buckets, size_t k, double loss) {
    if (buckets.size() <= k) buckets.resize(k + 1);
    buckets[k].add(loss);
}

// The model's result for a scored token. Ranks send it as three numbers.
struct TokenFinding {
    double loss = 0;
    double hit = 0;      // 1: the token is the model's most likely one
    double visible = 0;  // tokens of its document that the prediction can see

    void append_to(std::vector<double>& numbers) const {
        numbers.insert(numbers.end(), {loss, hit, visible});
    }
    // Removes the first finding from `numbers`.
    static TokenFinding take(std::span<const double>& numbers) {
        check(numbers.size() >= 3, "a batch with fewer tokens than were scored");
        const TokenFinding first{numbers[0], numbers[1], numbers[2]};
        numbers = numbers.subspan(3);
        return first;
    }
};

// The contents of a batch and the model's results for it.
struct HostBatch {
    std::vector<int32_t> tokens, targets, starts, best;  // [sequences, length]
    std::vector<float> losses;

    void fill(const data::TokenStream& stream, const Selection& selection, std::span<const Window> windows,
              int64_t length) {
        const size_t l = static_cast<size_t>(length), n = windows.size() * l;
        tokens.resize(n);
        targets.assign(n, -1);
        starts.assign(n, 0);  // if documents are unknown, each sequence is one
        std::vector<int32_t> ids(l + 1);
        for (size_t b = 0; b < windows.size(); ++b) {
            const Window& w = windows[b];
            stream.read(w.sequence_begin, length + 1, ids.data());
            if (stream.knows_documents())
                stream.document_starts(w.sequence_begin, length, ids.data(), starts.data() + b * l);
            std::copy(ids.begin(), ids.end() - 1, tokens.begin() + static_cast<std::ptrdiff_t>(b * l));
            for (size_t i = static_cast<size_t>(w.scored_from); i < l; ++i)
                if (selection.document[w.first_slot + i - static_cast<size_t>(w.scored_from)] >= 0)
                    targets[b * l + i] = ids[i + 1];
        }
    }
    // Of every scored token.
    std::vector<double> findings(int64_t length) const {
        std::vector<double> out;
        for (size_t i = 0; i < targets.size(); ++i) {
            if (targets[i] < 0) continue;
            const int64_t at = static_cast<int64_t>(i) % length;
            TokenFinding{losses[i], best[i] == targets[i] ? 1.0 : 0.0,
                         static_cast<double>(at - starts[i] + 1)}
                .append_to(out);
        }
        return out;
    }
};

// Of a sequence that is read in pieces. Attention takes longer with each piece, by about the same time.
class TimeLeft {
  public:
    TimeLeft(int64_t piece, int64_t total) : piece_(piece), total_(total) {}
    // In seconds, when `read` tokens, a multiple of the piece, have been read.
    double after(int64_t read) {
        const auto now = std::chrono::steady_clock::now();
        const double last = std::chrono::duration<double>(now - before_).count();
        before_ = now;
        if (read == piece_) first_ = last;
        const double done = static_cast<double>(read / piece_);
        const double to_do = static_cast<double>(total_ - read) / static_cast<double>(piece_);
        const double growth = done > 1 ? std::max(0.0, (last - first_) / (done - 1)) : 0;
        return to_do * last + growth * to_do * (to_do + 1) / 2;
    }

  private:
    int64_t piece_, total_;
    std::chrono::steady_clock::time_point before_ = std::chrono::steady_clock::now();
    double first_ = 0;
};

// What a pass needs besides its batch.
struct Scoring {
    Ops& ops;
    model::Transformer& model;
    const model::FlatParams& weights;
    const model::DeviceBatch& batch;
    const EvalRequest& request;
    std::function<void(const std::string&)> progress;  // of a sequence that is read in pieces

    // Fills the losses and most likely tokens of `host`. Returns false if it was asked to stop before the end.
    bool score(HostBatch& host, int64_t length) const {
        const int64_t total = static_cast<int64_t>(host.tokens.size());
        host.losses.resize(host.tokens.size());
        host.best.resize(host.tokens.size());
        if (request.piece == 0 || length <= request.piece) {
            pass(host, 0, total,
                 batch.upload(ops, length, host.tokens, host.targets,
                              request.document_mask ? host.starts : std::vector<int32_t>()),
                 nullptr);
            return true;
        }
        check(total == length, "{} tokens in pieces of a sequence of {}", total, length);
        TimeLeft left(request.piece, total);
        std::vector<int32_t> starts;
        for (int64_t at = 0; at < total; at += request.piece) {
            if (at > 0 && request.pause != nullptr && request.pause->asked && request.pause->asked())
                return false;
            if (at > 0)
                progress(
                    fmt::format("{} of {} tokens, about {} left", at, total, human_duration(left.after(at))));
            const int64_t count = std::min(request.piece, total - at);
            starts.assign(static_cast<size_t>(count), static_cast<int32_t>(-at));
            for (int64_t i = 0; i < count && request.document_mask; ++i)
                starts[static_cast<size_t>(i)] += host.starts[static_cast<size_t>(at + i)];
            const auto part = [&](const std::vector<int32_t>& all) {
                return std::span(all).subspan(static_cast<size_t>(at), static_cast<size_t>(count));
            };
            const model::Generation place{length, at, request.piece};
            pass(host, at, count, batch.upload(ops, count, part(host.tokens), part(host.targets), starts),
                 &place);
        }
        return true;
    }

  private:
    // Of tokens [at, at + count) of the host's.
    void pass(HostBatch& host, int64_t at, int64_t count, const model::Batch& uploaded,
              const model::Generation* place) const {
        model.forward(ops, weights, uploaded, request.observer, place);
        ops.download(host.losses.data() + at, model.evaluation_losses(count));
        ops.download(host.best.data() + at, model.evaluation_best(count));
    }
};

// In place of the findings of a rank that stopped within a sequence; findings are three numbers each.
std::vector<double> unfinished() {
    return {0};
}

// The findings of all batches of one length.
class Sums {
  public:
    Sums(const Selection& selection, const EvalRequest& request, int64_t length)
        : selection_(selection), seed_(request.seed), documents_(static_cast<size_t>(selection.documents)) {
        result_.length = length;
        if (request.keep_token_losses)
            result_.token_losses.assign(selection.document.size(), std::numeric_limits<float>::quiet_NaN());
    }
    // Returns the numbers after the findings.
    std::span<const double> add(std::span<const Window> windows, std::span<const double> numbers) {
        for (const Window& w : windows)
            for (int64_t i = w.scored_from; i < result_.length; ++i) {
                const size_t slot = w.first_slot + static_cast<size_t>(i - w.scored_from);
                if (selection_.document[slot] < 0) continue;
                const TokenFinding token = TokenFinding::take(numbers);
                result_.loss.add(token.loss);
                result_.hits.add(token.hit);
                DocumentSums& document = documents_[static_cast<size_t>(selection_.document[slot])];
                document.loss.add(token.loss);
                document.hits += token.hit;
                add_to(result_.by_sequence, bucket_of(i + 1), token.loss);
                add_to(result_.by_document, bucket_of(static_cast<int64_t>(token.visible)), token.loss);
                if (!result_.token_losses.empty())
                    result_.token_losses[slot] = static_cast<float>(token.loss);
            }
        return numbers;
    }
    PartialLength so_far() const {
        return {result_.loss, result_.hits, result_.by_sequence, result_.by_document, documents_};
    }
    void go_on_from(const PartialLength& sums) {
        result_.loss = sums.loss;
        result_.hits = sums.hits;
        result_.by_sequence = sums.by_sequence;
        result_.by_document = sums.by_document;
        documents_ = sums.documents;
    }
    LengthResult result() {
        result_.fingerprint = selection_.scope.fingerprint;
        result_.documents = selection_.scope.documents;
        std::erase_if(documents_, [](const DocumentSums& d) { return d.loss.count == 0; });
        if (result_.documents > 0) {
            const MeanErrors errors = bootstrap_errors(documents_, seed_);
            result_.standard_error = errors.loss;
            result_.top1_error = errors.top1;
        }
        return std::move(result_);
    }

  private:
    const Selection& selection_;
    uint64_t seed_;
    LengthResult result_;
    std::vector<DocumentSums> documents_;
};

// Of the means of resampled documents.
struct Spread {
    double sum = 0, squares = 0, count = 0;
    void add(double x) {
        sum += x;
        squares += x * x;
        ++count;
    }
    double deviation() const { return std::sqrt(std::max(0.0, (squares - sum * sum / count) / (count - 1))); }
};

// A hash of everything that sums depend on.
uint64_t context_of(const Selection& s, const EvalRequest& request) {
    Xxh64 hash;
    const auto add = [&](const auto& values) {
        hash.update(values.data(), values.size() * sizeof values[0]);
    };
    add(s.anchors);
    add(s.document);
    add(request.lengths);
    add(std::array<uint64_t, 5>{
        request.pause->context ? request.pause->context() : 0, static_cast<uint64_t>(request.batch_tokens),
        static_cast<uint64_t>(request.align), static_cast<uint64_t>(request.document_mask),
        static_cast<uint64_t>(request.piece)});
    return hash.digest();
}

// The state of a stopped evaluation; used on rank 0 only.
PartialSums sums_left(const Selection& s, const EvalRequest& request) {
    const Pause& pause = *request.pause;
    if (pause.sums.empty()) return {};
    const auto sums = PartialSums::read(pause.sums, context_of(s, request), static_cast<size_t>(s.documents));
    if (!sums || sums->lengths.size() > request.lengths.size()) return {};
    return *sums;
}

}  // namespace

int64_t piece_of(const EvalConfig& config, const Ops& ops) {
    // Also of a GPU that is planned for: its chunks of the loss head are larger.
    const bool gpu = ops.traits().chunk_rows != DeviceTraits().chunk_rows;
    require(
        !gpu || config.piece == 0 || config.lengths.back() <= config.piece, ExitCode::usage,
        "eval.piece: a GPU reads whole sequences; leave it at 0, or set it to the longest of eval.lengths");
    if (gpu || config.rope.top_k > 0) return 0;
    return config.piece > 0 ? config.piece : 16384;
}

EvalRequest make_request(const EvalConfig& config, int64_t tokens, int64_t batch_tokens, bool document_mask) {
    EvalRequest r;
    r.lengths = config.lengths;
    r.tokens = tokens;
    r.batch_tokens = batch_tokens;
    r.pick = config.pick;
    r.align = config.align;
    r.suffix_tokens = config.suffix_tokens;
    r.min_document = config.min_document;
    r.document_mask = document_mask;
    return r;
}

ScoredTokens LengthEvaluator::check_request(const data::TokenStream& stream, const EvalRequest& request) {
    return select(stream, request).scope;
}

void LengthEvaluator::plan(model::Arena& arena, int64_t batch_tokens, bool documents, int rank, int ranks) {
    arena.group("batch, evaluation");
    batch_.plan(arena, batch_tokens, {.documents = documents});
    collector_.plan(arena, rank, ranks);
}

std::vector<LengthResult> LengthEvaluator::run(Ops& ops, ranks::Comm& comm, model::Transformer& model,
                                               const model::FlatParams& weights,
                                               const data::TokenStream& stream,
                                               const EvalRequest& request) const {
    const Selection selection = select(stream, request);
    const size_t rank = static_cast<size_t>(comm.rank()), ranks = static_cast<size_t>(comm.ranks());
    std::vector<LengthResult> results;
    HostBatch host;
    Pause* const pause = request.pause;
    const bool resumable = pause != nullptr && pause->resumable;
    PartialSums left, all;  // of an earlier call; of this one
    std::vector<double> place(2);
    if (resumable) {
        check(!request.keep_token_losses && !request.observer, "an evaluation of more than sums is resumed");
        if (rank == 0) left = sums_left(selection, request);
        place = {static_cast<double>(left.lengths.size()), static_cast<double>(left.next)};
        collector_.share(ops, comm, place);
    }
    const size_t lengths_left = static_cast<size_t>(place[0]);  // the last of them may be incomplete
    for (size_t l = 0; l < request.lengths.size(); ++l) {
        const int64_t length = request.lengths[l];
        Sums sums(selection, request, length);
        if (l < left.lengths.size()) sums.go_on_from(left.lengths[l]);
        if (l + 1 < lengths_left) {
            if (rank == 0) all.lengths.push_back(sums.so_far());
            if (rank == 0) results.push_back(sums.result());
            continue;
        }
        model.use_length(ops, length);
        const std::vector<Window> windows = windows_of(selection, request, length);
        const bool in_pieces = request.piece > 0 && length > request.piece;
        const size_t per_batch =
            in_pieces ? 1 : static_cast<size_t>(std::max<int64_t>(1, request.batch_tokens / length));
        const auto batch_at = [&](size_t first) {
            return std::span(windows).subspan(first, std::min(per_batch, windows.size() - first));
        };
        const size_t begin = l + 1 == lengths_left ? static_cast<size_t>(place[1]) : 0;
        for (size_t round = begin; round < windows.size(); round += ranks * per_batch) {
            std::vector<double> found;
            const auto tell = [&](size_t sequences, const std::string& more) {
                if (request.progress && rank == 0)
                    request.progress(fmt::format("evaluating {}: {}/{} sequences{}", length, sequences,
                                                 windows.size(), more));
            };
            bool stop = false;
            if (const size_t first = round + rank * per_batch; first < windows.size()) {
                host.fill(stream, selection, batch_at(first), length);
                if (request.observer) request.observer->begin(static_cast<int64_t>(first));
                const Scoring scoring{ops,     model,
                                      weights, batch_,
                                      request, [&](const std::string& part) {
                                          tell(round, ", " + part); }};
                stop = !scoring.score(host, length);
                found = stop ? unfinished() : host.findings(length);
                if (request.observer) {
                    const std::vector<double> seen = request.observer->take();
                    found.insert(found.end(), seen.begin(), seen.end());
                }
            }
            size_t next = round;
            stop = stop || (pause != nullptr && pause->asked && pause->asked());
            const auto lists = collector_.collect(ops, comm, std::move(found), stop);
            // A round in which a rank stopped is made again.
            std::vector<double> left_out{
                static_cast<double>(std::count(lists.begin(), lists.end(), unfinished()))};
            if (stop) collector_.share(ops, comm, left_out);
            const bool finished = left_out[0] == 0;
            for (const std::vector<double>& of_rank : lists) {
                if (next >= windows.size() || !finished) break;
                const std::span<const double> rest = sums.add(batch_at(next), of_rank);
                if (request.observer) request.observer->add(length, rest);
                next += per_batch;
            }
            tell(std::min(next, windows.size()), "");
            const size_t done = finished ? std::min(round + ranks * per_batch, windows.size()) : round;
            if (!stop || (done == windows.size() && l + 1 == request.lengths.size())) continue;
            pause->stopped = true;
            if (resumable && rank == 0) {
                all.lengths.push_back(sums.so_far());
                all.next = done;
                all.context = context_of(selection, request);
                pause->sums = all.write();
            }
            model.use_length(ops, 0);
            return {};
        }
        if (resumable && rank == 0) all.lengths.push_back(sums.so_far());
        if (rank == 0) results.push_back(sums.result());
    }
    model.use_length(ops, 0);
    return results;
}

MeanErrors bootstrap_errors(const std::vector<DocumentSums>& documents, uint64_t seed) {
    const uint64_t n = documents.size();
    if (n < 2) return {};
    // At most about 2e7 draws, a second of work, for any number of documents.
    const uint64_t resamples = std::clamp<uint64_t>(20000000 / n, 50, 1000);
    Spread loss, top1;
    for (uint64_t r = 0; r < resamples; ++r) {
        const Rng rng(seed, Purpose::bootstrap, static_cast<uint32_t>(r));
        DocumentSums total;
        for (uint64_t i = 0; i < n; ++i) {
            const DocumentSums& d = documents[rng.below(i, n)];
            total.loss.sum += d.loss.sum;
            total.loss.count += d.loss.count;
            total.hits += d.hits;
        }
        loss.add(total.loss.mean());
        top1.add(LossSum{total.hits, total.loss.count}.mean());
    }
    return {loss.deviation(), top1.deviation()};
}

}  // namespace longreach::eval
