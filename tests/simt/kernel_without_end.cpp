// A kernel that never ends, for tools/gpu-check rehearse: the limit of its case has to end it.
#include "simt/simt.h"

#include "kernels/cuda/dialect.h"

namespace {

KERNEL(32)
void wait_for_ever(const volatile int* changed) {
    while (*changed == 0) {
    }
}

}  // namespace

int main() {
    longreach::simt::DeviceArray<int> changed(std::vector<int>(1));
    longreach::cuda::launch(wait_for_ever, {1, 32, 0, nullptr}, changed.data());
}
