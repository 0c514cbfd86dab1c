// PhaseBarrier of kernels/cuda/ptx_sm90.cuh: the barriers in a block's shared memory, their phases, arrivals and bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "simt/clocks.h"
#include "simt/findings.h"

namespace longreach::simt {

struct PhaseBarrierState {
    uintptr_t address = 0;
    int expected = 0, pending = 0;  // arrivals of a phase, and those that are missing
    int64_t bytes = 0;              // announced, less those that came
    int64_t phase = 0;              // the one that has not completed
    size_t copies = 0;              // under way, for this phase
    int initialiser = 0;
    uint32_t fenced = 0;  // clock of the initialiser at its fence_barrier_init(); 0: none yet
    bool blamed = false;  // the missing fence is reported
    bool brought = false,
         unseen = false;  // copies landed in this phase, in the last one that nobody waited for
    Clock arriving, completed;
    std::vector<int64_t> passed;  // by thread, the phase that it waited for last
    Place place, copy_place;
};

class PhaseBarriers {
  public:
    using State = PhaseBarrierState;

    void start_block();
    void end_block();
    void initialise(uintptr_t at, int arrivals, const Place& place);
    void fence();
    void arrive(uintptr_t at, int bytes, const Place& place);
    bool passes(uintptr_t at, int parity, const Place& place);
    void wait(uintptr_t at, int parity, const Place& place);
    bool try_wait(uintptr_t at, int parity, const Place& place);

    // The barrier that a copy of the running thread is to count for: a number to give back below.
    size_t of_copy(uintptr_t at, const Place& place);
    State& state(size_t number) { return all_[number]; }
    void landed(size_t number, size_t bytes);
    // Nobody can go on: threads in try_wait are told "not yet", some times over.
    bool let_try_waits_return();
    std::string table() const;

  private:
    State& use(uintptr_t at, const char* what, const Place& place, bool by_engine = false);
    void settle(State& barrier);
    void complete(State& barrier);
    std::string name(const State& barrier) const;

    std::vector<State> all_;
    struct Waiter {
        int thread;
        size_t barrier;
        int parity;
        bool trying;
    };
    void suspend(const State& barrier, int parity, const Place& place, bool trying);
    std::vector<Waiter> waiters_;
    int fruitless_ = 0;  // times that try_waits were let go since a phase completed
};

}  // namespace longreach::simt
