// Choosing the device and measuring it.
#pragma once

#include <memory>

#include "kernels/ops.h"
#include "train/experiment.h"

namespace longreach {

// Opens the device the config asks for. `note` says what was picked and why, for the first line of output. Of
// several GPUs the local_rank-th.
std::unique_ptr<Ops> open_device(const SystemConfig& system, std::string& note, int local_rank = 0);

// FLOP/s of a large matrix product on this device, best of a few: the yardstick of "% of peak". 0 where the
// device has no room for it.
double measure_peak(Ops& ops);

}  // namespace longreach
