#include "base/error.h"
#include "kernels/ops.h"

#include "kernels/cpu/isa_begin.h"
#include "kernels/cpu/simd.h"
#include "kernels/cpu/loops.h"
#include "kernels/cpu/cpu_ops.h"

void CpuOps::row_factors(Tensor, const RowFactorSpec&) {
    fail(ExitCode::internal, "row_factors is not built yet");
}

void CpuOps::row_factors_backward(Tensor, Tensor, const Tensor&, const RowFactorSpec&) {
    fail(ExitCode::internal, "row_factors_backward is not built yet");
}

void CpuOps::distance_tables(Tensor, Tensor, const DistanceFormSpec&) {
    fail(ExitCode::internal, "distance_tables is not built yet");
}

void CpuOps::distance_tables_backward(Tensor, Tensor, Tensor, Tensor, const Tensor&, const Tensor&,
                                      const DistanceFormSpec&) {
    fail(ExitCode::internal, "distance_tables_backward is not built yet");
}

void CpuOps::head_maxima(Tensor, const Tensor&) {
    fail(ExitCode::internal, "head_maxima is not built yet");
}

void CpuOps::qk_clip(Tensor, Tensor, const Tensor&, int64_t, float) {
    fail(ExitCode::internal, "qk_clip is not built yet");
}

#include "kernels/cpu/isa_end.h"
