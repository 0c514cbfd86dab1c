// doctest's main for programs that need a GPU: without one they are skipped, and say why.
#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include "kernels/cuda_device.h"

int main(int argc, char** argv) {
    constexpr int skipped = 77;  // SKIP_RETURN_CODE in CMakeLists.txt; doctest itself ends with 0 or 1
    const longreach::CudaStatus status = longreach::cuda_status();
    if (!status.unusable.empty()) {
        fmt::print("skipped: no GPU can be used: {}\n", status.unusable);
        return skipped;
    }
    return doctest::Context(argc, argv).run();
}
