// Factories that take the place of make_cpu_ops in tests which also run on the CUDA backend (a compile
// definition says which one).
#pragma once

#include <memory>

#include "kernels/cuda_device.h"
#include "kernels/ops.h"

namespace longreach {

// For tests that hand the operations host memory.
std::unique_ptr<Ops> make_staged_ops(const CpuOptions& options);
// For tests that allocate what they use.
std::unique_ptr<Ops> make_plain_ops(const CpuOptions& options);
// Schedule k of the harness for what follows; nothing on a GPU.
void set_schedule(int k);

}  // namespace longreach
