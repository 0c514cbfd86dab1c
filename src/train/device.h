// Choosing the device and measuring it.
#pragma once

#include <memory>

#include "base/memory.h"
#include "kernels/ops.h"
#include "train/experiment.h"

namespace longreach::train {

// Opens the device the config asks for. `note` says what was picked and why, for the first line of output. Of
// several GPUs the local_rank-th.
std::unique_ptr<Ops> open_device(const SystemConfig& system, std::string& note, int local_rank = 0);

// "80GiB" or "80GiB:cuda": a device that need not be here, and its memory. Units are B, KiB, MiB, GiB, TiB.
// Error(ExitCode::usage) for other texts.
struct PlannedDevice {
    int64_t bytes = 0;
    bool cuda = false;
};
PlannedDevice parse_plan_for(const std::string& text);

// A device to plan on: its sizes are right, of its operations only those of the CPU work. `note` as above.
std::unique_ptr<Ops> open_planned_device(const SystemConfig& system, const std::string& plan_for,
                                         std::string& note);

// What can still be taken of the memory that this device computes in; on the CPU, by each of `processes`.
FreeMemory free_memory_of(const Ops& ops, int processes = 1);

// FLOP/s of a large matrix product on this device, best of a few: the yardstick of "% of peak". 0 where the
// device has no room for it.
double measure_peak(Ops& ops);

}  // namespace longreach::train
