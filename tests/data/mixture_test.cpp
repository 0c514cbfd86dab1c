// Which source of a mixture gives a block, and which block.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <vector>

#include "config/loader.h"
#include "data/batch_plan.h"
#include "data/data_config.h"
#include "io/temp_dir.h"

using namespace longreach;
using longreach::test::contains;
using longreach::test::error_of;

namespace {

constexpr int64_t block = 8;

// Sources of these numbers of blocks, the second with a rest that fills none.
const std::vector<data::Source> three = {{0, 10 * 8 + 1}, {81, 100 * 8 + 5}, {886, 3 * 8 + 1}};

std::vector<data::BlockTable> cut(const std::vector<data::Source>& sources) {
    std::vector<data::BlockTable> tables;
    for (const data::Source& source : sources) tables.push_back(data::cut_stream(source, block));
    return tables;
}

struct Read {
    size_t source;
    uint64_t block;  // of the source
    bool operator==(const Read&) const = default;
};

Read read_at(const data::BatchPlan& plan, const std::vector<data::Source>& sources, uint64_t slot) {
    std::vector<data::Piece> pieces;
    plan.locate(slot * block, block, pieces);
    REQUIRE(pieces.size() == 1);
    for (size_t s = 0; s < sources.size(); ++s) {
        const data::Source& source = sources[s];
        if (pieces[0].begin < source.begin || pieces[0].begin >= source.begin + source.tokens) continue;
        const uint64_t within = pieces[0].begin - source.begin;
        REQUIRE(within % block == 0);
        REQUIRE(within + block < source.tokens);  // its last target exists
        return {s, within / block};
    }
    FAIL("a block outside of all sources");
    return {};
}

std::vector<Read> reads(const data::BatchPlan& plan, uint64_t count) {
    std::vector<Read> out;
    for (uint64_t slot = 0; slot < count; ++slot) out.push_back(read_at(plan, three, slot));
    return out;
}

data::BatchPlan plan_of(const std::vector<data::Phase>& phases, uint64_t seed = 1,
                        data::ShuffleKind shuffle = data::ShuffleKind::random) {
    return data::BatchPlan(cut(three), phases, block, seed, shuffle);
}

// Every epoch of every source visits each of its blocks once, in whatever slots it does.
void check_epochs(const std::vector<Read>& order, const data::BatchPlan& plan) {
    for (size_t s = 0; s < three.size(); ++s) {
        std::vector<uint64_t> own;
        for (const Read& r : order)
            if (r.source == s) own.push_back(r.block);
        const size_t blocks = plan.blocks(s);
        for (size_t first = 0; first + blocks <= own.size(); first += blocks) {
            std::vector<uint64_t> epoch(own.begin() + static_cast<std::ptrdiff_t>(first),
                                        own.begin() + static_cast<std::ptrdiff_t>(first + blocks));
            std::sort(epoch.begin(), epoch.end());
            for (uint64_t b = 0; b < blocks; ++b) REQUIRE(epoch[b] == b);
        }
    }
}

}  // namespace

TEST_CASE("64 slots from a multiple of 64 on have each source's share to within one") {
    const std::vector<double> weights = {0.5, 3.0, 0.21};
    const data::BatchPlan plan = plan_of({{0, weights}});
    const std::vector<Read> order = reads(plan, 3 * 4096);
    for (size_t first = 0; first < order.size(); first += 64)
        for (size_t s = 0; s < 3; ++s) {
            const auto own = std::count_if(order.begin() + static_cast<std::ptrdiff_t>(first),
                                           order.begin() + static_cast<std::ptrdiff_t>(first + 64),
                                           [&](const Read& r) { return r.source == s; });
            // The share of a group is rounded to a slot of 4096.
            REQUIRE(std::abs(static_cast<double>(own) - 64 * weights[s] / 3.71) < 1 + 64.0 / 4096);
        }
    check_epochs(order, plan);
}

