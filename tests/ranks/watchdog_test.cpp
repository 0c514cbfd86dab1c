// The watchdog's decisions on a made-up clock; control_test.cpp has real processes.
#include "ranks/watchdog.h"

#include <doctest/doctest.h>

#include "ranks/control.h"
#include "io/temp_dir.h"

using namespace longreach;
using namespace longreach::test;

namespace {

const ranks::WatchdogOptions options{30, 10, 3, 2};

ranks::CollectiveRecord record(uint64_t sequence, uint64_t count,
                               ranks::CollectiveOp op = ranks::CollectiveOp::all_reduce) {
    return {sequence, 5, op, ranks::ElementType::bf16, count, 0, 0};
}

// One rank's heartbeats, by hand.
struct Rank {
    ranks::Watchdog& dog;
    int rank;
    ranks::CollectiveState state = {};
    void begin(uint64_t count, ranks::CollectiveOp op = ranks::CollectiveOp::all_reduce) {
        state.recent.push_back(record(++state.begun, count, op));
        state.step = 5;
    }
    void finish() { state.finished = state.begun; }
    void beat(double now) {
        dog.beat(rank, state, now);
        state.recent.clear();
    }
};

struct Run {
    ranks::Watchdog dog;
    std::vector<Rank> ranks;
    explicit Run(int count) : dog(count, options) {
        for (int i = 0; i < count; ++i) {
            dog.arrived(i, fmt::format("process {}", i), 0);
            ranks.push_back({dog, i});
        }
    }
    // All ranks that are not in `except` send a heartbeat every second from `from` to `to`.
    void beats(double from, double to, int except = -1) {
        for (double now = from; now <= to; now += 1)
            for (Rank& r : ranks)
                if (r.rank != except) r.beat(now);
    }
    std::string verdict(double now) { return dog.verdict(now).value_or("none"); }
};

}  // namespace

TEST_CASE("ranks that move, or that compute without waiting for anybody, are left alone") {
    Run run(3);
    for (int second = 1; second < 50; ++second) {
        for (Rank& r : run.ranks) {
            r.begin(100);
            if (second % 3 != 0) r.finish();
            r.beat(second);
        }
        CHECK(run.verdict(second) == "none");
    }
    for (Rank& r : run.ranks) r.finish();
    run.beats(50, 500);  // a long computation: no collective is open
    CHECK(run.verdict(500) == "none");
}

TEST_CASE("a slow rank is named with what the others wait in and what it did last") {
    Run run(3);
    for (Rank& r : run.ranks) r.begin(100), r.finish();
    for (const size_t i : {0u, 2u}) run.ranks[i].begin(2048);
    run.beats(1, 10);
    CHECK(run.verdict(10) == "none");
    run.beats(11, 12);
    CHECK(
        run.verdict(12) ==
        "no progress for 11 s: ranks 0 and 2 wait in collective 2 (all_reduce of 2048 bf16, step 5); rank 1 "
        "(process 1) has not begun it: alive, heard 0.0 s ago: slow, or busy with something else; its newest "
        "is collective 1 (all_reduce of 100 bf16, step 5), finished");
}

TEST_CASE("before the first step is done, the longer limit holds") {
    Run run(2);
    run.ranks[0].begin(1);
    run.ranks[0].state.step = 0;
    run.beats(1, 30);
    CHECK(run.verdict(30) == "none");
    run.beats(31, 32);
    CHECK(contains(run.verdict(32), "rank 1 (process 1) has not begun it: alive"));
    CHECK(contains(run.verdict(32), "it has begun no collective (step 0)"));
}

TEST_CASE("a hung rank is named as silent, in a collective or outside of one") {
    Run run(3);
    for (Rank& r : run.ranks) r.begin(100), r.finish(), r.beat(1);
    for (const size_t i : {0u, 1u}) run.ranks[i].begin(7);
    run.beats(2, 13, 2);
    CHECK(run.verdict(13) ==
          "no progress for 11 s: ranks 0 and 1 wait in collective 2 (all_reduce of 7 bf16, step 5); rank 2 "
          "(process 2) has not begun it: silent for 12 s: stopped, starved or cut off from the network; its "
          "newest is collective 1 (all_reduce of 100 bf16, step 5), finished");
    Run inside(2);
    for (Rank& r : inside.ranks) r.begin(100);
    inside.beats(1, 1);
    inside.beats(2, 12, 1);
    CHECK(inside.verdict(12) ==
          "no progress for 11 s: ranks 0 and 1 wait in collective 1 (all_reduce of 100 bf16, step 5); rank 1 "
          "(process 1) is silent for 11 s: stopped, starved or cut off from the network");
    Run outside(2);
    for (Rank& r : outside.ranks) r.begin(100), r.finish();
    outside.beats(1, 1);
    outside.beats(2, 12, 0);
    CHECK(contains(outside.verdict(12), "rank 0 (process 0) is silent for 11 s"));
}

