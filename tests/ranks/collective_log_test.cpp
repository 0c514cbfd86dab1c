#include "ranks/collective_log.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>

#include "dice.h"
#include "ranks/processes.h"

using namespace longreach;
using namespace longreach::test;

namespace {

constexpr size_t header_bytes = 48, slot_bytes = 64;  // as the file has them

std::vector<uint64_t> sequences(const ranks::CollectiveLogContents& contents) {
    std::vector<uint64_t> all;
    for (const ranks::CollectiveRecord& r : contents.records) all.push_back(r.sequence);
    return all;
}

}  // namespace

TEST_CASE("the newest 64 collectives are kept, with the step and whether they finished") {
    const TempDir dir;
    const std::string path = ranks::collective_log_path(dir.path(), 2);
    CHECK(path == dir / "ranks/rank_2.log");
    ranks::CollectiveLog log(path, 2, 4);
    CHECK(ranks::read_collective_log(path).records.empty());
    for (uint64_t i = 1; i <= 100; ++i) {
        log.set_step(static_cast<int64_t>(i / 10));
        CHECK(log.begin(ranks::CollectiveOp::all_reduce, ranks::ElementType::bf16, 1000 + i) == i);
        if (i != 98) log.finish(i);
    }
    const ranks::CollectiveState state = log.state();
    CHECK(state.step == 10);
    CHECK(state.begun == 100);
    CHECK(state.finished == 97);  // 98 has not, whatever came later
    const ranks::CollectiveLogContents contents = ranks::read_collective_log(path);
    CHECK(contents.rank == 2);
    CHECK(contents.ranks == 4);
    CHECK(contents.process == ::getpid());
    CHECK(contents.torn == 0);
    REQUIRE(contents.records.size() == 64);
    REQUIRE(state.recent.size() == 64);
    for (size_t i = 0; i < 64; ++i) {
        const ranks::CollectiveRecord& r = contents.records[i];
        CHECK(r.sequence == 37 + i);
        CHECK(state.recent[i].sequence == r.sequence);
        CHECK(r.count == 1000 + r.sequence);
        CHECK(r.step == static_cast<int64_t>(r.sequence / 10));
        CHECK((r.finished_ns == 0) == (r.sequence == 98));
        CHECK((r.finished_ns == 0 || r.finished_ns >= r.begun_ns));
    }
    CHECK(ranks::describe(contents.records[0]) == "collective 37 (all_reduce of 1037 bf16, step 3)");
    log.finish(98);
    CHECK(log.state().finished == 100);
    CHECK(contains(error_of([&] { log.finish(98); }), "collective 98 is not one that is under way"));
    CHECK(contains(error_of([&] { log.finish(101); }), "collective 101 is not one that is under way"));
}

TEST_CASE("what a killed rank wrote is there to read, and stays when the rank starts again") {
    const TempDir dir;
    const std::string path = ranks::collective_log_path(dir.path(), 0);
    Child child([&] {
        ranks::CollectiveLog log(path, 0, 2);
        log.finish(log.begin(ranks::CollectiveOp::broadcast, ranks::ElementType::f32, 5));
        log.begin(ranks::CollectiveOp::barrier, ranks::ElementType::u8, 0);
        ::raise(SIGKILL);
        return std::string();
    });
    CHECK(child.wait() == -SIGKILL);
    const ranks::CollectiveLogContents contents = ranks::read_collective_log(path);
    REQUIRE(sequences(contents) == std::vector<uint64_t>{1, 2});
    CHECK(contents.records[0].finished_ns > 0);
    CHECK(contents.records[1].finished_ns == 0);
    CHECK(ranks::describe(contents.records[1]) == "collective 2 (barrier, step 0)");
    const ranks::CollectiveLog again(path, 0, 2);
    CHECK(ranks::read_collective_log(path).records.empty());
    CHECK(sequences(ranks::read_collective_log(path + ".previous")) == std::vector<uint64_t>{1, 2});
}

TEST_CASE("a rank killed at any moment leaves whole records, at most one of them torn") {
    const TempDir dir;
    for (int round = 0; round < 20; ++round) {
        const std::string path = dir / fmt::format("{}.log", round);
        Child child([&] {
            ranks::CollectiveLog log(path, 0, 1);
            for (uint64_t i = 1;; ++i) {
                log.set_step(static_cast<int64_t>(i * 3));
                log.finish(log.begin(ranks::CollectiveOp::all_gather, ranks::ElementType::i32, i * 7));
            }
            return std::string();
        });
        // A living rank's file can be read too; here a second slot may be torn, overtaken between the reads.
        REQUIRE(wait_until(
            [&] { return ::access(path.c_str(), F_OK) == 0 && std::filesystem::file_size(path) > 0; }));
        sleep_for(0.002 * round);
        child.signal(SIGKILL);
        child.wait();
        std::string problem;
        ranks::CollectiveLogContents contents;
        problem = error_of([&] { contents = ranks::read_collective_log(path); });
        if (problem != "no error") continue;  // killed before the header was complete
        CHECK(contents.torn <= 1);
        for (size_t i = 0; i < contents.records.size(); ++i) {
            const ranks::CollectiveRecord& r = contents.records[i];
            CHECK(r.count == r.sequence * 7);
            CHECK(r.step == static_cast<int64_t>(r.sequence * 3));
            if (i > 0) CHECK(r.sequence == contents.records[i - 1].sequence + 1);
        }
    }
}

TEST_CASE("any damaged byte costs one record or the file, and no reader trusts it") {
    const TempDir dir;
    const std::string path = dir / "rank_0.log", damaged = dir / "damaged.log";
    {
        ranks::CollectiveLog log(path, 0, 2);
        for (uint64_t i = 1; i <= 70; ++i)
            log.finish(log.begin(ranks::CollectiveOp::send, ranks::ElementType::f64, i));
    }
    const std::string whole = get(path);
    REQUIRE(whole.size() == header_bytes + 64 * slot_bytes);
    Dice dice(7);
    for (size_t at = 0; at < whole.size(); ++at) {
        std::string bytes = whole;
        bytes[at] = static_cast<char>(bytes[at] ^ (1 << dice.below(8)));
        put(damaged, bytes);
        if (at < header_bytes) {
            CHECK(contains(error_of([&] { ranks::read_collective_log(damaged); }), "3: "));
            continue;
        }
        const ranks::CollectiveLogContents contents = ranks::read_collective_log(damaged);
        // The last 16 bytes of a slot are the record's end: without it the record counts as unfinished.
        const bool end = (at - header_bytes) % slot_bytes >= 48;
        CHECK(contents.torn == (end ? 0 : 1));
        CHECK(contents.records.size() == (end ? 64 : 63));
        int unfinished = 0;
        for (const ranks::CollectiveRecord& r : contents.records) unfinished += r.finished_ns == 0 ? 1 : 0;
        CHECK(unfinished == (end ? 1 : 0));
    }
    // Two slots that changed places are whole but not where they belong.
    std::string swapped = whole;
    std::swap_ranges(swapped.begin() + header_bytes, swapped.begin() + header_bytes + slot_bytes,
                     swapped.begin() + header_bytes + slot_bytes);
    put(damaged, swapped);
    CHECK(ranks::read_collective_log(damaged).torn == 2);
    for (const size_t size : {size_t{0}, size_t{1}, header_bytes, whole.size() - 1}) {
        put(damaged, whole.substr(0, size));
        CHECK(contains(error_of([&] { ranks::read_collective_log(damaged); }), "3: "));
    }
    put(damaged, whole + "x");
    CHECK(contains(error_of([&] { ranks::read_collective_log(damaged); }), "3: "));
}
