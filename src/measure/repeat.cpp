#include "measure/repeat.h"

#include <algorithm>
#include <cmath>

#include "base/hash.h"
#include "eval/lengths.h"

namespace longreach::measure {

void RepeatEvaluator::plan(model::Arena& arena, int64_t batch_tokens, bool document_mask) {
    arena.group("batch, repeated text");
    batch_.plan(arena, batch_tokens, {.documents = document_mask});
}

std::vector<TaskRow> RepeatEvaluator::run(Ops& ops, model::Transformer& model,
                                          const model::FlatParams& weights, const data::TokenStream& stream,
                                          const RepeatRequest& request) const {
    const int64_t longest = request.lengths.back();
    require(longest > request.period, ExitCode::usage,
            "no evaluation length is above the {} tokens of a text, so nothing would be repeated",
            request.period);
    require(stream.tokens() > static_cast<uint64_t>(longest), ExitCode::data,
            "the validation stream has {} tokens; a sequence of {} needs one more than its length",
            stream.tokens(), longest);
    const int64_t cells = static_cast<int64_t>(stream.tokens() - 1) / longest;
    const int64_t sequences = std::clamp<int64_t>(request.tokens / longest, 1, cells);
    const std::vector<uint64_t> picked =
        eval::pick_cells(request.pick, static_cast<uint64_t>(sequences), static_cast<uint64_t>(cells));
    std::vector<TaskRow> rows;
    std::vector<int32_t> ids, tokens, targets, document, best;
    std::vector<float> losses;
    for (const bool repeated : {true, false})
        for (const int64_t length : request.lengths) {
            model.use_length(ops, length);
            const size_t l = static_cast<size_t>(length);
            const int64_t per_batch = std::max<int64_t>(1, request.batch_tokens / length);
            double hits = 0, squares = 0, loss = 0;  // hits, and their square, of sequences
            Xxh64 fingerprint;
            for (int64_t first = 0; first < sequences; first += per_batch) {
                const int64_t count = std::min(per_batch, sequences - first);
                const int64_t n = count * length;
                tokens.resize(static_cast<size_t>(n));
                targets.resize(tokens.size());
                document.assign(tokens.size(), 0);
                ids.resize(l + 1);
                for (int64_t b = 0; b < count; ++b) {
                    const size_t row = static_cast<size_t>(b) * l;
                    const uint64_t begin =
                        picked[static_cast<size_t>(first + b)] * static_cast<uint64_t>(longest);
                    stream.read(begin, length + 1, ids.data());
                    if (repeated) {
                        for (size_t i = static_cast<size_t>(request.period); i <= l; ++i)
                            ids[i] = ids[i - static_cast<size_t>(request.period)];
                    } else if (request.document_mask && stream.knows_documents()) {
                        stream.document_starts(begin, length, ids.data(), document.data() + row);
                    }
                    fingerprint.update(ids.data(), (l + 1) * sizeof(int32_t));
                    std::copy_n(ids.begin(), l, tokens.begin() + static_cast<std::ptrdiff_t>(row));
                    std::copy_n(ids.begin() + 1, l, targets.begin() + static_cast<std::ptrdiff_t>(row));
                }
                const model::Batch batch = batch_.upload(
                    ops, length, tokens, targets, request.document_mask ? document : std::vector<int32_t>());
                model.forward(ops, weights, batch);
                losses.resize(tokens.size());
                best.resize(tokens.size());
                ops.download(losses.data(), model.evaluation_losses(n));
                ops.download(best.data(), model.evaluation_best(n));
                for (size_t row = 0; row < tokens.size(); row += l) {
                    double right = 0;
                    for (size_t i = row; i < row + l; ++i) {
                        right += best[i] == targets[i] ? 1 : 0;
                        loss += losses[i];
                    }
                    right /= static_cast<double>(l);
                    hits += right;
                    squares += right * right;
                }
                if (request.progress)
                    request.progress(fmt::format("{} {}: {}/{} sequences",
                                                 repeated ? "repeated text" : "unrepeated text", length,
                                                 first + count, sequences));
            }
            const double k = static_cast<double>(sequences);
            TaskRow row;
            row.task = repeated ? "repeat" : "non_repeat";
            row.length = length;
            row.samples = sequences;
            row.accuracy = hits / k;
            if (sequences > 1)
                row.accuracy_error = std::sqrt(std::max(0.0, squares - hits * hits / k) / (k - 1) / k);
            row.loss = loss / (k * static_cast<double>(length));
            row.fingerprint = format_hash64(fingerprint.digest());
            rows.push_back(row);
        }
    model.use_length(ops, 0);
    return rows;
}

}  // namespace longreach::measure
