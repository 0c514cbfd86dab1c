// Kernels as nvcc emitted them, in place of what g++ made of the same source: a launch is run by tests/ptx.
#pragma once

#include "simt/kernel_calls.h"

namespace longreach::simt {

// Runs the launch's blocks by the PTX in the directory Options::ptx, one file NAME.ptx per NAME.cu. Throws Failure
// where the PTX has a fault or lacks the kernel.
void run_emitted(const LaunchShape& shape);

}  // namespace longreach::simt
