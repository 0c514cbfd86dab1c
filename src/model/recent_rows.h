// What layers keep of the sequences of a generation: every row, or the last rows of each sequence for operations
// that mix neighbouring positions.
#pragma once

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

}  // namespace longreach::model
