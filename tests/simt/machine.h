// The simulated multiprocessor: runs the blocks of a launch one after the other, each block's threads as
// fibres. Internal to the harness; kernels see device.h, tests see simt.h.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "simt/async.h"
#include "simt/bulk_copies.h"
#include "simt/clocks.h"
#include "simt/fibre.h"
#include "simt/kernel_calls.h"
#include "simt/named_barriers.h"
#include "simt/phase_barriers.h"
#include "simt/shadow.h"
#include "simt/simt.h"
#include "simt/warpgroup.h"

namespace longreach::simt {

enum class WarpOp : uint8_t { sync, shuffle, ballot, all, any, ldmatrix, mma, stmatrix };
const char* name_of(WarpOp op);

// One lane's part in a warp call; lies on the lane's stack while it waits.
struct WarpCall {
    WarpOp op;
    uint32_t mask;
    uint64_t value = 0;       // a shuffle's value, a vote's 0 or 1
    int source = 0;           // lane a shuffle reads
    void* payload = nullptr;  // of ldmatrix, stmatrix and mma
    Place place;
    uint64_t result = 0;
};
// Waits for the lanes of the mask; the result of the lane. Only for running threads.
uint64_t warp_call(WarpCall call);
void block_barrier(const Place& place);
void atomic_access(uintptr_t address, size_t bytes, const Place& place);
// A memory access of the running thread; `address_place` is a return address.
void memory_access(uintptr_t address, size_t bytes, Use use, uintptr_t place);
bool on_device_thread();

// Words with these halves are signalling NaNs as fp32 and, in each half, as bfloat16. Arithmetic makes them
// quiet and keeps the rest of the bits, so that a result computed from one can be told.
constexpr uint32_t poison_shared = 0x7fa17fa1, poison_device = 0x7fa27fa2, poison_warp = 0x7fa37fa3,
                   poison_async = 0x7fa47fa4;
void fill_poison(void* to, size_t bytes, uint32_t poison);

enum class Wait : uint8_t { none, barrier, warp, phase, named, group, registers, done };

struct Thread {
    FibreState state = nullptr;
    Wait wait = Wait::none;
    Place place;
    WarpCall* call = nullptr;
    const char* waits_for = "";  // of phase and what follows: in words
};

struct Warp {
    uint32_t exists = 0;   // lanes of the block
    uint32_t waiting = 0;  // at a warp call
    uint32_t done = 0;
    // knows[a][b]: what lane a has seen of lane b's clock, knows[a][a] its own.
    uint32_t knows[32][32] = {};
};

struct Machine {
    bool running = false;  // a fibre runs, not the scheduler
    bool watching = true;  // Options::watch_memory of this launch
    int current = 0;       // thread
    int block = 0;
    LaunchShape shape;
    std::vector<Thread> threads;
    std::vector<Warp> warps;
    uint64_t ready[16] = {};  // bit per thread
    int alive = 0, at_barrier = 0;
    bool stopped = false;  // a finding ended the launch

    uint32_t epoch = 0, block_epoch = 0, launch_epoch = 0;
    std::vector<uint32_t> block_epochs;  // of the launch, with the block in block_numbers
    std::vector<int> block_numbers;
    std::vector<LaneSet> lane_sets = std::vector<LaneSet>(1);
    std::vector<uint32_t> spare_lane_sets;

    FibreStacks stacks;
    FibreState scheduler = nullptr;
    uintptr_t arena = 0;  // first byte of the block's shared memory
    Shadow shared_shadow;
    Copies copies;
    Clocks clocks;
    PhaseBarriers phase_barriers;
    NamedBarriers named_barriers;
    BulkCopies bulk_copies;
    Warpgroups warpgroups;
    uint64_t random_state = 1, switch_count = 0;
    int until_preemption = 0;  // memory accesses; 0: never
    size_t launch_findings = 0;
    std::string first_finding;
    Launches launches;

    uint64_t random();
    uint32_t own_clock() const;
    int block_of_epoch(uint32_t of) const;
    std::string name_thread(int block, int thread) const;
    std::string name_address(uintptr_t address) const;
    void found(Finding finding);
    [[noreturn]] void fatal(Finding finding);  // from a fibre: the launch ends here
    void wait_here();  // the running thread is not ready any more: the next one goes on
    void pass_on();    // the running thread may go on, if the schedule says so
    void next_epoch();
    void wake(size_t thread);
    void sleep(size_t thread);  // it is not ready any more, without handing on
    void engines_may_move();    // copies and products, by chance, where the schedule leaves it to chance
    bool engines_have_moved();  // no thread can go on: one copy lands, if one is under way
    uint32_t take_lane_set();
    void give_lane_sets(Group& group);  // forgets the group

    void run_block();
    void explain_standstill();
    int pick();
};
extern Machine the_machine;
inline Machine& machine() {
    return the_machine;
}

constexpr size_t arena_red_zone = 4096, arena_most = 256 * 1024, arena_alignment = 1024;

}  // namespace longreach::simt
