// The backend that a test of operations runs on. Weak definitions: a program that links others (tests/cuda, tests/simt)
// runs the same objects on them, so that each test is compiled once.
#pragma once

#include <cstdlib>
#include <memory>

#include "kernels/ops.h"

namespace longreach::test {

[[gnu::weak]] std::unique_ptr<Ops> make_test_ops(const CpuOptions& options) {
    return make_cpu_ops(options);
}

// The operations of the CPU, and not those of CUDA, in the harness or on a GPU.
[[gnu::weak]] bool on_cpu() {
    return true;
}

// In the harness of tests/simt or in an emulator of another CPU (tools/test --arm), which are slower than a CPU
// and take fewer and shorter cases.
[[gnu::weak]] bool in_harness() {
    return std::getenv("LONGREACH_TEST_EMULATED") != nullptr;
}
// There, unless `tools/test --long` asked for more.
inline bool brief() {
    return in_harness() && std::getenv("LONGREACH_LONG_TESTS") == nullptr;
}

}  // namespace longreach::test
