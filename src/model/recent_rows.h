// The last rows of every sequence of a generation, for operations that mix neighbouring positions.
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

// recent [B count, W]: the last `count` rows of every sequence, the newest last, after a pass of a
// generation has added its rows [B T, W]. Rows before the beginning are zeros.
void keep_recent(StepContext& run, const Tensor& recent, const Tensor& rows, int64_t count);

}  // namespace longreach::model
