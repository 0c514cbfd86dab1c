#include "simt/async.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "simt/machine.h"
#include "simt/memory.h"

namespace longreach::simt {

void cp_async_16(void* shared, const void* global, int valid, const Place& place) {
    machine().copies.issue(shared, global, valid, place);
}

void cp_async_commit(const Place& place) {
    if (left_out(place)) return;
    machine().copies.commit();
}

void cp_async_wait(int pending, const Place& place) {
    if (left_out(place)) return;
    machine().copies.wait(pending);
}

void Copies::start_block(size_t threads) {
    queues_.assign(threads, Queue());
    under_way_ = 0;
}

void Copies::land(Copy& copy) {
    auto valid = static_cast<size_t>(copy.valid);
    std::memcpy(copy.to, copy.from, valid);
    std::memset(copy.to + valid, 0, 16 - valid);
    copy.landed = true;
}

void Copies::issue(void* shared, const void* global, int valid, const Place& place) {
    Machine& m = machine();
    auto to = reinterpret_cast<uintptr_t>(shared), from = reinterpret_cast<uintptr_t>(global);
    bool in_shared = to - m.arena < arena_most, in_device = valid == 0 || device_memory().contains(from);
    if (to % 16 != 0 || from % 16 != 0 || valid < 0 || valid > 16 || !in_shared || !in_device) {
        bool aligned = to % 16 == 0 && from % 16 == 0;
        Finding finding{!aligned     ? Kind::misaligned
                        : !in_shared ? Kind::shared_out_of_bounds
                                     : Kind::host_access,
                        m.name_thread(m.block, m.current) + ": cp.async at " + place.text() + " of " +
                            std::to_string(valid) + " bytes from " + m.name_address(from) + " to " +
                            m.name_address(to)};
        finding.place = place.text();
        m.fatal(std::move(finding));
    }
    uintptr_t number = place.numbered();
    if (valid > 0) memory_access(from, static_cast<size_t>(valid), Use::read, number);
    // From here to the wait the bytes may change at any moment: a write of this thread.
    memory_access(to, 16, Use::write, number);
    m.shared_shadow.set_in_flight(to, 16, true);
    Queue& queue = queues_[static_cast<size_t>(m.current)];
    queue.copies.push_back(
        {static_cast<char*>(shared), static_cast<const char*>(global), valid, queue.groups, false, place});
    ++under_way_;
    Landing landing = options().landing;
    if (landing == Landing::earliest || (landing == Landing::random && m.random() % 2 == 0))
        land(queue.copies.back());
    else
        fill_poison(shared, 16, poison_async);
}

void Copies::commit() {
    ++queues_[static_cast<size_t>(machine().current)].groups;
}

void Copies::wait(int pending) {
    Machine& m = machine();
    Queue& queue = queues_[static_cast<size_t>(m.current)];
    auto done = [&](Copy& copy) {
        if (copy.group >= queue.groups - pending)
            return false;  // copies not committed belong to no group yet
        if (!copy.landed) land(copy);
        m.shared_shadow.set_in_flight(reinterpret_cast<uintptr_t>(copy.to), 16, false);
        memory_access(reinterpret_cast<uintptr_t>(copy.to), 16, Use::write, copy.place.numbered());
        --under_way_;
        return true;
    };
    queue.copies.erase(std::remove_if(queue.copies.begin(), queue.copies.end(), done), queue.copies.end());
}

void Copies::thread_ends() {
    Machine& m = machine();
    Queue& queue = queues_[static_cast<size_t>(m.current)];
    if (queue.copies.empty()) return;
    Finding finding{Kind::async_unwaited,
                    m.name_thread(m.block, m.current) + " returned without waiting for " +
                        std::to_string(queue.copies.size()) + " copies, the first of " +
                        queue.copies.front().place.text(),
                    m.block, m.current};
    finding.place = queue.copies.front().place.text();
    m.found(std::move(finding));
}

void Copies::check_source(uintptr_t address, size_t bytes, uintptr_t place) {
    Machine& m = machine();
    for (size_t t = 0; t < queues_.size(); ++t)
        for (const Copy& copy : queues_[t].copies) {
            auto from = reinterpret_cast<uintptr_t>(copy.from);
            if (address >= from + static_cast<size_t>(copy.valid) || from >= address + bytes) continue;
            Finding finding{Kind::async_source_changed, "", m.block, m.current, -1, static_cast<int>(t)};
            finding.place = Place(place).text();
            finding.other_place = copy.place.text();
            finding.message = m.name_address(address) + ": " + m.name_thread(m.block, m.current) +
                              " writes at " + finding.place + " what thread " + std::to_string(t) +
                              " is copying since " + finding.other_place;
            m.found(std::move(finding));
            return;
        }
}

}  // namespace longreach::simt
