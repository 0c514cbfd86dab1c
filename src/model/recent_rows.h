// What layers keep of sequences that are read in several passes: every row, the rows that a window reaches, the last rows
// of each sequence for operations that mix neighbouring positions, or a state.
#pragma once

#include "model/arena.h"
#include "model/step_context.h"

namespace longreach::model {

// Rows offset, offset + step, ... of a matrix.
inline Tensor every(const Tensor& rows, int64_t step, int64_t offset) {
    Tensor t = rows.row_range(offset, rows.rows() - offset);
    t.shape[0] = (t.shape[0] + step - 1) / step;
    t.row_stride *= step;
    return t;
}

// The memory of what a generation keeps of its texts, or an evaluation in pieces of its one sequence. A text can be
// copied: nothing that a layer plans here refers to other texts.
class KeptTexts {
  public:
    KeptTexts() = default;
    KeptTexts(Arena& arena, int64_t texts, const Generation& size)
        : arena_(&arena), texts_(texts), size_(size) {}

    // [B R, W]: R rows of every text.
    Tensor rows(const std::string& name, DType dtype, int64_t of_text, int64_t width);
    // [H, B R]: R columns of every text. The passes of fewer texts use the first ones.
    Tensor columns(const std::string& name, DType dtype, int64_t heads, int64_t of_text);
    // Keys and values by position, which attention of one query reads.
    Tensor positions(const std::string& name, int64_t width) {
        return rows(name, arena_->traits().cached, size_.room, width);
    }
    // The last rows of every text.
    Tensor recent(const std::string& name, int64_t count, int64_t width) {
        return rows(name, arena_->traits().activations, count, width);
    }
    // Text `to` becomes a copy of text `from`.
    void copy(Ops& ops, int64_t to, int64_t from) const;

    Arena& arena() const { return *arena_; }  // for what lives only inside a pass
    int64_t texts() const { return texts_; }
    const Generation& size() const { return size_; }

  private:
    Arena* arena_ = nullptr;
    int64_t texts_ = 0;
    Generation size_;
    std::vector<Tensor> rows_, columns_;
};

// cache [B R, W]: gets the rows [B T, W] of a pass of a generation, at their positions.
void keep_rows(StepContext& run, const Tensor& cache, const Tensor& rows);

// recent [B count, W]: the last `count` rows of every sequence, the newest last, after a pass of a
// generation has added its rows [B T, W]. Rows before the beginning are zeros.
void keep_recent(StepContext& run, const Tensor& recent, const Tensor& rows, int64_t count);

// The rows of a pass in buffer [count - 1 + N, W]. In pieces the last rows of the piece before stand in front of them.
Tensor behind_recent(StepContext& run, const Tensor& buffer, const Tensor& recent, int64_t count);

// Rows of the sequence of an evaluation in pieces: the earlier ones that its queries reach, then its own.
class PieceRows {
  public:
    void plan(KeptTexts& kept, const std::string& name, int64_t width, const Reach& reach);
    // Rows kept before those of the pass.
    int64_t before(const StepContext& run) const { return std::min(run.position(), most_); }
    // Adds the rows [T, W] of a pass; returns [before + T, W].
    Tensor add(StepContext& run, const Tensor& rows) const;

  private:
    Tensor rows_;
    int64_t most_ = 0;
};

}  // namespace longreach::model
