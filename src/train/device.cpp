#include "train/device.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>

namespace longreach {

std::unique_ptr<Ops> open_device(const SystemConfig& system, std::string& note) {
    require(system.device != Device::cuda, ExitCode::device,
            "system.device is cuda, but this build has no CUDA backend; use system.device=cpu");
    CpuOptions options;
    options.threads = static_cast<int>(system.threads);
    options.precision = system.precision;
    // For tests and comparisons only; the default is the best instruction set of the machine.
    if (const char* isa = std::getenv("LONGREACH_ISA")) options.isa = isa;
    std::unique_ptr<Ops> ops = make_cpu_ops(options);
    note = "device: " + ops->describe();
    if (system.device == Device::automatic) note += " (this build has no CUDA backend)";
    return ops;
}

double measure_peak(Ops& ops) {
    constexpr int64_t n = 1024;
    const int64_t bytes = n * n * 4;
    void* memory = ops.allocate(3 * bytes);
    float* base = static_cast<float*>(memory);
    const Tensor y(base, DType::f32, {n, n}), x(base + n * n, DType::f32, {n, n}),
        w(base + 2 * n * n, DType::f32, {n, n});
    std::vector<float> values(static_cast<size_t>(n * n));
    for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i % 17) - 8.0f;
    ops.upload(x, values.data());
    ops.upload(w, values.data());
    double best = 0;
    for (int i = 0; i < 6; ++i) {
        const auto begin = std::chrono::steady_clock::now();
        ops.linear(y, x, w, Write::set);
        ops.synchronize();
        const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
        best = std::max(best, 2.0 * n * n * n / seconds.count());
    }
    ops.release(memory, 3 * bytes);
    return best;
}

}  // namespace longreach
