#include "simt/shadow.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <string>

#include "simt/address_sanitizer.h"
#include "simt/machine.h"

namespace longreach::simt {

namespace {

constexpr uint8_t split_bit = 16, barrier_bit = 32;

template <class T>
T* reserve(size_t count) {
    void* at = mmap(nullptr, count * sizeof(T), PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED) throw std::bad_alloc();
    return static_cast<T*>(at);
}

}  // namespace

void Shadow::attach(uintptr_t base, size_t bytes, bool shared) {
    detach();
    base_ = base;
    bytes_ = bytes;
    words_ = (bytes + 3) / 4;
    shared_ = shared;
    cells_ = reserve<Cell>(words_);
    byte_cells_ = reserve<Cell>(words_ * 4);
    in_flight_ = reserve<uint16_t>(words_);
    state_ = reserve<uint8_t>(words_);
}

void Shadow::detach() {
    if (cells_ == nullptr) return;
    munmap(static_cast<void*>(cells_), words_ * sizeof(Cell));
    munmap(static_cast<void*>(byte_cells_), words_ * 4 * sizeof(Cell));
    munmap(in_flight_, words_ * sizeof(uint16_t));
    munmap(state_, words_);
    cells_ = nullptr;
}

Shadow::~Shadow() {
    detach();
}

void Shadow::forget(size_t bytes) {
    size_t words = std::min(words_, (bytes + 3) / 4);
    std::memset(state_, 0, words);
    std::memset(in_flight_, 0, words * sizeof *in_flight_);
}

void Shadow::set_initialised(uintptr_t address, size_t bytes) {
    size_t first = address - base_, last = first + bytes;
    while (first < last && (first & 3 || last - first < 4)) {
        state_[first / 4] |= static_cast<uint8_t>(1 << (first & 3));
        ++first;
    }
    for (; first + 4 <= last; first += 4) state_[first / 4] |= 15;
    for (; first < last; ++first) state_[first / 4] |= static_cast<uint8_t>(1 << (first & 3));
}

bool Shadow::initialised(uintptr_t address, size_t bytes) const {
    for (size_t at = address - base_; at < address - base_ + bytes; ++at)
        if (!(state_[at / 4] >> (at & 3) & 1)) return false;
    return true;
}

void Shadow::set_in_flight(uintptr_t address, size_t bytes, bool flying) {
    auto mark = static_cast<uint16_t>(flying ? 1 + machine().current : 0);
    for (size_t word = (address - base_) / 4; word < (address - base_ + bytes) / 4; ++word)
        in_flight_[word] = mark;
}

bool Shadow::ordered(const Access& earlier) const {
    const Machine& m = machine();
    if (earlier.epoch < m.block_epoch) return shared_ || earlier.epoch < m.launch_epoch;
    if (m.clocks.on()) return known(earlier, the_machine.clocks.row(m.current));
    if (earlier.epoch < m.epoch || earlier.thread == static_cast<unsigned>(m.current)) return true;
    int warp = m.current / 32;
    return static_cast<int>(earlier.thread) / 32 == warp &&
           m.warps[static_cast<size_t>(warp)].knows[m.current % 32][earlier.thread % 32] >= earlier.clock;
}

bool Shadow::ordered(const Group& group, Access& offender) const {
    const Machine& m = machine();
    for (const Access* one : {&group.other, &group.last})
        if (!ordered(*one)) {
            offender = *one;
            return false;
        }
    if (group.set == 0 || group.last.epoch != m.epoch) return true;
    for (uint32_t set = group.set; set != 0; set = m.lane_sets[set].next)
        for (unsigned lane = 0; lane < 32; ++lane) {
            offender = group.last;
            offender.thread = m.lane_sets[set].warp * 32 + lane;
            offender.clock = m.lane_sets[set].clock[lane];
            if (offender.clock != 0 && !ordered(offender)) return false;
        }
    return true;
}

void Shadow::add(Group& group, const Access& mine) const {
    Machine& m = machine();
    auto of_another_block = [&](const Access& access) {
        return !shared_ && access.epoch >= m.launch_epoch && access.epoch < m.block_epoch;
    };
    if (group.last.epoch != m.epoch) {
        // What is older than the epoch is over, unless it is of another block: one of those is kept.
        if (of_another_block(group.last)) group.other = group.last;
        group.set = 0;
    } else if (m.clocks.on()) {
        if (group.set == 0 && group.last.thread != mine.thread) add_to_sets(group, group.last);
        if (group.set != 0) add_to_sets(group, mine);
    } else if (group.last.thread / 32 != mine.thread / 32) {
        // With accesses of two warps in an epoch, any third is out of order with one of the two at least.
        if (!of_another_block(group.other)) group.other = group.last;
        group.set = 0;
    } else {
        if (group.set == 0 && group.last.thread != mine.thread) {
            group.set = static_cast<uint32_t>(m.lane_sets.size());
            m.lane_sets.push_back({});
            m.lane_sets.back().warp = group.last.thread / 32;
            m.lane_sets.back().clock[group.last.thread % 32] = group.last.clock;
        }
        if (group.set != 0) m.lane_sets[group.set].clock[mine.thread % 32] = mine.clock;
    }
    group.last = mine;
}

// Warps may be ordered with each other in any way: all are kept.
void Shadow::add_to_sets(Group& group, const Access& mine) const {
    Machine& m = machine();
    uint32_t set = group.set;
    while (set != 0 && m.lane_sets[set].warp != mine.thread / 32) set = m.lane_sets[set].next;
    if (set == 0) {
        set = m.take_lane_set();
        m.lane_sets[set] = LaneSet();
        m.lane_sets[set].warp = mine.thread / 32;
        m.lane_sets[set].next = group.set;
        group.set = set;
    }
    m.lane_sets[set].clock[mine.thread % 32] = mine.clock;
}

void Shadow::race(const Access& earlier, Use earlier_use, uintptr_t address, Use use, uintptr_t place) const {
    Machine& m = machine();
    Finding found{shared_ ? Kind::shared_race : Kind::global_race, "", m.block};
    found.thread = m.current;
    found.other_block = m.block_of_epoch(earlier.epoch);
    found.other_thread = static_cast<int>(earlier.thread);
    found.place = Place(place).text();
    found.other_place = Place(static_cast<uintptr_t>(earlier.place)).text();
    auto verb = [](Use u) {
        return u == Use::read ? "reads" : u == Use::write ? "writes" : "updates atomically";
    };
    found.message =
        m.name_address(address) + ": " + m.name_thread(found.block, found.thread) + " " + verb(use) + " at " +
        found.place + ", " +
        (earlier.thread >= Clocks::first_engine ? std::string("the copy engine")
                                                : m.name_thread(found.other_block, found.other_thread)) +
        " " + verb(earlier_use) + " at " + found.other_place + ", and nothing orders the two";
    m.found(std::move(found));
}

void Shadow::use_cell(Cell& cell, uintptr_t address, Use use, uintptr_t place) {
    Machine& m = machine();
    Access mine;
    mine.place = place;
    mine.thread = static_cast<unsigned>(m.current);
    mine.epoch = m.epoch;
    mine.clock = m.own_clock();
    // The thread's clock has not moved since it read the cell last: a write by another thread since then is not ordered
    // after that read, and was reported.
    if (use == Use::read && cell.reads.last.same_moment(mine)) return;
    Access offender;
    if (!ordered(cell.write)) race(cell.write, Use::write, address, use, place);
    if (use != Use::read && !ordered(cell.reads, offender)) race(offender, Use::read, address, use, place);
    if (use != Use::atomic && !ordered(cell.updates, offender))
        race(offender, Use::atomic, address, use, place);
    if (use == Use::read) add(cell.reads, mine);
    if (use == Use::write) {
        cell.write = mine;
        // Who is out of order with those before is so with this one too.
        if (m.clocks.on()) {
            m.give_lane_sets(cell.reads);
            m.give_lane_sets(cell.updates);
        }
    }
    if (use == Use::atomic) add(cell.updates, mine);
}

void Shadow::split(size_t word) {
    Machine& m = machine();
    for (size_t b = 0; b < 4; ++b) {
        Cell& cell = byte_cells_[word * 4 + b] = cells_[word];
        for (Group* group : {&cell.reads, &cell.updates}) {  // each byte has lanes of its own from here on
            if (group->set == 0 || group->last.epoch != m.epoch) continue;
            uint32_t before = 0;
            for (uint32_t set = group->set; set != 0; set = m.lane_sets[set].next) {
                m.lane_sets.push_back(LaneSet(m.lane_sets[set]));
                auto own = static_cast<uint32_t>(m.lane_sets.size() - 1);
                (before == 0 ? group->set : m.lane_sets[before].next) = own;
                before = own;
            }
        }
    }
    state_[word] |= split_bit;
}

void Shadow::access(uintptr_t address, size_t bytes, Use use, uintptr_t place) {
    if constexpr (!watched_by_hooks) return;  // of the accesses only those of matrix and copy instructions
    Machine& m = machine();
    if (shared_ && use != Use::read && m.clocks.on()) {
        m.bulk_copies.check_store_source(address, bytes, place);
        m.warpgroups.check_operands(address, bytes, place);
    }
    size_t at = address - base_, end = at + bytes;
    while (at < end) {
        size_t word = at / 4, until = std::min(end, word * 4 + 4);
        auto mask = static_cast<uint8_t>(((1u << (until - at)) - 1) << (at & 3));
        uint8_t& state = state_[word];
        if (in_flight_[word] != 0) {
            Finding found{Kind::async_unfinished, "", m.block};
            found.thread = m.current;
            found.other_thread = in_flight_[word] - 1;
            found.place = Place(place).text();
            found.message = m.name_address(base_ + at) + ": " + m.name_thread(m.block, m.current) +
                            (use == Use::read ? " reads at " : " writes at ") + found.place +
                            " while a copy of thread " + std::to_string(found.other_thread) +
                            " is still on its way there";
            m.found(std::move(found));
        }
        if ((state & barrier_bit) != 0) {
            Finding found{Kind::phase_barrier_misused, "", m.block, m.current};
            found.place = Place(place).text();
            found.message = m.name_address(base_ + at) + ": " + m.name_thread(m.block, m.current) +
                            (use == Use::read ? " reads at " : " writes at ") + found.place +
                            " what is a PhaseBarrier";
            m.found(std::move(found));
        }
        if (use != Use::write && (state & mask) != mask) {
            Finding found{shared_ ? Kind::uninitialised_shared : Kind::uninitialised_global, "", m.block};
            found.thread = m.current;
            found.place = Place(place).text();
            found.message = m.name_address(base_ + at) + ": " + m.name_thread(m.block, m.current) +
                            " reads at " + found.place + " what nobody has written";
            m.found(std::move(found));
        }
        if (use != Use::read) state |= mask;
        bool whole = mask == 15;
        if (!whole && !(state & split_bit)) split(word);
        if (state & split_bit) {
            for (size_t b = at; b < until; ++b) use_cell(byte_cells_[b], base_ + b, use, place);
            if (whole && use == Use::write) {
                // This write comes after everything before it, or that was reported: one
                // cell is enough again.
                cells_[word] = byte_cells_[word * 4];
                state &= static_cast<uint8_t>(~split_bit);
            }
        } else {
            use_cell(cells_[word], base_ + at, use, place);
        }
        at = until;
    }
}

void Shadow::set_barrier(uintptr_t address) {
    for (size_t word = (address - base_) / 4; word < (address - base_) / 4 + 2; ++word)
        state_[word] |= barrier_bit;
}

bool Shadow::known(const Access& earlier, const uint32_t* row) const {
    const Machine& m = machine();
    if (earlier.epoch < m.block_epoch) return true;
    if (earlier.thread < Clocks::first_engine && earlier.epoch < m.epoch) return true;
    return row[m.clocks.column(earlier.thread)] >= earlier.clock;
}

void Shadow::copy_begins(uintptr_t address, size_t bytes, const Access& engine, const Place& place) {
    if constexpr (!watched_by_hooks) return;
    Machine& m = machine();
    const uint32_t* row = m.clocks.row(m.current);
    for (size_t word = (address - base_) / 4; word < (address - base_ + bytes) / 4; ++word) {
        if (in_flight_[word] != 0) continue;  // access() has more to say of it
        bool of_bytes = (state_[word] & split_bit) != 0;
        for (size_t b = word * 4; b < word * 4 + (of_bytes ? 4 : 1); ++b) {
            const Access& write = of_bytes ? byte_cells_[b].write : cells_[word].write;
            if (write.thread < Clocks::first_engine && known(write, row))
                async_cell(write, base_ + b, row, "a copy writes", place);
        }
    }
    access(address, bytes, Use::write, place.numbered());
    for (size_t word = (address - base_) / 4; word < (address - base_ + bytes) / 4; ++word) {
        cells_[word].write = engine;
        in_flight_[word] = static_cast<uint16_t>(1 + m.current);
    }
}

void Shadow::async_cell(const Access& write, uintptr_t address, const uint32_t* row, const char* who,
                        const Place& place) const {
    Machine& m = machine();
    if (write.epoch < m.block_epoch) return;
    bool ordered = known(write, row), by_engine = write.thread >= Clocks::first_engine;
    if (ordered && (by_engine || m.clocks.fenced(write.thread, write.clock, row[write.thread]))) return;
    Finding found{ordered ? Kind::proxy_unfenced : Kind::shared_race, "", m.block, m.current};
    found.other_block = m.block;
    found.other_thread = static_cast<int>(write.thread);
    found.place = place.text();
    found.other_place = Place(static_cast<uintptr_t>(write.place)).text();
    found.message =
        m.name_address(address) + ": " + who + " at " + found.place + " what " +
        (by_engine ? std::string("the copy engine") : m.name_thread(m.block, found.other_thread)) +
        " wrote at " + found.other_place +
        (ordered ? ", which executed no fence_async_proxy() between the write and its next barrier"
                 : ", and nothing orders the two");
    m.found(std::move(found));
}

void Shadow::async_read(uintptr_t address, size_t bytes, const uint32_t* row, const char* who,
                        const Place& place) {
    if constexpr (!watched_by_hooks) return;
    Machine& m = machine();
    for (size_t word = (address - base_) / 4; word < (address - base_ + bytes) / 4; ++word) {
        if (in_flight_[word] != 0) {
            Finding found{Kind::async_unfinished, "", m.block, m.current};
            found.place = place.text();
            found.message = m.name_address(base_ + word * 4) + ": " + who + " at " + found.place +
                            " where a copy of thread " + std::to_string(in_flight_[word] - 1) +
                            " is still on its way";
            m.found(std::move(found));
        } else if ((state_[word] & 15) != 15) {
            Finding found{Kind::uninitialised_shared, "", m.block, m.current};
            found.place = place.text();
            found.message = m.name_address(base_ + word * 4) + ": " + who + " at " + found.place +
                            " what nobody has written";
            m.found(std::move(found));
        } else if ((state_[word] & split_bit) != 0) {
            for (size_t b = word * 4; b < word * 4 + 4; ++b)
                async_cell(byte_cells_[b].write, base_ + b, row, who, place);
        } else {
            async_cell(cells_[word].write, base_ + word * 4, row, who, place);
        }
    }
}

}  // namespace longreach::simt
