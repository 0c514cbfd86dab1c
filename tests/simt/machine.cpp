#include "simt/machine.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <new>
#include <utility>

#include "simt/address_sanitizer.h"
#include "simt/banks.h"
#include "simt/emitted.h"
#include "simt/memory.h"

// What kernels know as constants (device.h declares them so, which lets the compiler keep them over a switch:
// for one thread they never change) is set here before a fibre goes on.
struct uint3 {
    unsigned x, y, z;
};
uint3 threadIdx{0, 0, 0}, blockIdx{0, 0, 0};
struct longreach_simt_extent {
    unsigned x, y, z;
};
longreach_simt_extent blockDim{1, 1, 1}, gridDim{1, 1, 1};

namespace longreach::simt {

namespace {

constexpr unsigned char red = 0x5c;

uint3 unflatten(size_t index, const Extent& extent) {
    return {static_cast<unsigned>(index % extent.x), static_cast<unsigned>(index / extent.x % extent.y),
            static_cast<unsigned>(index / extent.x / extent.y)};
}

std::string text_of(const uint3& at) {
    std::string text =
        "(" + std::to_string(at.x) + "," + std::to_string(at.y) + "," + std::to_string(at.z) + ")";
    return text;
}

// KERNEL(threads) puts one 1-byte nop per 32 threads at the function's first byte, after a possible endbr64.
int declared_threads(const void* kernel) {
    if (kernel == nullptr) return 0;
    const auto* code = static_cast<const unsigned char*>(kernel);
#if defined(__x86_64__)
    if (code[0] == 0xf3 && code[1] == 0x0f && code[2] == 0x1e && code[3] == 0xfa) code += 4;
    int nops = 0;
    while (nops < 32 && code[nops] == 0x90) ++nops;
    return nops * 32;
#else
    return 0;
#endif
}

void fibre_main() {
    arrived_on_stack();
    Machine& m = machine();
    m.shape.call(m.shape.parameters);
    m.running = false;
    m.copies.thread_ends();
    m.bulk_copies.thread_ends();
    m.warpgroups.thread_ends();
    Thread& self = m.threads[static_cast<size_t>(m.current)];
    self.wait = Wait::done;
    m.warps[static_cast<size_t>(m.current) / 32].done |= 1u << (m.current % 32);
    --m.alive;
    m.wait_here();
    __builtin_unreachable();
}

std::string waits_by_place(const Machine& m, Wait wait) {
    std::map<std::string, std::vector<int>> by_place;
    for (size_t t = 0; t < m.threads.size(); ++t) {
        const Thread& thread = m.threads[t];
        if (thread.wait != wait) continue;
        std::string what;
        if (wait == Wait::barrier) what = "wait at __syncthreads() " + thread.place.text();
        if (wait == Wait::warp) {
            char mask[16];
            std::snprintf(mask, sizeof mask, "%08x", thread.call->mask);
            what = std::string("wait at ") + name_of(thread.call->op) + " with mask " + mask + " " +
                   thread.place.text();
        }
        if (wait >= Wait::phase) what = thread.waits_for + (" " + thread.place.text());
        if (wait == Wait::done) what = "have returned";
        by_place[what].push_back(static_cast<int>(t));
    }
    std::string text;
    for (const auto& [what, who] : by_place) text += "\n  threads " + thread_ranges(who) + " " + what;
    return text;
}

}  // namespace

const char* name_of(WarpOp op) {
    static const char* const names[] = {"__syncwarp", "a shuffle", "__ballot_sync", "__all_sync",
                                        "__any_sync", "ldmatrix",  "mma",           "stmatrix"};
    return names[static_cast<size_t>(op)];
}

Machine the_machine;

bool on_device_thread() {
    return machine().running;
}

void fill_poison(void* to, size_t bytes, uint32_t poison) {
    auto* at = static_cast<char*>(to);
    for (; bytes >= 4; bytes -= 4, at += 4) std::memcpy(at, &poison, 4);
    std::memcpy(at, &poison, bytes);
}

uint64_t switches() {
    return machine().switch_count;
}

Launches launches() {
    return machine().launches;
}

void clear_launches() {
    machine().launches = {};
}

uint64_t Machine::random() {  // xorshift64
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state;
}

uint32_t Machine::own_clock() const {
    if (clocks.on()) return the_machine.clocks.own(current);
    return warps[static_cast<size_t>(current) / 32].knows[current % 32][current % 32];
}

int Machine::block_of_epoch(uint32_t of) const {
    auto after = std::upper_bound(block_epochs.begin(), block_epochs.end(), of);
    return after == block_epochs.begin()
               ? -1
               : block_numbers[static_cast<size_t>(after - block_epochs.begin()) - 1];
}

std::string Machine::name_thread(int of_block, int thread) const {
    return "thread " + text_of(unflatten(static_cast<size_t>(thread), shape.block)) + " of block " +
           text_of(unflatten(static_cast<size_t>(std::max(of_block, 0)), shape.grid));
}

std::string Machine::name_address(uintptr_t address) const {
    if (address - (arena - arena_red_zone) < arena_most + 2 * arena_red_zone)
        return "shared byte " + std::to_string(static_cast<ptrdiff_t>(address - arena));
    return device_memory().name(address);
}

void Machine::found(Finding finding) {
    if (launch_findings++ == 0)
        first_finding = std::string(longreach::simt::name_of(finding.kind)) + ": " + finding.message;
    report(std::move(finding));
}

void Machine::fatal(Finding finding) {
    running = false;
    if (finding.block < 0) finding.block = block;
    if (finding.thread < 0) finding.thread = current;
    found(std::move(finding));
    stopped = true;
    FibreState nowhere;
    switch_fibre(&nowhere, scheduler);
    __builtin_unreachable();
}

void Machine::next_epoch() {
    ++epoch;
    lane_sets.resize(1);
    spare_lane_sets.clear();
    if (clocks.on()) clocks.join_block();
    banks_new_epoch();
}

void Machine::wake(size_t thread) {
    threads[thread].wait = Wait::none;
    ready[thread / 64] |= uint64_t{1} << (thread % 64);
}

void Machine::sleep(size_t thread) {
    ready[thread / 64] &= ~(uint64_t{1} << (thread % 64));
}

void Machine::engines_may_move() {
    if (options().landing != Landing::random) return;
    uint64_t chance = random() % 12;
    if (chance == 0) bulk_copies.land_one();
    if (chance == 1) warpgroups.run_one();
    if (chance == 2) bulk_copies.move_some_store();
}

bool Machine::engines_have_moved() {
    if (alive == 0 || !clocks.on()) return false;
    return bulk_copies.land_one() || phase_barriers.let_try_waits_return();
}

uint32_t Machine::take_lane_set() {
    if (spare_lane_sets.empty()) {
        lane_sets.push_back({});
        return static_cast<uint32_t>(lane_sets.size() - 1);
    }
    uint32_t set = spare_lane_sets.back();
    spare_lane_sets.pop_back();
    return set;
}

void Machine::give_lane_sets(Group& group) {
    if (group.last.epoch == epoch)
        for (uint32_t set = group.set; set != 0; set = lane_sets[set].next) spare_lane_sets.push_back(set);
    group = Group();
}

int Machine::pick() {
    size_t count = threads.size();
    auto words = static_cast<int>((count + 63) / 64);
    auto from = [&](size_t start) {  // the first ready thread at or after start, around the end
        start %= count;
        auto word = static_cast<int>(start / 64);
        uint64_t bits = ready[word] & (~uint64_t{0} << (start % 64));
        for (int tried = 0; tried <= words; ++tried) {
            if (bits != 0) return word * 64 + __builtin_ctzll(bits);
            word = (word + 1) % words;
            bits = ready[word];
        }
        return -1;
    };
    switch (options().order) {
        case Order::round_robin:
            return from(static_cast<size_t>(current) + 1);
        case Order::reverse:
            for (int word = words - 1; word >= 0; --word)
                if (ready[word] != 0) return word * 64 + 63 - __builtin_clzll(ready[word]);
            return -1;
        case Order::warp_first: {
            auto warp = static_cast<size_t>(current) / 32;
            uint64_t bits = ready[warp / 2] >> (warp % 2 * 32) & 0xffffffffu;
            if (bits != 0) return static_cast<int>(warp * 32) + __builtin_ctzll(bits);
            return from((warp + 1) * 32);
        }
        case Order::random:
            return from(random() % count);
    }
    return -1;
}

void Machine::pass_on() {
    int next = pick();
    while (next < 0 && engines_have_moved()) next = pick();
    if (next == current) {
        running = true;
        return;
    }
    Thread& self = threads[static_cast<size_t>(current)];
    running = false;
    ++switch_count;
    if (next < 0) {
        switch_fibre(&self.state, scheduler);
    } else {
        current = next;
        threadIdx = unflatten(static_cast<size_t>(next), shape.block);
        running = true;
        switch_fibre(&self.state, threads[static_cast<size_t>(next)].state);
    }
    running = true;
}

void Machine::wait_here() {
    sleep(static_cast<size_t>(current));
    pass_on();
}

void block_barrier(const Place& place) {
    Machine& m = machine();
    m.running = false;
    Thread& self = m.threads[static_cast<size_t>(m.current)];
    self.place = place;
    self.wait = Wait::barrier;
    if (++m.at_barrier < static_cast<int>(m.threads.size())) {
        m.wait_here();
        return;
    }
    for (Thread& thread : m.threads) {
        if (thread.place == place) continue;
        Finding finding{Kind::barrier_divergence, "the threads of a block met at different barriers:"};
        finding.message += waits_by_place(m, Wait::barrier);
        finding.place = place.text();
        finding.other_place = thread.place.text();
        m.fatal(std::move(finding));
    }
    for (size_t t = 0; t < m.threads.size(); ++t) m.wake(t);
    m.at_barrier = 0;
    m.next_epoch();
    m.pass_on();
}

void* shared_arena(size_t bytes, size_t alignment, const Place& place) {
    Machine& m = machine();
    if (!m.running) throw Failure("shared<Layout>() outside of a kernel, " + place.text());
    if (bytes > m.shape.shared_bytes || alignment > arena_alignment) {
        Finding finding{Kind::shared_too_small, "the layout has " + std::to_string(bytes) +
                                                    " bytes, aligned to " + std::to_string(alignment) +
                                                    ", the launch asked for " +
                                                    std::to_string(m.shape.shared_bytes) + ", aligned to " +
                                                    std::to_string(arena_alignment)};
        finding.place = place.text();
        m.fatal(std::move(finding));
    }
    return reinterpret_cast<void*>(m.arena);
}

void Machine::run_block() {
    size_t count = shape.block.count();
    threads.assign(count, Thread());
    warps.resize((count + 31) / 32);
    for (size_t w = 0; w < warps.size(); ++w) {
        Warp& warp = warps[w];
        warp = Warp();
        size_t lanes = std::min<size_t>(32, count - w * 32);
        warp.exists = lanes == 32 ? ~0u : (1u << lanes) - 1;
        for (int lane = 0; lane < 32; ++lane) warp.knows[lane][lane] = 1;
    }
    std::memset(ready, 0, sizeof ready);
    for (size_t t = 0; t < count; ++t) {
        threads[t].state = stacks.start(t, fibre_main);
        ready[t / 64] |= uint64_t{1} << (t % 64);
    }
    alive = static_cast<int>(count);
    at_barrier = 0;
    clocks.start_block(count);
    phase_barriers.start_block();
    named_barriers.start_block();
    bulk_copies.start_block(count);
    // As many as one block can have, which is what KERNEL(threads, 1) lets ptxas use.
    int declared = declared_threads(shape.kernel);
    if (declared == 0) declared = static_cast<int>(count);
    warpgroups.start_block(count, std::min(65536 / declared / 8 * 8, 248));
    next_epoch();
    block_epoch = epoch;
    block_epochs.push_back(epoch);
    block_numbers.push_back(block);
    blockIdx = unflatten(static_cast<size_t>(block), shape.grid);
    copies.start_block(count);
    shared_shadow.forget(shape.shared_bytes);
    auto* first = reinterpret_cast<unsigned char*>(arena);
    allow(first - arena_red_zone, arena_most + 2 * arena_red_zone);
    std::memset(first - arena_red_zone, red, arena_red_zone);
    fill_poison(first, shape.shared_bytes, poison_shared);
    std::memset(first + shape.shared_bytes, red, arena_red_zone);
    forbid(first - arena_red_zone, arena_red_zone);
    forbid(first + shape.shared_bytes, arena_most + arena_red_zone - shape.shared_bytes);

    watching = options().watch_memory;
    random_state = (options().seed + static_cast<uint64_t>(block)) * 0x9e3779b97f4a7c15u | 1;
    until_preemption = options().order == Order::random ? 1 + static_cast<int>(random() % 64) : 0;
    current = static_cast<int>(count) - 1;  // round robin begins with thread 0
    current = pick();
    threadIdx = unflatten(static_cast<size_t>(current), shape.block);
    running = true;
    switch_fibre(&scheduler, threads[static_cast<size_t>(current)].state);
    running = false;
    if (!stopped && alive > 0) explain_standstill();
    if (!stopped) {
        bulk_copies.end_block();
        phase_barriers.end_block();
    }

    for (size_t i = 0; i < arena_red_zone; ++i)
        for (const unsigned char* at : {first - arena_red_zone + i, first + shape.shared_bytes + i})
            if (*at != red) {
                found({Kind::shared_out_of_bounds,
                       name_address(reinterpret_cast<uintptr_t>(at)) + " of " +
                           std::to_string(shape.shared_bytes) + " was written by block " +
                           text_of(unflatten(static_cast<size_t>(block), shape.grid)),
                       block});
                return;
            }
}

void Machine::explain_standstill() {
    bool any_barrier = at_barrier > 0, any_warp = false, any_done = alive < static_cast<int>(threads.size());
    bool mask_of_done = false, masks_differ = false;
    int who = -1;
    for (size_t t = 0; t < threads.size(); ++t) {
        const Thread& thread = threads[t];
        if (thread.wait != Wait::done && who < 0) who = static_cast<int>(t);
        if (thread.wait != Wait::warp) continue;
        any_warp = true;
        mask_of_done |= (thread.call->mask & warps[t / 32].done) != 0;
        for (size_t lane = 0; lane < 32; ++lane) {
            size_t other = t / 32 * 32 + lane;
            if (thread.call->mask >> lane & 1 && other < threads.size() && threads[other].wait == Wait::warp)
                masks_differ |= threads[other].call->mask != thread.call->mask;
        }
    }
    Finding finding{Kind::deadlock, "no thread can go on:"};
    if (any_warp && mask_of_done) {
        finding = {Kind::warp_exit, "a mask names lanes that have returned:"};
    } else if (any_warp && masks_differ) {
        finding = {Kind::warp_divergence, "lanes of a warp wait with different masks:"};
    } else if (!any_warp && any_barrier && any_done) {
        finding = {Kind::barrier_exit, "some threads returned, the others wait for them:"};
    }
    for (Wait wait :
         {Wait::barrier, Wait::warp, Wait::phase, Wait::named, Wait::group, Wait::registers, Wait::done})
        finding.message += waits_by_place(*this, wait);
    std::string registers = warpgroups.table();
    if (!registers.empty()) finding.kind = Kind::register_pool;
    finding.message += phase_barriers.table() + named_barriers.table() + registers;
    finding.block = block;
    finding.thread = who;
    finding.place = threads[static_cast<size_t>(who)].place.text();
    found(std::move(finding));
    stopped = true;
}

void run_launch(const LaunchShape& shape) {
    Machine& m = machine();
    m.shape = shape;
    m.launch_findings = 0;
    ++m.launches.count;
    m.launches.most_shared_bytes = std::max(m.launches.most_shared_bytes, shape.shared_bytes);
    m.stopped = false;
    m.block = -1;
    auto wrong = [&](Kind kind, const std::string& text) { m.found({kind, text}); };
    size_t threads = shape.block.count();
    int declared = declared_threads(shape.kernel);
    size_t most_shared = shared_memory_of(options().architecture);
    if (threads == 0 || threads > 1024 || shape.block.z > 64)
        wrong(Kind::launch_shape,
              "a block of " + std::to_string(threads) + " threads; 1 to 1024 are allowed");
    else if (declared != 0 && threads > static_cast<size_t>(declared))
        wrong(Kind::launch_shape, "a block of " + std::to_string(threads) + " threads for a KERNEL(" +
                                      std::to_string(declared) + ")");
    if (shape.grid.count() == 0 || shape.grid.x > 0x7fffffffu || shape.grid.y > 65535 || shape.grid.z > 65535)
        wrong(Kind::launch_shape, "a grid of " + std::to_string(shape.grid.x) + " x " +
                                      std::to_string(shape.grid.y) + " x " + std::to_string(shape.grid.z) +
                                      " blocks; 1 to 2^31-1 x 65535 x 65535 are allowed");
    if (most_shared == 0 || shape.shared_bytes > most_shared)
        wrong(Kind::shared_too_large, std::to_string(shape.shared_bytes) + " bytes of shared memory; sm_" +
                                          std::to_string(options().architecture) + " has " +
                                          std::to_string(most_shared));
    else if (shape.shared_bytes > shared_memory_allowed(shape.kernel))
        wrong(Kind::shared_not_asked_for,
              std::to_string(shape.shared_bytes) + " bytes of shared memory for a kernel that may have " +
                  std::to_string(shared_memory_allowed(shape.kernel)) +
                  ": cudaFuncSetAttribute has to raise cudaFuncAttributeMaxDynamicSharedMemorySize first");
    if (m.launch_findings == 0) {
        if (m.arena == 0) {
            void* at = mmap(nullptr, arena_most + 2 * arena_red_zone, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            if (at == MAP_FAILED) throw std::bad_alloc();
            m.arena = reinterpret_cast<uintptr_t>(at) + arena_red_zone;
            m.shared_shadow.attach(m.arena, arena_most, true);
        }
        blockDim = {shape.block.x, shape.block.y, shape.block.z};
        gridDim = {shape.grid.x, shape.grid.y, shape.grid.z};
        m.launch_epoch = m.epoch + 1;
        m.block_epochs.clear();
        m.block_numbers.clear();
        DeviceMemory::Open open(device_memory());
        if (!options().ptx.empty()) return run_emitted(shape);
        auto blocks = static_cast<int>(shape.grid.count());
        for (int b = 0; b < blocks && !m.stopped; ++b) {
            // The order of blocks is as free as that of threads.
            m.block = options().order == Order::reverse  ? blocks - 1 - b
                      : options().order == Order::random ? static_cast<int>((b + options().seed) % blocks)
                                                         : b;
            m.run_block();
        }
        banks_new_epoch();
        device_memory().check_red_zones();
    }
    if (m.launch_findings > 0 && options().throw_on_finding)
        throw Failure(m.first_finding + (m.launch_findings > 1 ? "\n(and more)" : ""));
}

}  // namespace longreach::simt
