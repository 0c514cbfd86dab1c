// Choosing the device and measuring it.
#pragma once

#include <memory>

#include "base/memory.h"
#include "kernels/cuda_device.h"
#include "kernels/ops.h"
#include "train/experiment.h"

namespace longreach::train {

// What the config asks of a GPU.
CudaOptions cuda_options(const SystemConfig& system, int local_rank);

// Opens the device that the config selects; with several GPUs, the one at index local_rank.
// `note` says what was chosen and why, for the first line of output.
std::unique_ptr<Ops> open_device(const SystemConfig& system, std::string& note, int local_rank = 0);

// "80GiB" or "80GiB:cuda": the memory of a device that need not be in this machine. Units are B, KiB, MiB,
// GiB, TiB. Error(ExitCode::usage) for other texts.
struct PlannedDevice {
    int64_t bytes = 0;
    bool cuda = false;
};
PlannedDevice parse_plan_for(const std::string& text);

// A device to plan with: its sizes are right, but only a CPU device can also compute. `note` as above.
std::unique_ptr<Ops> open_planned_device(const SystemConfig& system, const std::string& plan_for,
                                         std::string& note);

// Memory that is still free on this device; on the CPU, the share of each of `processes`.
FreeMemory free_memory_of(const Ops& ops, int processes = 1);

// FLOP/s of a large matrix product on this device, the best of a few: the reference of "% of peak".
// Returns 0 if the device has no room for the matrices.
double measure_peak(Ops& ops);

}  // namespace longreach::train