TEST_CASE("a busy rank is waited for as long as its heartbeats come, and only it") {
    Run run(3);
    for (Rank& r : run.ranks) r.begin(100), r.finish();
    for (const size_t i : {1u, 2u}) run.ranks[i].begin(7);
    run.ranks[0].state.busy = "saving a checkpoint";
    run.beats(1, 100);
    CHECK(run.verdict(100) == "none");
    // Done, and slow afterwards: the limit begins anew.
    run.ranks[0].state.busy = "";
    run.beats(101, 110);
    CHECK(run.verdict(110) == "none");
    run.beats(111, 111);
    CHECK(contains(run.verdict(111), "no progress for 11 s: ranks 1 and 2 wait in collective 2 "));
    CHECK(contains(run.verdict(111), "; rank 0 (process 0) has not begun it: alive, heard 0.0 s ago: slow"));

    Run dying(2);
    for (Rank& r : dying.ranks) r.begin(100), r.finish();
    dying.ranks[1].begin(7);
    dying.ranks[0].state.busy = "saving a checkpoint";
    dying.beats(1, 50);
    dying.beats(51, 60, 0);
    CHECK(dying.verdict(60) == "none");
    dying.beats(61, 61, 0);
    CHECK(contains(dying.verdict(61),
                   "rank 0 (process 0) has not begun it: silent for 11 s while saving a "
                   "checkpoint: stopped, starved or cut off from the network"));

    // Rank 0 has begun what the others wait in: it is not what they wait for.
    Run other(3);
    for (const size_t i : {0u, 1u}) other.ranks[i].begin(7);
    other.ranks[0].state.busy = "saving a checkpoint";
    other.beats(1, 31);
    CHECK(contains(other.verdict(31), "; rank 2 (process 2) has not begun it: alive, heard 0.0 s ago: slow"));
}

TEST_CASE("a collective that all have begun and none finishes is the network's or a device's fault") {
    Run run(2);
    for (Rank& r : run.ranks) r.begin(100);
    run.beats(1, 12);
    CHECK(contains(run.verdict(12),
                   "which all ranks have begun and none has finished: the network or a device"));
    Run half(2);
    for (Rank& r : half.ranks) r.begin(100);
    half.ranks[0].finish();
    half.beats(1, 12);
    CHECK(half.verdict(12) ==
          "no progress for 11 s: rank 1 waits in collective 1 (all_reduce of 100 bf16, step 5), which rank 0 "
          "finished");
}

TEST_CASE("ranks that differ on a collective are told apart at once, the odd one last") {
    const struct {
        uint64_t count;
        ranks::CollectiveOp op;
        std::string message;
    } table[] = {
        {2049, ranks::CollectiveOp::all_reduce, "rank 1 calls all_reduce of 2049 bf16 (step 5)"},
        {2048, ranks::CollectiveOp::all_gather, "rank 1 calls all_gather of 2048 bf16 (step 5)"},
    };
    for (const auto& row : table) {
        Run run(4);
        for (Rank& r : run.ranks) {
            r.begin(100), r.finish();
            r.begin(r.rank == 1 ? row.count : 2048, r.rank == 1 ? row.op : ranks::CollectiveOp::all_reduce);
        }
        for (const size_t i : {0u, 1u, 2u}) run.ranks[i].beat(1);
        CHECK(run.verdict(1) == "none");  // rank 3's word could still turn 2 against 1 into 2 against 2
        run.ranks[3].beat(1.5);
        CHECK(run.verdict(1.5) ==
              "the ranks differ on collective 2: ranks 0, 2 and 3 call all_reduce of 2048 bf16 (step 5), " +
                  row.message);
    }
    Run silent(3);  // without rank 2's word after a while
    for (const size_t i : {0u, 1u}) silent.ranks[i].begin(10 + i), silent.ranks[i].beat(1);
    CHECK(silent.verdict(2.9) == "none");
    CHECK(silent.verdict(3) ==
          "the ranks differ on collective 1: rank 0 calls all_reduce of 10 bf16 (step 5), rank 1 calls "
          "all_reduce of 11 bf16 (step 5)");
}