TEST_CASE("a mixture is a function of the place: counts without a table equal counts one by one") {
    for (const uint64_t seed : {1u, 2u, 77u}) {
        const data::BatchPlan plan =
            plan_of({{0, {1, 1, 2}}, {1000 * block, {0, 5, 1}}, {1003 * block, {1, 0, 0}}}, seed);
        std::vector<uint64_t> given(3);
        std::vector<Read> order;
        for (uint64_t slot = 0; slot < 6000; ++slot) {
            for (size_t s = 0; s < 3; ++s)
                REQUIRE(plan.epochs(slot * block, s) ==
                        static_cast<double>(given[s]) / static_cast<double>(plan.blocks(s)));
            order.push_back(read_at(plan, three, slot));
            ++given[order.back().source];
        }
        check_epochs(order, plan);
        for (uint64_t slot = 1000; slot < 1003; ++slot) CHECK(order[slot].source != 0);
        for (uint64_t slot = 1003; slot < 6000; ++slot) REQUIRE(order[slot].source == 0);
        CHECK(order == reads(plan, 6000));
        CHECK(order != reads(plan_of({{0, {1, 1, 2}}}, seed), 6000));
    }
    CHECK(reads(plan_of({{0, {1, 1, 1}}}, 1), 64) != reads(plan_of({{0, {1, 1, 1}}}, 2), 64));
}

TEST_CASE("a phase that begins inside a block keeps contexts aligned and repeats nothing") {
    const data::BatchPlan plan = plan_of({{0, {1, 0, 0}}, {20, {0, 1, 0}}}, 5, data::ShuffleKind::none);
    std::vector<data::Piece> pieces;
    plan.locate(16, 4, pieces);
    CHECK(pieces == std::vector<data::Piece>{{16, 4}});
    plan.locate(20, 4, pieces);  // the rest of the first block of the second source
    CHECK(pieces == std::vector<data::Piece>{{81 + 4, 4}});
    plan.locate(24, 8, pieces);
    CHECK(pieces == std::vector<data::Piece>{{81 + 8, 8}});
}

TEST_CASE("one source reads what it reads without a mixture, other weights or none") {
    const std::vector<data::Source> one = {{0, 1001}};
    const data::BatchPlan plain(1001, block, 9, data::ShuffleKind::random);
    const data::BatchPlan mixed(cut(one), {{0, {0.3}}}, block, 9, data::ShuffleKind::random);
    std::vector<data::Piece> a, b;
    for (uint64_t at = 0; at < 5000; at += 24) {
        plain.locate(at, 24, a);
        mixed.locate(at, 24, b);
        REQUIRE(a == b);
    }
}

TEST_CASE("a source that is read needs a block; one that is not may be short") {
    const std::vector<data::Source> sources = {{0, 100}, {100, 8}};
    const auto plan = [&](std::vector<double> weights) {
        data::BatchPlan(cut(sources), {{0, std::move(weights)}}, block, 1, data::ShuffleKind::random);
    };
    plan({1, 0});
    CHECK(contains(error_of([&] {
                       plan({1, 1});
                   }),
                   "source 2 has 8 tokens, but a context of 8 needs at least 9"));
}

TEST_CASE("blocks of documents begin where documents do, and no block leaves its document") {
    // Documents of 20, 8, 7, 17 and 16 tokens; the last ends with its source.
    const std::vector<uint64_t> begins = {0, 20, 28, 35, 52};
    const data::BlockTable table = data::cut_documents({0, 68}, begins, block);
    CHECK(table.blocks == 2 + 1 + 0 + 2 + 1);
    const data::BatchPlan plan({table}, {{0, {1}}}, block, 1, data::ShuffleKind::none);
    std::vector<uint64_t> read;
    std::vector<data::Piece> pieces;
    for (uint64_t at = 0; at < 7 * block; at += block) {
        plan.locate(at, block, pieces);
        REQUIRE(pieces.size() == 1);
        read.push_back(pieces[0].begin);
    }
    CHECK(read == std::vector<uint64_t>{0, 8, 20, 35, 43, 52, 0});
    // Of a source that begins and ends inside the stream.
    const data::BlockTable inner = data::cut_documents({20, 32}, begins, block);
    CHECK(inner.blocks == 3);
    CHECK(data::cut_documents({28, 7}, begins, block).shortage ==
          "has no document of 9 tokens, the longest has 7");
}
