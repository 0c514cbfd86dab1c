#include "train/device.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>

#include "base/rng.h"
#include "kernels/cuda_device.h"

namespace longreach {

std::unique_ptr<Ops> open_device(const SystemConfig& system, std::string& note, int local_rank) {
    std::string why_not;
    if (system.device != Device::cpu) {
        const CudaStatus status = cuda_status();
        require(system.device != Device::cuda || status.unusable.empty(), ExitCode::device,
                "system.device is cuda, but {}; use system.device=cpu", status.unusable);
        if (status.unusable.empty()) {
            const int devices = static_cast<int>(status.devices.size());
            require(local_rank < devices, ExitCode::device,
                    "rank {} of this machine needs a GPU of its own; it has {}", local_rank, devices);
            CudaOptions options;
            options.device = local_rank;
            if (system.precision == PrecisionChoice::fp32) options.precision = Precision::fp32;
            std::unique_ptr<Ops> ops = make_cuda_ops(options);
            note = "device: " + ops->describe();
            if (system.device == Device::automatic) note += " (a GPU answered)";
            return ops;
        }
        why_not = fmt::format(" (no GPU: {})", status.unusable);
    }
    CpuOptions options;
    options.threads = static_cast<int>(system.threads);
    if (system.precision == PrecisionChoice::bf16) options.precision = Precision::bf16;
    // For tests and comparisons only; the default is the best instruction set of the machine.
    if (const char* isa = std::getenv("LONGREACH_ISA")) options.isa = isa;
    std::unique_ptr<Ops> ops = make_cpu_ops(options);
    note = "device: " + ops->describe() + why_not;
    return ops;
}

double measure_peak(Ops& ops) {
    const DeviceTraits device = ops.traits();
    const int64_t n = device.peak_product, bytes = n * n * size_of(device.activations);
    if (ops.free_bytes() < 3 * bytes + n * n * 4) return 0;
    void* memory = ops.allocate(3 * bytes + n * n * 4);
    const auto matrix = [&](int64_t i, DType dtype) {
        return Tensor(static_cast<std::byte*>(memory) + i * bytes, dtype, {n, n});
    };
    const Tensor y = matrix(0, device.activations), x = matrix(1, device.activations),
                 w = matrix(2, device.activations), host_values = matrix(3, DType::f32);
    // Random: a GPU clocks higher on numbers that toggle few bits.
    const Rng rng(1, Purpose::bench, 0);
    std::vector<float> values(static_cast<size_t>(n * n));
    for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(rng.uniform(i)) - 0.5f;
    ops.upload(host_values, values.data());
    ops.copy(x, host_values);
    ops.copy(w, host_values);
    double best = 0;
    for (int i = 0; i < 6; ++i) {
        const auto begin = std::chrono::steady_clock::now();
        ops.linear(y, x, w, Write::set);
        ops.synchronize();
        const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
        best = std::max(best, 2.0 * static_cast<double>(n * n) * static_cast<double>(n) / seconds.count());
    }
    ops.release(memory, 3 * bytes + n * n * 4);
    return best;
}

}  // namespace longreach
