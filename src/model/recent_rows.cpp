#include "model/recent_rows.h"

#include <algorithm>

namespace longreach::model {

Tensor KeptTexts::rows(const std::string& name, DType dtype, int64_t of_text, int64_t width) {
    return rows_.emplace_back(arena_->reserve(name, dtype, {texts_ * of_text, width}));
}

Tensor KeptTexts::columns(const std::string& name, DType dtype, int64_t heads, int64_t of_text) {
    return columns_.emplace_back(arena_->reserve(name, dtype, {heads, texts_ * of_text}));
}

void KeptTexts::copy(Ops& ops, int64_t to, int64_t from) const {
    for (const Tensor& t : rows_) {
        const int64_t count = t.rows() / texts_;
        ops.copy(t.row_range(to * count, count), t.row_range(from * count, count));
    }
    for (const Tensor& t : columns_) {
        const int64_t count = t.cols() / texts_;
        ops.copy(t.col_range(to * count, count), t.col_range(from * count, count));
    }
}

void keep_rows(StepContext& run, const Tensor& cache, const Tensor& rows) {
    const int64_t length = run.batch.length;
    for (int64_t b = 0; b < run.batch.sequences; ++b)
        run.ops.copy(cache.row_range(b * run.generation->room + run.position(), length),
                     rows.row_range(b * length, length));
}

void keep_recent(StepContext& run, const Tensor& recent, const Tensor& rows, int64_t count) {
    const int64_t length = run.batch.length, added = std::min(count, length);
    const Tensor kept = recent.first_rows(run.batch.sequences * count);
    if (run.decoding())
        for (int64_t m = 0; m + added < count; ++m)
            run.ops.copy(every(kept, count, m), every(kept, count, m + added));
    else
        run.ops.zero(kept);
    for (int64_t m = 0; m < added; ++m)
        run.ops.copy(every(kept, count, count - added + m), every(rows, length, length - added + m));
}

Tensor behind_recent(StepContext& run, const Tensor& buffer, const Tensor& recent, int64_t count) {
    const int64_t n = run.batch.count();
    if (!run.in_pieces() || count == 1) return buffer.first_rows(n);
    run.ops.copy(buffer.first_rows(count - 1), recent.row_range(1, count - 1));
    return buffer.row_range(count - 1, n);
}

void PieceRows::plan(KeptTexts& kept, const std::string& name, int64_t width, const Reach& reach) {
    const Generation& size = kept.size();
    most_ = size.room;
    for (const int64_t limit : {reach.window, reach.chunk})
        if (limit > 0) most_ = std::min(most_, limit - 1);
    // Kernels may begin at a multiple of a few keys.
    most_ = (most_ + 63) / 64 * 64;
    rows_ = kept.arena().activation(name, {std::min(most_ + size.piece, size.room), width});
}

Tensor PieceRows::add(StepContext& run, const Tensor& rows) const {
    const int64_t kept = before(run), piece = run.generation->piece, length = run.batch.length;
    if (run.position() > 0) {
        // By how many rows all move forward: the rows of the piece before, past those that are kept.
        const int64_t step = std::min(run.position() - piece, most_) + piece - kept;
        for (int64_t at = 0; at < kept && step > 0; at += step) {
            const int64_t count = std::min(step, kept - at);
            run.ops.copy(rows_.row_range(at, count), rows_.row_range(at + step, count));
        }
    }
    run.ops.copy(rows_.row_range(kept, length), rows);
    return rows_.first_rows(kept + length);
}

}  // namespace longreach::model
