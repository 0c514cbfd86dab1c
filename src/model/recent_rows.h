// What layers keep of sequences that are read in several passes: every row, the rows that a window reaches, or the last
// rows of each sequence for operations that mix neighbouring positions.
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
    void plan(Arena& arena, const std::string& name, int64_t width, const Reach& reach,
              const Generation& size);
    // Rows kept before those of the pass.
    int64_t before(const StepContext& run) const { return std::min(run.position(), most_); }
    // Adds the rows [T, W] of a pass; returns [before + T, W].
    Tensor add(StepContext& run, const Tensor& rows) const;

  private:
    Tensor rows_;
    int64_t most_ = 0;
};

}  // namespace longreach::model
