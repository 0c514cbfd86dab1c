// Barriers with phases, named barriers, the copy engine.
#include <algorithm>
#include <bit>
#include <cstring>
#include <string>

#include "ptx/block.h"

namespace longreach::ptx {

namespace {

bool is(const Step& s, std::string_view second) {
    return s.in->words.size() > 1 && s.in->words[1] == second;
}

}  // namespace

bool Block::execute_hopper(const Step& s, uint32_t lanes) {
    const auto each = [&](auto&& f) {
        for (uint32_t l = lanes; l != 0; l &= l - 1) {
            unknown_ = -1;
            f(std::countr_zero(l));
        }
    };
    switch (s.op) {
        case Op::phase:
            return phase_barrier(s, lanes);
        case Op::bulk:
            each([&](int lane) { bulk(s, lane); });
            return true;
        case Op::bulk_group:
            each([&](int lane) { bulk_group(s, lane); });
            return true;
        case Op::proxy_fence:
            each([&](int lane) { proxy_fence(lane); });
            return true;
        case Op::products:
            return products(s, lanes);
        case Op::registers:
            return register_count(s, lanes);
        case Op::stmatrix:
            return stmatrix(s, lanes);
        default:
            unknown(module_, *s.in);
    }
}

// After a phase or a generation everybody who waits looks again.
void Block::look_again() {
    for (Warp& w : warps_) w.at_meeting = 0;
}

Mbarrier& Block::barrier_at(const Step& s, uint64_t at, int lane) {
    const auto found = hopper_.barriers.find(at);
    if (found == hopper_.barriers.end()) fault(s, lane, "no mbarrier at shared byte " + std::to_string(at));
    return found->second;
}

void Block::settle_phase(const Step& s, Mbarrier& b) {
    if (b.pending != 0) return;
    if (b.bytes < 0) fault(s, -1, "more bytes came than an mbarrier's phase expects");
    if (b.bytes != 0) return;
    ++b.phase;
    b.pending = b.expected;
    look_again();
}

// mbarrier.init [b], count; .arrive _, [b]; .arrive.expect_tx _, [b], bytes; .try_wait.parity p, [b], parity
bool Block::phase_barrier(const Step& s, uint32_t lanes) {
    if (is(s, "try_wait") || is(s, "test_wait")) {
        if (!s.in->has("parity")) unknown(module_, *s.in);
        // Where the phase is not over the lanes come again: the instruction may suspend them for a while.
        for (uint32_t l = lanes; l != 0; l &= l - 1) {
            const int lane = std::countr_zero(l);
            const uint64_t parity = used(s, *s.c, lane);
            if (parity > 1) fault(s, lane, "a parity of 0 or 1 expected");
            if ((barrier_at(s, address(s, *s.b, lane), lane).phase & 1) == parity) return false;
        }
        for (uint32_t l = lanes; l != 0; l &= l - 1) {
            unknown_ = -1;
            set(*s.a, std::countr_zero(l), 1);
        }
        return true;
    }
    for (uint32_t l = lanes; l != 0; l &= l - 1) {
        const int lane = std::countr_zero(l);
        if (is(s, "init")) {
            const uint64_t at = address(s, *s.a, lane);
            place(s, Space::shared, at, 8, lane, 'w');
            const auto count = static_cast<int64_t>(used(s, *s.b, lane));
            if (count < 1 || count >= 1 << 20) fault(s, lane, "a count from 1 to 2^20 - 1 expected");
            if (hopper_.barriers.contains(at)) fault(s, lane, "an mbarrier is there already");
            hopper_.barriers[at] = {count, count, 0, 0};
        } else if (is(s, "arrive")) {
            Mbarrier& b = barrier_at(s, address(s, *s.b, lane), lane);
            if (b.pending == 0) fault(s, lane, "an arrival beyond the count");
            --b.pending;
            if (s.in->has("expect_tx")) b.bytes += static_cast<int64_t>(used(s, *s.c, lane));
            settle_phase(s, b);
        } else {
            unknown(module_, *s.in);
        }
    }
    return true;
}

// bar.sync id, threads; bar.arrive id, threads: by whole warps.
bool Block::named_barrier(const Step& s, uint32_t lanes) {
    if ((warp_->alive & ~lanes) != 0) return false;
    if (s.in->groups.size() < 2) fault(s, -1, "a named barrier without a count of threads");
    const int first = std::countr_zero(lanes);
    const auto id = static_cast<int64_t>(used(s, *s.a, first)),
               threads = static_cast<int64_t>(used(s, *s.b, first));
    if (id > 15 || threads % 32 != 0 || threads == 0)
        fault(s, first, "barriers 0 to 15 of whole warps there are");
    const auto self = static_cast<size_t>(warp_ - warps_.data());
    NamedBarrier& b = hopper_.named[id];
    if (b.threads != 0 && b.threads != threads) fault(s, first, "another count of threads than others gave");
    if (std::find(b.warps.begin(), b.warps.end(), self) != b.warps.end())
        fault(s, first, "the warp arrives twice in one generation");
    b.threads = threads;
    b.arrived += 32;
    b.warps.push_back(self);
    if (is(s, "sync")) {
        b.waiting.push_back(self);
        warp_->at_named = lanes;
    }
    if (b.arrived < threads) return true;
    for (const size_t one : b.waiting) warps_[one].at_named = 0;
    b = {};
    return true;
}

// --- the copy engine

// The box of the map at the coordinates, 16 bytes at a time, with their places in shared memory.
std::vector<BulkCopy::Piece> Block::box(const Step& s, const Operand& map, const Operand* coordinates,
                                        uint64_t shared, int lane) {
    const std::byte* bytes = place(s, Space::generic, address(s, map, lane), 128, lane, 'r');
    if (!memory_.tensor) fault(s, lane, "nobody knows tensor maps here");
    const Tensor t = memory_.tensor(bytes);
    if (shared % 128 != 0) fault(s, lane, "a box that is not aligned to 128 bytes");
    int64_t first[3];
    for (int i = 0; i < 3; ++i) first[i] = static_cast<int32_t>(used(s, coordinates[i], lane));
    std::vector<BulkCopy::Piece> pieces;
    const int64_t per_piece = 16 / static_cast<int64_t>(t.element);
    uint64_t to = shared;
    for (int64_t z = 0; z < t.box[2]; ++z)
        for (int64_t y = 0; y < t.box[1]; ++y)
            for (int64_t x = 0; x < t.box[0]; x += per_piece, to += 16) {
                const int64_t at[3] = {first[0] + x, first[1] + y, first[2] + z};
                bool inside = true;
                for (int i = 0; i < 3; ++i) inside &= at[i] >= 0 && at[i] < t.size[i];
                BulkCopy::Piece piece{t.swizzled ? to ^ (to >> 7 & 7) << 4 : to, 0, 16};
                if (inside) {
                    piece.global = t.base + static_cast<uint64_t>(at[0]) * t.element +
                                   static_cast<uint64_t>(at[1]) * t.stride[0] +
                                   static_cast<uint64_t>(at[2]) * t.stride[1];
                    // A row may end within the 16 bytes.
                    piece.bytes = static_cast<size_t>(std::min(per_piece, t.size[0] - at[0])) * t.element;
                }
                pieces.push_back(piece);
            }
    return pieces;
}

void Block::bulk(const Step& s, int lane) {
    BulkCopy copy;
    copy.step = &s;
    copy.thread = warp_->first + lane;
    const bool tensor = s.in->has("tensor");
    if (s.in->has("bulk_group")) {  // [map, {x, y, z}], [shared]
        if (!tensor || !s.in->has("3d")) unknown(module_, *s.in);
        copy.pieces = box(s, *s.a, s.b, address(s, *s.c, lane), lane);
        for (int i = 0; i < 3; ++i)
            if (static_cast<int32_t>(used(s, s.b[i], lane)) < 0) fault(s, lane, "a store before the tensor");
        copy.group = hopper_.store_groups[copy.thread];
        hopper_.stores.push_back(copy);
        if (!launch_.copies_land_late) {
            move_store(copy, lane);
            hopper_.stores.back().pieces.clear();
        }
        return;
    }
    if (!s.in->has("mbarrier::complete_tx::bytes") || (tensor && !s.in->has("3d"))) unknown(module_, *s.in);
    const uint64_t to = address(s, *s.a, lane);
    if (tensor) {  // [shared], [map, {x, y, z}], [mbarrier]
        copy.pieces = box(s, *s.b, s.c, to, lane);
        copy.barrier = address(s, *s.d, lane);
        copy.bytes = copy.pieces.size() * 16;
    } else {  // [shared], [global], bytes, [mbarrier]
        copy.bytes = static_cast<size_t>(used(s, *s.c, lane));
        const uint64_t from = address(s, *s.b, lane);
        if ((to | from | copy.bytes) % 16 != 0) fault(s, lane, "addresses and bytes are multiples of 16");
        for (size_t i = 0; i < copy.bytes; i += 16) copy.pieces.push_back({to + i, from + i, 16});
        copy.barrier = address(s, *s.d, lane);
    }
    barrier_at(s, copy.barrier, lane);
    for (const auto& piece : copy.pieces) {
        place(s, Space::shared, piece.shared, 16, lane, 'c');
        for (size_t i = 0; i < 16; ++i) shared_known_[piece.shared + i] = false;
    }
    hopper_.loads.push_back(std::move(copy));
    if (!launch_.copies_land_late) land_bulk(hopper_.loads.size() - 1);
}

void Block::land_bulk(size_t index) {
    const BulkCopy copy = hopper_.loads[index];
    hopper_.loads.erase(hopper_.loads.begin() + static_cast<ptrdiff_t>(index));
    for (const auto& piece : copy.pieces) {
        std::byte* to = &shared_[piece.shared];
        std::memset(to, 0, 16);
        if (piece.global != 0) {
            memory_.read(piece.global, piece.bytes);
            std::memcpy(to, reinterpret_cast<const std::byte*>(piece.global), piece.bytes);
        }
        for (size_t i = 0; i < 16; ++i) shared_known_[piece.shared + i] = true;
    }
    Mbarrier& b = barrier_at(*copy.step, copy.barrier, -1);
    b.bytes -= static_cast<int64_t>(copy.bytes);
    settle_phase(*copy.step, b);
}

bool Block::land_some() {
    if (hopper_.loads.empty()) return false;
    land_bulk(launch_.last_first ? hopper_.loads.size() - 1 : 0);
    return true;
}

void Block::demand_fenced(const Step& s, uint64_t shared, size_t bytes) const {
    for (uint64_t i = shared; i < shared + bytes; ++i)
        if (hopper_.unfenced[i] != 0)
            fault(s, -1,
                  "shared byte " + std::to_string(i) + " was written by thread " +
                      std::to_string(hopper_.unfenced[i] - 1) + " without fence.proxy.async since");
}

void Block::move_store(const BulkCopy& copy, int lane) {
    const Step& s = *copy.step;
    for (const auto& piece : copy.pieces) {
        if (piece.global == 0) continue;
        const std::byte* from = place(s, Space::shared, piece.shared, 16, lane, 'r');
        demand_fenced(s, piece.shared, piece.bytes);
        memory_.written(piece.global, piece.bytes);
        std::memcpy(reinterpret_cast<std::byte*>(piece.global), from, piece.bytes);
    }
}

void Block::bulk_group(const Step& s, int lane) {
    const int thread = warp_->first + lane;
    int& groups = hopper_.store_groups[thread];
    if (s.in->has("commit_group")) {
        ++groups;
        return;
    }
    const auto pending = static_cast<int>(used(s, *s.a, lane));
    std::erase_if(hopper_.stores, [&](const BulkCopy& copy) {
        if (copy.thread != thread || copy.group >= groups - pending) return false;
        move_store(copy, lane);
        return true;
    });
}

// --- proxies

void Block::note_write(uint64_t shared, size_t bytes, int lane) {
    const int thread = warp_->first + lane;
    for (size_t i = 0; i < bytes; ++i) hopper_.unfenced[shared + i] = static_cast<uint16_t>(thread + 1);
    hopper_.writes[thread].emplace_back(shared, bytes);
}

void Block::proxy_fence(int lane) {
    const int thread = warp_->first + lane;
    for (const auto& [first, bytes] : hopper_.writes[thread])
        for (uint64_t i = first; i < first + bytes; ++i)
            if (hopper_.unfenced[i] == thread + 1) hopper_.unfenced[i] = 0;
    hopper_.writes[thread].clear();
}

// --- ends

void Block::end_hopper(const Step& s, int lane) {
    if (!hopper_.used) return;
    for (const BulkCopy& copy : hopper_.stores)
        if (copy.thread == warp_->first + lane) fault(s, lane, "a store that nobody waited for");
    if (!hopper_.products[static_cast<size_t>(warp_ - warps_.data())].open.empty())
        fault(s, lane, "products that nobody waited for");
}

void Block::start_hopper() {
    bool used = std::any_of(steps_.begin(), steps_.end(), [](const Step& s) { return s.op >= Op::phase; });
    hopper_ = HopperState();
    hopper_.used = used;
    if (!used) return;
    hopper_.unfenced.assign(shared_.size(), 0);
    hopper_.products.resize(warps_.size());
    for (WarpProducts& one : hopper_.products) {
        one.accessed.assign(entry_.registers.size(), 0);
        one.in_flight.assign(entry_.registers.size(), 0);
    }
    hopper_.log.resize((warps_.size() + 3) / 4);
    // What ptxas gives a thread of a block that has the multiprocessor for itself.
    hopper_.registers.assign((warps_.size() + 3) / 4, {.have = std::min(65536 / threads_ / 8 * 8, 248)});
}

}  // namespace longreach::ptx
