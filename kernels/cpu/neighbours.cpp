#include "base/error.h"
#include "kernels/ops.h"

#include "kernels/cpu/isa_begin.h"
#include "kernels/cpu/simd.h"
#include "kernels/cpu/loops.h"
#include "kernels/cpu/cpu_ops.h"

void CpuOps::short_conv(Tensor, const Tensor&, const Tensor&, const Tensor&, int64_t) {
    fail(ExitCode::internal, "short_conv is not built yet");
}

void CpuOps::short_conv_backward(Tensor, Tensor, const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                                 int64_t) {
    fail(ExitCode::internal, "short_conv_backward is not built yet");
}

void CpuOps::smear(Tensor, const Tensor&, const Tensor&, const Tensor&, const Tensor&, int64_t) {
    fail(ExitCode::internal, "smear is not built yet");
}

void CpuOps::smear_backward(Tensor, Tensor, Tensor, const Tensor&, const Tensor&, const Tensor&,
                            const Tensor&, const Tensor&, int64_t) {
    fail(ExitCode::internal, "smear_backward is not built yet");
}

#include "kernels/cpu/isa_end.h"
