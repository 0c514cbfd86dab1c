#include "simt/bulk_copies.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "simt/machine.h"
#include "simt/memory.h"

namespace longreach::simt {

namespace {

[[noreturn]] void wrong(Kind kind, const std::string& text, const Place& place) {
    Machine& m = machine();
    Finding finding{kind, m.name_thread(m.block, m.current) + " at " + place.text() + ": " + text};
    finding.place = place.text();
    m.fatal(std::move(finding));
}

// Of the box at `at`: calls with the offset in the box and the address in the tensor of each 16 bytes, 0 for those
// that lie outside of the tensor. Its columns are a multiple of 16 bytes, where the tensor's need not be: what is
// beyond them in the last chunk is left out by `inside`, the bytes of the chunk that lie in the tensor.
template <class Call>
void for_chunks(const TensorMap& map, const int (&at)[3], Call call) {
    auto within = [&](size_t dimension, int64_t i) {
        return i >= 0 && i < static_cast<int64_t>(map.size[dimension]);
    };
    size_t offset = 0, columns = 16 / map.element;
    for (int64_t s = at[2]; s < at[2] + int64_t{map.box[2]}; ++s)
        for (int64_t r = at[1]; r < at[1] + int64_t{map.box[1]}; ++r)
            for (int64_t c = at[0]; c < at[0] + int64_t{map.box[0]}; c += static_cast<int64_t>(columns)) {
                size_t inside = 0;
                while (inside < columns && within(0, c + static_cast<int64_t>(inside))) ++inside;
                if (!within(1, r) || !within(2, s)) inside = 0;
                uintptr_t address = map.base + static_cast<uintptr_t>(c) * map.stride[0] +
                                    static_cast<uintptr_t>(r) * map.stride[1] +
                                    static_cast<uintptr_t>(s) * map.stride[2];
                call(offset, inside == 0 ? 0 : address, inside * map.element);
                offset += 16;
            }
}

// The box's place in shared memory. The hardware asks for 128 bytes; the swizzle, which is of the address, makes the
// tile that products expect only on 1024.
void demand_box(const TensorMap& map, uintptr_t at, const int (&where)[3], const char* what,
                const Place& place) {
    const Machine& m = machine();
    size_t alignment = map.swizzled ? 1024 : 128;
    if (at < m.arena || at + map.box_bytes() > m.arena + m.shape.shared_bytes)
        wrong(
            Kind::shared_out_of_bounds,
            std::string(what) + " of " + std::to_string(map.box_bytes()) + " bytes at " + m.name_address(at),
            place);
    if ((at - m.arena) % alignment != 0)
        wrong(Kind::tensor_map,
              std::string(what) + " at " + m.name_address(at) + ", which is no multiple of " +
                  std::to_string(alignment),
              place);
    // An illegal instruction on the hardware.
    if (where[0] % static_cast<int>(16 / map.element) != 0)
        wrong(Kind::tensor_map,
              std::string(what) + " from column " + std::to_string(where[0]) + ", which is not on 16 bytes",
              place);
}

}  // namespace

void BulkCopies::start_block(size_t threads) {
    copies_.clear();
    queues_.assign(threads, Queue());
    stores_ = 0;
}

void BulkCopies::end_block() {
    for (const Copy& copy : copies_) {
        Finding finding{Kind::async_unwaited,
                        "the block ended while the copy of " + std::to_string(copy.bytes) + " bytes of " +
                            copy.place.text() + " was under way",
                        machine().block, copy.thread};
        finding.place = copy.place.text();
        machine().found(std::move(finding));
    }
}

void BulkCopies::thread_ends() {
    Machine& m = machine();
    Queue& queue = queues_[static_cast<size_t>(m.current)];
    if (queue.stores.empty()) return;
    Finding finding{Kind::async_unwaited,
                    m.name_thread(m.block, m.current) +
                        " returned without tensor_stores_read() for the store of " +
                        queue.stores.front().place.text(),
                    m.block, m.current};
    finding.place = queue.stores.front().place.text();
    m.found(std::move(finding));
}

void BulkCopies::issue(Copy copy, uintptr_t barrier) {
    Machine& m = machine();
    uintptr_t number = copy.place.numbered();
    copy.barrier = m.phase_barriers.of_copy(barrier, copy.place);
    copy.phase = m.phase_barriers.state(copy.barrier).phase;
    copy.thread = m.current;
    copy.landed = false;
    copy.first = ~uintptr_t{0};
    for (const Piece& piece : copy.pieces) {
        auto from = reinterpret_cast<uintptr_t>(piece.from);
        if (from == 0) continue;
        memory_access(from, piece.bytes, Use::read, number);
        copy.first = std::min(copy.first, from);
        copy.end = std::max(copy.end, from + piece.bytes);
    }
    Access engine;
    engine.place = number;
    engine.thread = Clocks::first_engine + copy.barrier;
    engine.epoch = m.epoch;
    engine.clock = static_cast<uint32_t>(copy.phase) + 1;
    if (m.watching) m.shared_shadow.copy_begins(copy.to, copy.bytes, engine, copy.place);
    fill_poison(reinterpret_cast<void*>(copy.to), copy.bytes, poison_async);
    copies_.push_back(std::move(copy));
    Landing landing = options().landing;
    if (landing == Landing::earliest || (landing == Landing::random && m.random() % 3 == 0))
        land(copies_.size() - 1);
}

void BulkCopies::copy(char* to, const char* from, size_t bytes, uintptr_t barrier, const Place& place) {
    Machine& m = machine();
    auto target = reinterpret_cast<uintptr_t>(to), source = reinterpret_cast<uintptr_t>(from);
    std::string text = "bulk_copy of " + std::to_string(static_cast<int64_t>(bytes)) + " bytes from " +
                       m.name_address(source) + " to " + m.name_address(target);
    if ((target - m.arena) % 16 != 0 || source % 16 != 0 || bytes % 16 != 0 || bytes == 0)
        wrong(Kind::misaligned, text, place);
    if (target < m.arena || target + bytes > m.arena + m.shape.shared_bytes)
        wrong(Kind::shared_out_of_bounds, text, place);
    if (!device_memory().contains(source)) wrong(Kind::host_access, text, place);
    issue({{{to, from, bytes}}, target, bytes, 0, 0, 0, false, place}, barrier);
}

void BulkCopies::copy_box(char* to, const TensorMap& map, const int (&at)[3], uintptr_t barrier,
                          const Place& place) {
    auto target = reinterpret_cast<uintptr_t>(to);
    demand_box(map, target, at, "tensor_copy", place);
    Copy copy{{}, target, map.box_bytes(), 0, 0, 0, false, place};
    for_chunks(map, at, [&](size_t offset, uintptr_t from, size_t bytes) {
        uintptr_t chunk = target + offset;
        if (map.swizzled) chunk = swizzled_128(chunk);
        if (bytes > 0)
            copy.pieces.push_back({reinterpret_cast<char*>(chunk), reinterpret_cast<char*>(from), bytes});
        if (bytes < 16) copy.pieces.push_back({reinterpret_cast<char*>(chunk) + bytes, nullptr, 16 - bytes});
    });
    issue(std::move(copy), barrier);
}

void BulkCopies::land(size_t index) {
    Copy& copy = copies_[index];
    for (const Piece& piece : copy.pieces) {
        if (piece.from == nullptr)
            std::memset(piece.to, 0, piece.bytes);
        else
            std::memcpy(piece.to, piece.from, piece.bytes);
    }
    copy.landed = true;
    machine().phase_barriers.landed(copy.barrier, copy.bytes);
}

bool BulkCopies::land_one() {
    std::vector<size_t> due;
    for (size_t i = 0; i < copies_.size(); ++i)
        if (!copies_[i].landed) due.push_back(i);
    if (due.empty()) return false;
    land(options().landing == Landing::random ? due[machine().random() % due.size()] : due.front());
    return true;
}

void BulkCopies::phase_completed(size_t barrier) {
    auto done = [&](const Copy& copy) {
        if (copy.barrier != barrier || !copy.landed) return false;
        machine().shared_shadow.set_in_flight(copy.to, copy.bytes, false);
        return true;
    };
    copies_.erase(std::remove_if(copies_.begin(), copies_.end(), done), copies_.end());
}

void BulkCopies::check_source(uintptr_t address, size_t bytes, uintptr_t place) {
    Machine& m = machine();
    for (const Copy& copy : copies_) {
        if (address >= copy.end || copy.first >= address + bytes) continue;
        for (const Piece& piece : copy.pieces) {
            auto from = reinterpret_cast<uintptr_t>(piece.from);
            if (from == 0 || address >= from + piece.bytes || from >= address + bytes) continue;
            Finding finding{Kind::async_source_changed, "", m.block, m.current, -1, copy.thread};
            finding.place = Place(place).text();
            finding.other_place = copy.place.text();
            finding.message = m.name_address(address) + ": " + m.name_thread(m.block, m.current) +
                              " writes at " + finding.place + " what thread " + std::to_string(copy.thread) +
                              " is copying since " + finding.other_place;
            m.found(std::move(finding));
            return;
        }
    }
}

// --- stores

void BulkCopies::store_box(const TensorMap& map, const char* from, const int (&at)[3], const Place& place) {
    Machine& m = machine();
    auto source = reinterpret_cast<uintptr_t>(from);
    demand_box(map, source, at, "tensor_store", place);
    // An H200 answered with an illegal instruction; copies in the other direction may begin before the tensor.
    if (at[0] < 0 || at[1] < 0 || at[2] < 0)
        wrong(Kind::tensor_map,
              "tensor_store to column " + std::to_string(at[0]) + ", row " + std::to_string(at[1]) +
                  ", sequence " + std::to_string(at[2]) + ": before the tensor",
              place);
    Queue& queue = queues_[static_cast<size_t>(m.current)];
    Store store{{}, source, map.box_bytes(), queue.groups, false, place};
    for_chunks(map, at, [&](size_t offset, uintptr_t to, size_t bytes) {
        uintptr_t chunk = source + offset;
        if (map.swizzled) chunk = swizzled_128(chunk);
        if (bytes == 0) return;
        if (m.watching)
            m.shared_shadow.async_read(chunk, bytes, m.clocks.row(m.current), "tensor_store reads", place);
        memory_access(to, bytes, Use::write, place.numbered());
        store.pieces.push_back({reinterpret_cast<char*>(to), reinterpret_cast<char*>(chunk), bytes});
    });
    queue.stores.push_back(std::move(store));
    ++stores_;
    Landing landing = options().landing;
    if (landing == Landing::earliest || (landing == Landing::random && m.random() % 3 == 0))
        move(queue.stores.back());
}

void BulkCopies::move(Store& store) {
    for (const Piece& piece : store.pieces) std::memcpy(piece.to, piece.from, piece.bytes);
    store.moved = true;
}

void BulkCopies::move_some_store() {
    if (stores_ == 0) return;
    for (Queue& queue : queues_)
        for (Store& store : queue.stores)
            if (!store.moved) return move(store);
}

void BulkCopies::commit() {
    ++queues_[static_cast<size_t>(machine().current)].groups;
}

void BulkCopies::wait_read() {
    Machine& m = machine();
    Queue& queue = queues_[static_cast<size_t>(m.current)];
    auto done = [&](Store& store) {
        if (store.group >= queue.groups) return false;  // not committed
        if (!store.moved) move(store);
        --stores_;
        // Reads of this thread, that end here: who writes next has to come after them.
        for (const Piece& piece : store.pieces)
            memory_access(reinterpret_cast<uintptr_t>(piece.from), piece.bytes, Use::read,
                          store.place.numbered());
        return true;
    };
    queue.stores.erase(std::remove_if(queue.stores.begin(), queue.stores.end(), done), queue.stores.end());
}

void BulkCopies::check_store_source(uintptr_t address, size_t bytes, uintptr_t place) {
    if (stores_ == 0) return;
    Machine& m = machine();
    for (size_t t = 0; t < queues_.size(); ++t)
        for (const Store& store : queues_[t].stores) {
            if (address >= store.from + store.bytes || store.from >= address + bytes) continue;
            Finding finding{Kind::async_source_changed, "", m.block, m.current, -1, static_cast<int>(t)};
            finding.place = Place(place).text();
            finding.other_place = store.place.text();
            finding.message = m.name_address(address) + ": " + m.name_thread(m.block, m.current) +
                              " writes at " + finding.place + " what the tensor_store of thread " +
                              std::to_string(t) + " at " + finding.other_place + " may still be reading";
            m.found(std::move(finding));
            return;
        }
}

}  // namespace longreach::simt
