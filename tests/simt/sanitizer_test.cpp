// One fault of a kernel per argument, for the sanitizers to stop at (CMakeLists.txt says at what). Without an
// argument, or if nothing is found, it ends as if all were well.
#include <cstdio>
#include <cstring>
#include <vector>

#include "kernels/cuda/dialect.h"
#include "simt/simt.h"

using namespace longreach;
using namespace longreach::cuda;

namespace {

enum class Fault { none, device, shared, local, overflow };
struct Row {
    int x[60];
};

KERNEL(64) void faulty_kernel(int* y, const int* x, Fault fault, int length) {
    int* s = shared<Row>().x;
    int t = static_cast<int>(threadIdx.x);
    int local[4] = {t, 1, 2, 3};
    if (t < 60) s[t] = x[t];
    __syncthreads();
    int sum = s[t % 60] + local[t % 4];
    if (t == 7 && fault == Fault::device) sum += x[length];
    if (t == 7 && fault == Fault::shared) sum += s[length];
    if (t == 7 && fault == Fault::local) sum += local[length / 15];
    if (t == 7 && fault == Fault::overflow) sum += 0x7fffff00 + (length << 10);
    y[t] = sum;
}

}  // namespace

int main(int count, char** arguments) {
    const char* names[] = {"none", "device", "shared", "local", "overflow"};
    const char* asked = count > 1 ? arguments[1] : "none";
    Fault fault = Fault::none;
    for (size_t i = 0; i < std::size(names); ++i)
        if (std::strcmp(asked, names[i]) == 0) fault = static_cast<Fault>(i);
    simt::DeviceArray<int> x(std::vector<int>(60, 1)), y(64);
    int* out = y.data();
    if (std::strcmp(asked, "freed") == 0) {
        out = static_cast<int*>(simt::device_malloc(256));
        simt::device_free(out);
    }
    launch(faulty_kernel, {1, 64, sizeof(Row), nullptr}, out, x.data(), fault, 60);
    std::puts("nothing was found");
    return 0;
}
