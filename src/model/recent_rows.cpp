#include "model/recent_rows.h"

#include <algorithm>

namespace longreach::model {

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

}  // namespace longreach::model
