// What is known about every word of shared or device memory: who wrote and read it last, which bytes hold a
// value, whether a copy is under way. From that follow races, uninitialised reads and early reads.
//
// Order within a block: a barrier of the block orders everything, so the machine counts epochs,
// one per barrier of a block, never reset; an access of an earlier epoch of the same block is over. Inside
// an epoch only lanes of one warp can be ordered, by __syncwarp: each lane has a vector clock over its warp. Once a
// block uses barriers of a part of its threads, each thread has a vector clock over the block instead (clocks.h).
// Blocks of one launch are never ordered. As blocks run one after the other, the epoch alone tells same
// block, other block, other launch.
#pragma once

#include <cstddef>
#include <cstdint>

#include "simt/findings.h"

namespace longreach::simt {

enum class Use : uint8_t { read, write, atomic };

struct Access {
    uint64_t place : 48 = 0;  // return address of the hook
    uint64_t thread : 11 =
        0;               // from Clocks::first_engine on: what counted for a PhaseBarrier, its phase as clock
    uint32_t epoch = 0;  // 0: none
    uint32_t clock = 0;  // of the lane when it accessed

    bool same_moment(const Access& other) const {
        return thread == other.thread && epoch == other.epoch && clock == other.clock;
    }
};

// Accesses that do not conflict with each other: all reads, or all atomic updates, of a cell. Not every one
// is kept, but one that a later conflicting access is out of order with, if there is any.
struct Group {
    Access last;       // its warp's others of the epoch are in the set
    Access other;      // one of another block, else of another warp in the same epoch
    uint32_t set = 0;  // index of a LaneSet, valid while last.epoch is the running epoch; 0: none
};

// The latest clocks of the lanes of one warp that made the access in one epoch; 0: did not.
struct LaneSet {
    uint32_t clock[32] = {};
    uint32_t warp = 0;
    uint32_t next = 0;  // set of another warp, where the block has vector clocks; 0: none
};

struct Cell {
    Access write;
    Group reads, updates;
};

class Shadow {
  public:
    Shadow() = default;
    ~Shadow();
    Shadow(const Shadow&) = delete;
    Shadow& operator=(const Shadow&) = delete;

    void attach(uintptr_t base, size_t bytes, bool shared);
    void detach();
    // Forgets values, copies under way and splits of the first `bytes` bytes: a new block starts.
    void forget(size_t bytes);
    // An access of the running thread that lies inside. Reports what is wrong with it.
    void access(uintptr_t address, size_t bytes, Use use, uintptr_t place);
    void set_initialised(uintptr_t address, size_t bytes);
    bool initialised(uintptr_t address, size_t bytes) const;
    // A cp.async of the running thread writes 16 bytes some time until the wait.
    void set_in_flight(uintptr_t address, size_t bytes, bool flying);

    // --- of shared memory, for the copy engine and products, which read and write through a proxy of their own
    // The 8 bytes are a PhaseBarrier: nothing else may touch them.
    void set_barrier(uintptr_t address);
    // A copy that the running thread starts writes whole words, until the phase that `engine` names completes.
    void copy_begins(uintptr_t address, size_t bytes, const Access& engine, const Place& place);
    // Whole words are read for somebody who knows as much as the row of clocks says. Reports what nobody wrote, what is
    // not ordered before, what a thread wrote without fence_async_proxy() after it.
    void async_read(uintptr_t address, size_t bytes, const uint32_t* row, const char* who,
                    const Place& place);

  private:
    bool known(const Access& earlier, const uint32_t* row) const;
    void async_cell(const Access& write, uintptr_t address, const uint32_t* row, const char* who,
                    const Place& place) const;
    void add_to_sets(Group& group, const Access& mine) const;
    void use_cell(Cell& cell, uintptr_t address, Use use, uintptr_t place);
    void race(const Access& earlier, Use earlier_use, uintptr_t address, Use use, uintptr_t place) const;
    bool ordered(const Access& earlier) const;
    bool ordered(const Group& group, Access& offender) const;  // offender: one that is not
    void add(Group& group, const Access& mine) const;
    void split(size_t word);

    uintptr_t base_ = 0;
    size_t bytes_ = 0, words_ = 0;
    bool shared_ = false;
    // All four lie in memory the operating system maps zeroed at the first touch.
    Cell* cells_ = nullptr;          // one per word
    Cell* byte_cells_ = nullptr;     // four per word, used by words that are `split`
    uint16_t* in_flight_ = nullptr;  // 1 + thread whose copy writes here; 0: none
    uint8_t* state_ = nullptr;       // bits 0-3: byte has a value; bit 4: split; bit 5: of a PhaseBarrier
};

}  // namespace longreach::simt
