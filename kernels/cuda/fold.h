// The second half of sums over rows: a fixed number of blocks each leave a partial sum,
// added up in fixed order.
#pragma once

#include <cstdint>

#include "kernels/cuda/kernels.h"

namespace longreach::cuda {

// to[c] += sum over b of partials[b * stride + c], c < cols.
void fold_columns(float* to, const float* partials, int64_t blocks, int64_t stride, int64_t cols,
                  Stream stream);

// Sums of `count` doubles each: output i begins at partials + i * step.
struct Totals {
    const double* partials = nullptr;
    int64_t count = 0, step = 0;
    float* add_to = nullptr;  // add_to[i] += factor * exp(log_factor[i]) * sum
    double factor = 1.0;
    const float* log_factor = nullptr;  // null: not there
    double* set = nullptr;              // instead: set[i] = sum
};
void fold_totals(const Totals& totals, int64_t outputs, Stream stream);

}  // namespace longreach::cuda
