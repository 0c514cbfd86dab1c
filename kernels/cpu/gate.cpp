#include "base/error.h"
#include "kernels/ops.h"

#include "kernels/cpu/isa_begin.h"
#include "kernels/cpu/simd.h"
#include "kernels/cpu/loops.h"
#include "kernels/cpu/cpu_ops.h"

void CpuOps::gate(Tensor, const Tensor&, const Tensor&, float) {
    fail(ExitCode::internal, "gate is not built yet");
}

void CpuOps::gate_backward(Tensor, Tensor, const Tensor&, const Tensor&, const Tensor&, float) {
    fail(ExitCode::internal, "gate_backward is not built yet");
}

#include "kernels/cpu/isa_end.h"
