// Stands for the CUDA backend in builds without it.
#include "kernels/cuda_device.h"

namespace longreach {

CudaStatus cuda_status() {
    CudaStatus status;
    status.unusable = "this build has no CUDA backend (configure with -DLONGREACH_CUDA=ON)";
    return status;
}

std::unique_ptr<Ops> make_cuda_ops(const CudaOptions&) {
    fail(ExitCode::device, "{}", cuda_status().unusable);
}

}  // namespace longreach
