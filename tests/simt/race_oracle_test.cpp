// Random programs of a few threads, against a second opinion: all pairs of accesses, ordered or not
// by clocks over all threads. The harness keeps a few words per memory cell instead and has to come
// to the same verdict.
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
class Oracle {
  public:
    explicit Oracle(int blocks) : all_(static_cast<size_t>(blocks * threads)) {
        knows_.assign(all_, std::vector<unsigned>(all_, 0));
        for (size_t t = 0; t < all_; ++t) knows_[t][t] = 1;
    }
    bool races(const Step& step) const {
        if (step.kind == barrier || step.kind == fence) return false;
        int who = step.block * threads + step.thread;
        for (const Event& e : events_) {
            bool overlap =
                e.step.offset < step.offset + step.bytes && step.offset < e.step.offset + e.step.bytes;
            bool harmless = e.step.kind == step.kind && step.kind != store;
            if (overlap && !harmless && e.who != who &&
                knows_[static_cast<size_t>(who)][static_cast<size_t>(e.who)] < e.clock)
                return true;
        }
        return false;
    }
    void add(const Step& step) {
        if (step.kind != barrier && step.kind != fence) {
            auto who = static_cast<size_t>(step.block * threads + step.thread);
            events_.push_back({step, static_cast<int>(who), knows_[who][who]});
            return;
        }
        std::vector<size_t> group;
        for (int t = 0; t < threads; ++t)
            if (step.kind == barrier || (t / 32 == step.thread / 32 && (step.mask >> (t % 32) & 1)))
                group.push_back(static_cast<size_t>(step.block * threads + t));
        std::vector<unsigned> joined(all_, 0);
        for (size_t t : group)
            for (size_t i = 0; i < all_; ++i) joined[i] = std::max(joined[i], knows_[t][i]);
        for (size_t t : group) {
            knows_[t] = joined;
            ++knows_[t][t];
        }
    }

  private:
    struct Event {
        Step step;
        int who;
        unsigned clock;
    };
    size_t all_;
    std::vector<std::vector<unsigned>> knows_;
    std::vector<Event> events_;
};

struct Program {
    std::vector<Step> steps;
    bool races = false;
};

// A program without a race, after which in half of the cases comes one step that has one: each verdict then
// hangs on one pair of accesses.
Program random_program(std::mt19937& random, int blocks) {
    constexpr int actors[] = {0, 1, 2, 3, 33, 34};
    auto below = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
    Program program;
    Oracle oracle(blocks);
    int length = 3 + below(25), sync_share = 1 + below(7), store_share = 1 + below(4);
    int range = below(2) == 0 ? 4 : cells;
    bool wanted = below(2) == 0;
    int warps = 1 + below(2);
    for (int tries = 0; tries < 300 && !program.races; ++tries) {
        Step step{load,
                  below(blocks),
                  actors[below(warps == 1 ? 4 : 6)],
                  0,
                  0,
                  1 << (below(2) == 0 ? 2 : below(3))};
        if (below(10) < sync_share) {
            step.kind = below(warps == 1 ? 20 : 6) == 0 ? barrier : fence;
            step.mask = static_cast<unsigned>(1 + below(15));
            if (step.kind == fence && below(4) == 0) step.mask = ~0u;
        } else {
            step.kind = below(8) < store_share ? store : below(8) == 0 ? update : load;
            if (step.kind == update) step.bytes = 4;
            step.offset = below(range / step.bytes) * step.bytes;
        }
        bool at_end = static_cast<int>(program.steps.size()) >= length;
        if (at_end && !wanted) break;
        bool racing = oracle.races(step);
        if (racing != (at_end && wanted)) continue;
        oracle.add(step);
        program.steps.push_back(step);
        program.races = racing;
    }
    return program;
}

void compare(bool in_shared, int blocks, int programs) {
    std::mt19937 random(static_cast<unsigned>(in_shared ? 1 : 1 + blocks));
    simt::options() = simt::Options();
    int racing = 0;
    for (int program = 0; program < programs; ++program) {
        auto [steps, expected] = random_program(random, blocks);
        if (steps.empty()) continue;
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
    compare(true, 1, 3000);
}

TEST_CASE("races in device memory are those of the all-pairs definition") {
    compare(false, 1, 300);
    compare(false, 2, 400);
    compare(false, 3, 400);
}
