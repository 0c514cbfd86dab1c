// Bank conflicts of shared memory, per source line. Threads here are not in lockstep: the n-th access of each
// lane to a line since the last barrier counts as one access of the warp.
#pragma once

#include <cstddef>
#include <cstdint>

namespace longreach::simt {

void banks_access(uintptr_t offset, size_t bytes, uintptr_t place);
void banks_new_epoch();

}  // namespace longreach::simt
