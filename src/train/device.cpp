#include "train/device.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <iterator>

#include "base/rng.h"
#include "base/text.h"
#include "base/units.h"
#include "train/signals.h"

namespace longreach::train {

CudaOptions cuda_options(const SystemConfig& system, int local_rank) {
    CudaOptions options;
    options.device = local_rank;
    options.timeout = static_cast<double>(system.device_timeout);
    options.stop_asked = [] { return StopSignals::received() != 0; };
    if (system.precision == PrecisionChoice::fp32) options.precision = Precision::fp32;
    return options;
}

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
            std::unique_ptr<Ops> ops = make_cuda_ops(cuda_options(system, local_rank));
            note = "device: " + ops->describe();
            if (system.device == Device::automatic) note += " (a GPU answered)";
            return ops;
        }
        // With a driver there is a GPU that somebody may be waiting for.
        why_not = status.driver.empty()
                      ? fmt::format(" (no GPU: {})", status.unusable)
                      : fmt::format("\nno GPU is used, although a driver for CUDA {} is here: {}",
                                    status.driver, status.unusable);
    }
    CpuOptions options;
    options.threads = static_cast<int>(system.threads);
    if (system.precision == PrecisionChoice::bf16) options.precision = Precision::bf16;
    // Only for tests and comparisons; the default is the best instruction set of the machine.
    if (const char* isa = std::getenv("LONGREACH_ISA")) options.isa = isa;
    std::unique_ptr<Ops> ops = make_cpu_ops(options);
    note = "device: " + ops->describe() + why_not;
    return ops;
}

PlannedDevice parse_plan_for(const std::string& text) {
    const auto refuse = [&]() -> PlannedDevice {
        throw Error(ExitCode::usage, fmt::format("--plan-for {}: not an amount of memory", quoted(text)),
                    "write 80GiB, 512MiB, or 80GiB:cuda for a GPU");
    };
    PlannedDevice device;
    const size_t colon = text.find(':');
    if (colon != std::string::npos) {
        if (text.substr(colon + 1) != "cuda" && text.substr(colon + 1) != "cpu") return refuse();
        device.cuda = text.substr(colon + 1) == "cuda";
    }
    const std::string amount = text.substr(0, colon);
    double number = 0;
    const auto [end, error] = std::from_chars(amount.data(), amount.data() + amount.size(), number);
    const std::string_view unit(end, static_cast<size_t>(amount.data() + amount.size() - end));
    constexpr std::string_view units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    const auto found = std::find(std::begin(units), std::end(units), unit);
    if (error != std::errc() || found == std::end(units)) return refuse();
    const double bytes = std::ldexp(number, 10 * static_cast<int>(found - std::begin(units)));
    if (!(bytes >= 1 && bytes < 1e18)) return refuse();
    device.bytes = static_cast<int64_t>(bytes);
    return device;
}

std::unique_ptr<Ops> open_planned_device(const SystemConfig& system, const std::string& plan_for,
                                         std::string& note) {
    const PlannedDevice device = parse_plan_for(plan_for);
    if (!device.cuda) {
        require(system.device != Device::cuda, ExitCode::usage,
                "--plan-for {} is for a CPU, but system.device is cuda: write {}:cuda", plan_for, plan_for);
        SystemConfig cpu = system;
        cpu.device = Device::cpu;
        std::unique_ptr<Ops> ops = open_device(cpu, note);
        note = fmt::format("planned for: a CPU with {}", human_bytes(device.bytes));
        return ops;
    }
    require(system.device != Device::cpu, ExitCode::usage,
            "--plan-for {} is for a GPU, but system.device is cpu", plan_for);
    const bool fp32 = system.precision == PrecisionChoice::fp32;
    std::unique_ptr<Ops> ops = make_cuda_plan(fp32 ? Precision::fp32 : Precision::bf16);
    note = fmt::format("planned for: a GPU with {}, {}", human_bytes(device.bytes), fp32 ? "fp32" : "bf16");
    return ops;
}

FreeMemory free_memory_of(const Ops& ops, int processes) {
    if (ops.native_queue().device >= 0) return {ops.free_bytes(), "the GPU"};
    FreeMemory free = free_memory();
    free.bytes /= processes;
    return free;
}

double measure_peak(Ops& ops) {
    constexpr double most_seconds = 0.1;  // a slow or busy machine gets two tries
    const DeviceTraits device = ops.traits();
    const int64_t n = device.peak_product, bytes = n * n * size_of(device.activations);
    if (ops.free_bytes() < 3 * bytes + n * n * 4) return 0;
    void* memory = ops.allocate(3 * bytes + n * n * 4);
    const auto matrix = [&](int64_t i, DType dtype) {
        return Tensor(static_cast<std::byte*>(memory) + i * bytes, dtype, {n, n});
    };
    const Tensor y = matrix(0, device.activations), x = matrix(1, device.activations),
                 w = matrix(2, device.activations), host_values = matrix(3, DType::f32);
    // Random values, because a GPU clocks higher on numbers that toggle few bits; a row's worth and one, over and over.
    const Rng rng(1, Purpose::bench, 0);
    const size_t drawn = static_cast<size_t>(n) + 1;
    std::vector<float> values(static_cast<size_t>(n * n));
    for (size_t i = 0; i < values.size(); ++i)
        values[i] = i < drawn ? static_cast<float>(rng.uniform(i)) - 0.5f : values[i - drawn];
    ops.upload(host_values, values.data());
    ops.copy(x, host_values);
    ops.copy(w, host_values);
    double best = 0;
    std::chrono::duration<double> all{0};
    for (int i = 0; i < 6 && (i < 2 || all.count() < most_seconds); ++i) {
        const auto begin = std::chrono::steady_clock::now();
        ops.linear(y, x, w, Write::set);
        ops.synchronize();
        const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
        best = std::max(best, 2.0 * static_cast<double>(n * n) * static_cast<double>(n) / seconds.count());
        all += seconds;
    }
    ops.release(memory, 3 * bytes + n * n * 4);
    return best;
}

}  // namespace longreach::train
