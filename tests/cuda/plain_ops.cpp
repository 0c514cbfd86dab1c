// The CUDA backend for tests that allocate what they use.
#include "base/error.h"
#include "kernels/cuda_device.h"
#include "kernels/ops.h"

namespace longreach::test {

bool on_cpu();
bool on_cpu() {
    return false;
}

std::unique_ptr<Ops> make_test_ops(const CpuOptions& options) {
    require(options.isa.empty() || options.isa == "generic", ExitCode::device, "one device");
    return make_cuda_ops({.precision = options.precision});
}

}  // namespace longreach::test
