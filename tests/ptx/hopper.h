// What a block keeps of Hopper's asynchronous instructions, read from NVIDIA's PTX manual without a look at tests/simt.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

namespace longreach::ptx {

struct Step;

// An mbarrier object. Phases alternate in parity; `phase` counts those that have completed.
struct Mbarrier {
    int64_t expected = 0, pending = 0;  // arrivals
    int64_t bytes = 0;                  // the tx-count
    uint64_t phase = 0;
};

// cp.async.bulk, from device to shared memory or back.
struct BulkCopy {
    struct Piece {
        uint64_t shared = 0, global = 0;  // global 0: zeros arrive
        size_t bytes = 0;
    };
    const Step* step = nullptr;
    std::vector<Piece> pieces;
    uint64_t barrier = 0;  // to shared memory
    size_t bytes = 0;
    int thread = 0;
    int group = 0;  // from shared memory
};

// wgmma.mma_async as one warp sees it: its 16 rows of the 64.
struct WarpProduct {
    const Step* step = nullptr;
    uint64_t a = 0, b = 0;  // descriptors; a is not used where its fragments lie in registers
    bool add = false;
    int group = 0;
    bool done = false;  // computed at its issue
};

struct WarpProducts {
    std::vector<WarpProduct> open;   // in the order of issue
    int groups = 0;                  // committed
    size_t issued = 0;               // of the warp's life
    bool any = false;                // wgmma was executed: registers are watched
    uint64_t steps = 0, fence = 0;   // instructions executed, the last wgmma.fence among them
    std::vector<uint64_t> accessed;  // [register]: number of the last ordinary instruction that had it
    std::vector<uint8_t> in_flight;  // [register]: products under way that have it
};

struct NamedBarrier {
    int64_t threads = 0, arrived = 0;
    std::vector<size_t> warps, waiting;
};

// Registers per thread of a warpgroup. setmaxnreg is one instruction of its four warps.
struct WarpgroupRegisters {
    int64_t have = 0;
    const Step* step = nullptr;     // that its warps are at
    uint32_t came = 0, passed = 0;  // warps
    bool granted = false;
};

struct HopperState {
    bool used = false;  // the kernel has such instructions
    std::map<uint64_t, Mbarrier> barriers;
    std::map<int64_t, NamedBarrier> named;
    std::vector<BulkCopy> loads, stores;
    std::map<int, int> store_groups;     // committed, by thread
    std::vector<WarpProducts> products;  // by warp
    // The block's pool: what setmaxnreg.dec gave back and .inc has not taken. Nothing at the launch.
    int64_t free_registers = 0;
    std::vector<WarpgroupRegisters> registers;
    std::vector<std::vector<WarpProduct>> log;  // by warpgroup: what its first warp at each product said
    // By byte of shared memory: 1 + the thread that wrote it and has not executed fence.proxy.async since; 0: none.
    std::vector<uint16_t> unfenced;
    std::map<int, std::vector<std::pair<uint64_t, size_t>>>
        writes;  // of each thread, since its last such fence
};

}  // namespace longreach::ptx
