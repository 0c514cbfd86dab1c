// What the harness reports: one Finding per fault of a kernel or a launch, with the threads and source lines.
#pragma once

#include <cstdint>
#include <source_location>
#include <stdexcept>
#include <string>
#include <vector>

namespace longreach::simt {

enum class Kind {
    barrier_divergence,    // threads of a block met at different __syncthreads()
    barrier_exit,          // some threads returned while others wait at __syncthreads()
    deadlock,              // threads wait for each other and none can go on
    warp_mask,             // a warp call whose mask leaves the caller out or names a lane that is not there
    warp_divergence,       // lanes of one mask met at different warp calls
    warp_exit,             // a lane named by the mask has returned
    shared_race,           // two threads of a block, one writing, nothing in between that orders them
    global_race,           // the same in device memory, within a block or between blocks of one launch
    uninitialised_shared,  // read of a byte nobody wrote in this block
    uninitialised_global,  // read of a byte nobody wrote since its allocation
    misaligned,            // an access that is no multiple of its size
    shared_out_of_bounds,
    global_out_of_bounds,
    array_out_of_bounds,   // an index beyond an array's declared size
    host_access,           // a kernel touches memory of the host
    invalid_arithmetic,    // shift by the width or more, integer division by zero
    shared_too_small,      // the launch asked for less shared memory than the kernel's layout has
    shared_too_large,      // more than the architecture has
    shared_not_asked_for,  // more than 48 KiB without the kernel's opt-in
    launch_shape,          // threads or blocks beyond the limits, or beyond KERNEL(threads)
    async_unfinished,      // access to the destination of a cp.async before the wait
    async_source_changed,  // the source of a cp.async written before the wait
    async_unwaited,        // a thread returned with copies it never waited for
    poison_in_output,      // a result was computed from poisoned memory or an undefined shuffle
    schedule_dependent,    // output differs between schedules
    // Hopper's instructions:
    wrong_architecture,  // one of them on another architecture than 90
    phase_barrier_misused,  // a PhaseBarrier used before barrier_init(), twice initialised, touched, with arrivals too many
    phase_barrier_unfenced,  // used by others without fence_barrier_init() and a barrier after its barrier_init()
    phase_bytes,             // a phase got other bytes than were announced for it
    phase_wrapped,  // a wait passed another phase than the one after the last that the thread waited for
    named_barrier_misused,  // counts that differ or are no whole warps, generations that overlap or could
    proxy_unfenced,      // product, copy or store of what a thread wrote without fence_async_proxy() after it
    product_mismatch,    // the threads of a warpgroup at different products or with different operands
    product_descriptor,  // an operand that is no tile of 128-byte rows on a multiple of 1024
    product_unfenced,    // no products_fence() between accesses of registers and the product that has them
    product_in_flight,   // registers or operands of a product touched before products_wait()
    register_pool,       // a change of registers without room, or to a number that cannot be
    tensor_map,          // a tensor map or the place of its box against the rules
    api,                 // a wrong call of the runtime's functions
};
const char* name_of(Kind kind);

// A place in a source file; of a hook, the return address, turned into file and line when
// a report is written.
struct Place {
    const char* file = nullptr;
    uint32_t line = 0;
    uint32_t column = 0;
    uintptr_t address = 0;

    Place() = default;
    // Of a return address, or of a number that numbered() gave.
    explicit Place(uintptr_t at);
    Place(const std::source_location& at) : file(at.file_name()), line(at.line()), column(at.column()) {}
    bool operator==(const Place&) const = default;
    std::string text() const;    // "kernel.cu:17"
    uintptr_t numbered() const;  // 48 bits that stand for this place
};

struct Finding {
    Kind kind;
    std::string message;  // what, who and where, in one line or a few
    int block = -1;       // linear indices; -1 where there is none
    int thread = -1;
    int other_block = -1;
    int other_thread = -1;
    std::string place = {}, other_place = {};
};

class Failure : public std::runtime_error {
  public:
    explicit Failure(const std::string& text) : std::runtime_error(text) {}
};

// The findings since clear_findings(), each pair of source lines once per kind.
const std::vector<Finding>& findings();
void clear_findings();
void report(Finding finding);

std::string thread_ranges(const std::vector<int>& sorted);  // "0-15, 31"

}  // namespace longreach::simt
