// Random programs of a few threads, against a second opinion: all pairs of accesses, ordered or not by clocks
// over all threads. The harness keeps a few words per memory cell instead and has to come to the same
// verdict.
#include <doctest/doctest.h>

#include <random>
#include <vector>

#include "kernels/cuda/dialect.h"
#include "simt/simt.h"

using namespace longreach;
using namespace longreach::cuda;

namespace {

enum Kind : int { barrier, fence, load, store, update };
struct Step {
    int kind, block, thread;  // thread: who accesses; of a fence, any thread of the warp
    unsigned mask;
    int offset, bytes;
};
constexpr int threads = 64, cells = 8;  // bytes

struct Cells {
    alignas(8) unsigned char x[cells];
};

DEVICE int touch(unsigned char* memory, const Step& step) {
    unsigned char* at = memory + step.offset;
    if (step.kind == update) return atomicAdd(reinterpret_cast<int*>(at), 1);
    if (step.kind == load)
        return step.bytes == 1   ? *at
               : step.bytes == 2 ? *reinterpret_cast<unsigned short*>(at)
                                 : *reinterpret_cast<int*>(at);
    if (step.bytes == 1) *at = 1;
    if (step.bytes == 2) *reinterpret_cast<unsigned short*>(at) = 1;
    if (step.bytes == 4) *reinterpret_cast<int*>(at) = 1;
    return 0;
}

// memory null: the block's shared memory, which thread 0 fills first.
KERNEL(64) void interpret(int* sums, unsigned char* memory, const Step* steps, int count) {
    int t = static_cast<int>(threadIdx.x), sum = 0;
    if (memory == nullptr) {
        memory = shared<Cells>().x;
        if (t == 0)
            for (int i = 0; i < cells; ++i) memory[i] = 0;
        __syncthreads();
    }
    for (int i = 0; i < count; ++i) {
        const Step& step = steps[i];
        if (step.block != static_cast<int>(blockIdx.x)) continue;
        if (step.kind == barrier)
            __syncthreads();
        else if (step.kind == fence) {
            if (step.thread / 32 == t / 32 && (step.mask >> (t % 32) & 1)) __syncwarp(step.mask);
        } else if (step.thread == t)
            sum += touch(memory, step);
    }
    sums[static_cast<int>(blockIdx.x) * threads + t] = sum;
}

// Clocks over all threads of all blocks; two accesses of one byte, one of them no load and not both updates,
// race unless the later thread knew the earlier access when it made its own.
bool races(const std::vector<Step>& steps, int blocks) {
    struct Event {
        Step step;
        int who;
        unsigned clock;
        std::vector<unsigned> known;
    };
    auto all = static_cast<size_t>(blocks * threads);
    std::vector<std::vector<unsigned>> knows(all, std::vector<unsigned>(all, 0));
    for (size_t t = 0; t < all; ++t) knows[t][t] = 1;
    std::vector<Event> events;
    for (const Step& step : steps) {
        if (step.kind == barrier || step.kind == fence) {
            std::vector<size_t> group;
            for (int t = 0; t < threads; ++t)
                if (step.kind == barrier || (t / 32 == step.thread / 32 && (step.mask >> (t % 32) & 1)))
                    group.push_back(static_cast<size_t>(step.block * threads + t));
            std::vector<unsigned> joined(all, 0);
            for (size_t t : group)
                for (size_t i = 0; i < all; ++i) joined[i] = std::max(joined[i], knows[t][i]);
            for (size_t t : group) {
                knows[t] = joined;
                ++knows[t][t];
            }
            continue;
        }
        int who = step.block * threads + step.thread;
        const auto& mine = knows[static_cast<size_t>(who)];
        for (const Event& e : events) {
            bool overlap =
                e.step.offset < step.offset + step.bytes && step.offset < e.step.offset + e.step.bytes;
            bool harmless =
                (e.step.kind == load && step.kind == load) || (e.step.kind == update && step.kind == update);
            if (!overlap || harmless || e.who == who) continue;
            if (mine[static_cast<size_t>(e.who)] < e.clock) return true;
        }
        events.push_back({step, who, mine[static_cast<size_t>(who)], mine});
    }
    return false;
}

std::vector<Step> random_program(std::mt19937& random, int blocks) {
    constexpr int actors[] = {0, 1, 2, 33, 34};
    auto below = [&](unsigned n) { return static_cast<int>(random() % n); };
    std::vector<Step> steps;
    int length = 3 + below(12), sync_share = 1 + below(8), store_share = 1 + below(4);
    for (int i = 0; i < length; ++i) {
        Step step{load, below(static_cast<unsigned>(blocks)), actors[below(5)], 0, 0, 1 << below(3)};
        if (below(10) < sync_share) {
            step.kind = below(3) == 0 ? barrier : fence;
            step.mask = static_cast<unsigned>(1 + below(7));
            if (step.kind == fence && below(4) == 0) step.mask = ~0u;
        } else {
            step.kind = below(6) < store_share ? store : below(8) == 0 ? update : load;
            if (step.kind == update) step.bytes = 4;
            step.offset = below(static_cast<unsigned>(cells / step.bytes)) * step.bytes;
        }
        steps.push_back(step);
    }
    return steps;
}

void compare(bool in_shared, int blocks, int programs) {
    std::mt19937 random(static_cast<unsigned>(in_shared ? 1 : 1 + blocks));
    simt::options() = simt::Options();
    int racing = 0;
    for (int program = 0; program < programs; ++program) {
        std::vector<Step> steps = random_program(random, blocks);
        bool expected = races(steps, blocks);
        racing += expected;
        simt::DeviceArray<Step> code(steps);
        simt::DeviceArray<unsigned char> memory(cells);
        simt::DeviceArray<int> sums(static_cast<size_t>(blocks * threads));
        for (int k = 0; k < 5; ++k) {
            simt::options() = simt::schedule(k == 4 ? 7 : k);
            simt::options().throw_on_finding = false;
            simt::clear_findings();
            memory.zero();
            launch(interpret, {static_cast<unsigned>(blocks), threads, sizeof(Cells), nullptr}, sums.data(),
                   in_shared ? nullptr : memory.data(), code.data(), static_cast<int>(steps.size()));
            bool found = false;
            for (const auto& finding : simt::findings())
                found |= finding.kind == (in_shared ? simt::Kind::shared_race : simt::Kind::global_race);
            INFO("program " << program << ", schedule " << k);
            CHECK(found == expected);
            CHECK(simt::findings().empty() == !expected);
        }
    }
    simt::options() = simt::Options();
    simt::clear_findings();
    // Neither verdict may be so rare that the comparison is empty.
    CHECK(racing > programs / 10);
    CHECK(racing < programs - programs / 10);
}

}  // namespace

TEST_CASE("races in shared memory are those of the all-pairs definition") {
    compare(true, 1, 600);
}

TEST_CASE("races in device memory are those of the all-pairs definition") {
    compare(false, 1, 300);
    compare(false, 2, 400);
    compare(false, 3, 400);
}
