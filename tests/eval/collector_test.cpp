// Lists of numbers from all ranks to rank 0.
#include <doctest/doctest.h>

#include "ranks/thread_comm.h"
#include "eval/collector.h"

using namespace longreach;
using namespace longreach::test;

namespace {

// What rank 0 gets where rank r has sizes[r] numbers, r and their places.
std::vector<std::vector<double>> collected(const std::vector<int64_t>& sizes, int planned_ranks) {
    std::vector<std::vector<double>> out;
    run_ranks(static_cast<int>(sizes.size()), [&](ranks::Comm& comm) {
        const auto ops = make_cpu_ops({.threads = 1});
        model::Arena arena(*ops);
        eval::Collector collector;
        arena.reserve("something", DType::f32, {1});  // a plan is never empty
        collector.plan(arena, comm.rank(), planned_ranks);
        arena.commit();
        std::vector<double> mine;
        for (int64_t i = 0; i < sizes[static_cast<size_t>(comm.rank())]; ++i)
            mine.push_back(1e6 * comm.rank() + static_cast<double>(i) + 1.0 / 3);
        // Twice: the memory is used again. The last rank alone wants to stop, and all hear of it.
        bool stop = comm.rank() == comm.ranks() - 1;
        collector.collect(*ops, comm, mine, stop);
        std::vector<std::vector<double>> all = collector.collect(*ops, comm, mine, stop);
        check(stop, "rank {} goes on", comm.rank());
        stop = false;
        collector.collect(*ops, comm, mine, stop);
        check(!stop, "rank {} stops", comm.rank());
        std::vector<double> told{1.0 * comm.rank() + 0.5, 2};
        collector.share(*ops, comm, told);
        check(told == std::vector<double>{0.5, 2}, "rank {} was told something else", comm.rank());
        check(all.empty() == (comm.rank() != 0), "{} lists on rank {}", all.size(), comm.rank());
        if (comm.rank() == 0) out = std::move(all);
    });
    return out;
}

}  // namespace

TEST_CASE("lists of any length arrive on rank 0 in the order of the ranks") {
    constexpr int64_t piece = eval::Collector::piece;
    for (const std::vector<int64_t>& sizes : {std::vector<int64_t>{5},
                                              {0, 0},
                                              {3, 0},
                                              {0, 7},
                                              {piece + 1, 2, piece},
                                              {0, piece - 1, 0, 2 * piece + 1, piece + 1}}) {
        const std::vector<std::vector<double>> all = collected(sizes, static_cast<int>(sizes.size()));
        REQUIRE(all.size() == sizes.size());
        for (size_t r = 0; r < sizes.size(); ++r) {
            REQUIRE(static_cast<int64_t>(all[r].size()) == sizes[r]);
            bool right = true;
            for (size_t i = 0; i < all[r].size(); ++i)
                right &= all[r][i] == 1e6 * static_cast<double>(r) + static_cast<double>(i) + 1.0 / 3;
            CHECK(right);
        }
    }
}

TEST_CASE("memory planned for another number of ranks is noticed before anything is sent") {
    CHECK_THROWS(collected({1, 1, 1}, 2));
}

TEST_CASE("a single rank plans no memory for the others, each of many a piece, rank 0 one for every other") {
    const auto ops = make_cpu_ops({.threads = 1});
    const auto bytes = [&](int rank, int ranks) {
        model::Arena arena(*ops);
        eval::Collector().plan(arena, rank, ranks);
        return arena.bytes();
    };
    CHECK(bytes(0, 1) == 0);
    CHECK(bytes(3, 4) == 8 * eval::Collector::piece);
    CHECK(bytes(0, 4) == 3 * 8 * eval::Collector::piece);
}
