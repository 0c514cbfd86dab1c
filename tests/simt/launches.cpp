// The calls of kernels that need a few lines only, and runs under several schedules.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>

#include "simt/machine.h"

namespace longreach::simt {

namespace {

void demand_kernel(const char* what, const Place& at) {
    if (!on_device_thread()) throw Failure(std::string(what) + " outside of a kernel, " + at.text());
}

// A word with the bits of a poisoned NaN, quiet or signalling.
bool is_poison(uint32_t word) {
    word &= ~0x00400000u;
    return word == poison_shared || word == poison_device || word == poison_warp || word == poison_async;
}

std::string describe(const Options& o) {
    static const char* const orders[] = {"round robin", "reverse", "warp first", "random"};
    static const char* const landings[] = {"earliest", "latest", "random"};
    return std::string(orders[static_cast<size_t>(o.order)]) + ", copies land " +
           landings[static_cast<size_t>(o.landing)] + ", seed " + std::to_string(o.seed);
}

}  // namespace

// The environment is for programs that were not written for the harness.
Options the_options = [] {
    Options o;
    const char* watch = std::getenv("LONGREACH_SIMT_WATCH");
    o.watch_memory = watch == nullptr || std::string(watch) != "0";
    if (const char* ptx = std::getenv("LONGREACH_PTX")) o.ptx = ptx;
    return o;
}();

size_t shared_memory_of(int architecture) {
    switch (architecture) {
        case 75:
            return 64 * 1024;
        case 80:
        case 87:
            return 163 * 1024;
        case 86:
        case 89:
        case 120:
        case 121:
            return 99 * 1024;
        case 90:
        case 100:
        case 103:
            return 227 * 1024;
        default:
            return 0;
    }
}

void sync_block(const Place& at) {
    demand_kernel("__syncthreads()", at);
    if (left_out(at)) return;
    block_barrier(at);
}

void sync_warp(unsigned mask, const Place& at) {
    demand_kernel("__syncwarp()", at);
    if (left_out(at)) return;
    warp_call({WarpOp::sync, mask, 0, 0, nullptr, at});
}

unsigned ballot(unsigned mask, bool predicate, const Place& at) {
    demand_kernel("__ballot_sync()", at);
    return static_cast<unsigned>(warp_call({WarpOp::ballot, mask, predicate, 0, nullptr, at}));
}

bool any(unsigned mask, bool predicate, const Place& at) {
    demand_kernel("__any_sync()", at);
    return warp_call({WarpOp::any, mask, predicate, 0, nullptr, at}) != 0;
}

bool all(unsigned mask, bool predicate, const Place& at) {
    demand_kernel("__all_sync()", at);
    return warp_call({WarpOp::all, mask, predicate, 0, nullptr, at}) != 0;
}

// Lanes count from the first of their segment of `width`. Who would read beyond its segment's end, or with
// `up` before its beginning, gets its own value; an earlier segment may be read by exclusive_or.
uint64_t shuffle(ShuffleKind kind, unsigned mask, uint64_t value, int argument, int width, const Place& at) {
    demand_kernel("a shuffle", at);
    Machine& m = machine();
    if (width <= 0 || width > 32 || (width & (width - 1)) != 0) {
        Finding finding{Kind::warp_mask, "a shuffle of width " + std::to_string(width) + " at " + at.text()};
        finding.place = at.text();
        m.fatal(std::move(finding));
    }
    int lane = m.current % 32, first = lane / width * width, source = lane;
    switch (kind) {
        case ShuffleKind::index:
            source = first + (argument & (width - 1));
            break;
        case ShuffleKind::exclusive_or:
            source = lane ^ (argument & 31);
            if (source >= first + width) source = lane;
            break;
        case ShuffleKind::down:
            source = argument >= 0 && lane - first + argument < width ? lane + argument : lane;
            break;
        case ShuffleKind::up:
            source = argument >= 0 && lane - first >= argument ? lane - argument : lane;
            break;
    }
    return warp_call({WarpOp::shuffle, mask, value, source, nullptr, at});
}

int atomic_add(int* at, int value, const Place& where) {
    demand_kernel("atomicAdd()", where);
    atomic_access(reinterpret_cast<uintptr_t>(at), sizeof *at, where);
    int before = *at;
    *at = static_cast<int>(static_cast<unsigned>(before) + static_cast<unsigned>(value));
    return before;
}

Options schedule(int k) {
    Options chosen = options();
    chosen.order = static_cast<Order>(k % 4);
    chosen.landing = static_cast<Landing>((k + 1 + k / 4) % 3);
    chosen.seed = static_cast<uint64_t>(k) + 1;
    return chosen;
}

bool long_tests() {
    return std::getenv("LONGREACH_LONG_TESTS") != nullptr;
}
int usual_schedules() {
    return long_tests() ? 16 : 4;
}

int run_schedules(int count, const std::function<void()>& prepare, const std::function<void()>& launches,
                  const std::vector<Output>& outputs) {
    struct Restore {
        Options before = options();
        ~Restore() {
            before.fail_call = options().fail_call;
            options() = before;
        }
    } restore;
    std::vector<std::vector<char>> first;
    size_t found_before = findings().size();
    auto fail = [&](Kind kind, const std::string& text) {
        report({kind, text});
        if (options().throw_on_finding) throw Failure(std::string(name_of(kind)) + ": " + text);
    };
    // Emitted code has two, its machine knows no more: one by turns, both in the long tests.
    static int turn = 0;
    const bool emitted = !options().ptx.empty(), both = long_tests();
    const int begin = emitted && !both && count > 1 ? turn++ % 2 : 0;
    const int end = !emitted ? count : std::min(count, both ? 2 : begin + 1);
    for (int k = begin; k < end; ++k) {
        options() = schedule(k);
        options().throw_on_finding = restore.before.throw_on_finding;
        prepare();
        launches();
        synchronise();
        for (size_t i = 0; i < outputs.size() && findings().size() == found_before; ++i) {
            std::vector<char> bytes(outputs[i].bytes);
            copy_to_host(bytes.data(), outputs[i].data, bytes.size());
            for (size_t at = 0; at + 4 <= bytes.size(); at += 4) {
                uint32_t word;
                std::memcpy(&word, &bytes[at], 4);
                if (!is_poison(word)) continue;
                fail(Kind::poison_in_output, "output " + std::to_string(i) + ", byte " + std::to_string(at) +
                                                 ": computed from memory or lanes without a value (" +
                                                 describe(options()) + ")");
                break;
            }
            if (k == begin) {
                first.push_back(std::move(bytes));
                continue;
            }
            for (size_t at = 0; at < bytes.size(); ++at) {
                if (bytes[at] == first[i][at]) continue;
                fail(Kind::schedule_dependent, "output " + std::to_string(i) + " differs at byte " +
                                                   std::to_string(at) + " between (" + describe(schedule(0)) +
                                                   ") and (" + describe(options()) + ")");
                break;
            }
        }
        if (findings().size() != found_before) return k;
    }
    return count;
}

}  // namespace longreach::simt
