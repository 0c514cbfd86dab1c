// How much more memory this process can allocate.
#pragma once

#include <cstdint>
#include <string>

namespace longreach {

struct FreeMemory {
    int64_t bytes = 0;
    std::string
        limit;  // what sets the bound: "this machine", "the control group /...", "RLIMIT_AS (ulimit -v)"
};

// The smallest of: what the kernel says is available without swapping, what the control groups (v1 and v2, up
// to the root) leave, and what the limits on address space and data leave. The largest int64_t if nothing is
// known. `root` is put before the paths of /proc and /sys.
FreeMemory free_memory(const std::string& root = "");

}  // namespace longreach
