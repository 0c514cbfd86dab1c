// The CUDA backend as the rest of the program sees it. A build without one answers the same questions.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "kernels/ops.h"

namespace longreach {

struct CudaDevice {
    std::string name;
    int architecture = 0;  // compute capability times ten
    int multiprocessors = 0;
    int64_t memory = 0;          // bytes
    int64_t shared_memory = 0;   // bytes a block may have
    double datasheet_flops = 0;  // bf16, dense; 0: unknown
};

struct CudaStatus {
    bool built = false;    // into this program
    std::string unusable;  // why no GPU can be used; empty: one can
    std::string driver, runtime, blas;
    std::vector<CudaDevice> devices;
};
CudaStatus cuda_status();

struct CudaOptions {
    int device = 0;
    Precision precision = Precision::bf16;
    double timeout = 60;  // seconds without the end of an operation until the process ends; 0: none
    std::function<bool()> stop_asked = {};  // whether a signal came: then a device that hangs is left soon
};
// Throws with code device where cuda_status() says why.
std::unique_ptr<Ops> make_cuda_ops(const CudaOptions& options);
// For planning without a GPU, in any build: what planning asks is answered as a GPU would, computations happen on the CPU.
std::unique_ptr<Ops> make_cuda_plan(Precision precision);

}  // namespace longreach