TEST_CASE("a rank far ahead is compared when the others get there, up to the 64 that are kept") {
    Run run(2);
    for (int i = 0; i < 60; ++i) run.ranks[0].begin(static_cast<uint64_t>(i));
    run.ranks[0].beat(1);
    for (int i = 0; i < 60; ++i) {
        run.ranks[1].begin(static_cast<uint64_t>(i == 59 ? 0 : i));
        run.ranks[1].beat(1 + i * 0.01);
        CHECK((run.verdict(1 + i * 0.01) == "none") == (i < 59));
    }
}

TEST_CASE(
    "a lost connection is a death at once, a failure is told in the rank's own words, a goodbye is neither") {
    Run run(3);
    for (Rank& r : run.ranks) r.begin(100);
    run.beats(1, 1);
    run.dog.lost(1);
    CHECK(
        run.verdict(1) ==
        "rank 1 (process 1) is gone: its connection closed without a goodbye, as when a process is killed or "
        "crashes; its newest is collective 1 (all_reduce of 100 bf16, step 5), not finished");
    CHECK(run.verdict(100) == run.verdict(1));  // the first reason stays
    Run failing(3);
    failing.dog.left(2, 5, "disk full");
    failing.dog.lost(2);
    CHECK(failing.verdict(1) == "rank 2 (process 2) failed with exit code 5: disk full");
    Run leaving(3);
    leaving.dog.left(2, 0, "");
    leaving.dog.left(1, 75, "");
    leaving.dog.lost(2);
    CHECK(leaving.verdict(1) == "none");
    leaving.ranks[0].begin(9);
    for (double now = 2; now < 14; now += 1) leaving.ranks[0].beat(now);
    CHECK(contains(leaving.verdict(13), "rank 1 (process 1) has not begun it: it has ended normally"));
}

TEST_CASE("heartbeats carry what is new, and malformed ones are refused") {
    ranks::CollectiveState state{
        7, 3, 2, {record(1, 10), record(2, 20), record(3, 30)}, "saving a checkpoint"};
    const ranks::CollectiveState back = ranks::decode_beat(ranks::encode_beat(state, 1));
    CHECK(back.step == 7);
    CHECK(back.begun == 3);
    CHECK(back.finished == 2);
    CHECK(back.busy == "saving a checkpoint");
    REQUIRE(back.recent.size() == 2);
    CHECK(ranks::describe(back.recent[1]) == "collective 3 (all_reduce of 30 bf16, step 5)");
    const std::string whole = ranks::encode_beat(state, 0);
    for (size_t size = 0; size < whole.size(); ++size)
        CHECK(
            contains(error_of([&] { ranks::decode_beat(std::string_view(whole).substr(0, size)); }), "8: "));
    CHECK(contains(error_of([&] { ranks::decode_beat(whole + "x"); }), "8: "));
    state.finished = 4;
    CHECK(
        contains(error_of([&] { ranks::decode_beat(ranks::encode_beat(state, 0)); }), "contradicts itself"));
    state.finished = 2;
    state.recent[2].op = static_cast<ranks::CollectiveOp>(99);
    CHECK(contains(error_of([&] { ranks::decode_beat(ranks::encode_beat(state, 0)); }), "cannot be"));
    state.recent[2] = record(9, 1);  // beyond the newest begun
    CHECK(contains(error_of([&] { ranks::decode_beat(ranks::encode_beat(state, 0)); }), "cannot be"));
    state.recent = {record(2, 1), record(1, 1)};
    CHECK(contains(error_of([&] { ranks::decode_beat(ranks::encode_beat(state, 0)); }), "cannot be"));
    CHECK(ranks::rank_list({3}) == "rank 3");
    CHECK(ranks::rank_list({0, 1, 5}) == "ranks 0, 1 and 5");
}
