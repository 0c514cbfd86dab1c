#include "data/batch_plan.h"

#include <doctest/doctest.h>

#include <map>
#include <vector>

#include "io/temp_dir.h"

using namespace longreach;
using longreach::test::error_of;

namespace {

// How often each stream position is a token, over the run's tokens [begin, end) read
// as sequences of `length`.
std::map<uint64_t, int> visits(const data::BatchPlan& plan, uint64_t begin, uint64_t end, int64_t length) {
    std::map<uint64_t, int> count;
    std::vector<data::Piece> pieces;
    for (uint64_t at = begin; at < end; at += static_cast<uint64_t>(length)) {
        plan.locate(at, length, pieces);
        for (const data::Piece& piece : pieces)
            for (int64_t i = 0; i < piece.length; ++i) ++count[piece.begin + static_cast<uint64_t>(i)];
    }
    return count;
}

bool each_once(const std::map<uint64_t, int>& count, uint64_t size, int times = 1) {
    if (count.size() != size) return false;
    for (const auto& [position, n] : count)
        if (position >= size || n != times) return false;
    return true;
}

}  // namespace

TEST_CASE("an epoch sees every token of every block once, at any context") {
    for (const data::ShuffleKind shuffle : {data::ShuffleKind::random, data::ShuffleKind::none})
        for (const int64_t block : {1, 2, 6, 12})
            for (const uint64_t stream : {13u, 14u, 24u, 25u, 100u, 121u}) {
                const data::BatchPlan plan(stream, block, 5, shuffle);
                CHECK(plan.blocks() == (stream - 1) / static_cast<uint64_t>(block));
                const uint64_t epoch = plan.epoch_tokens();
                for (int64_t length = 1; length <= static_cast<int64_t>(epoch); ++length) {
                    if (epoch % static_cast<uint64_t>(length) != 0) continue;
                    REQUIRE(each_once(visits(plan, 0, epoch, length), epoch));
                    REQUIRE(each_once(visits(plan, 3 * epoch, 4 * epoch, length), epoch));
                }
            }
}

TEST_CASE("an epoch that ends inside a sequence, and stages of other contexts, skip and repeat nothing") {
    const data::BatchPlan plan(101, 10, 7, data::ShuffleKind::random);  // 10 blocks, 100 tokens
    CHECK(each_once(visits(plan, 0, 700, 7), 100, 7));                  // 7 epochs in sequences of 7
    // Three stages: contexts 5, 10 and 4, changing in the middle of an epoch.
    std::map<uint64_t, int> total = visits(plan, 0, 35, 5);
    for (const auto& [p, n] : visits(plan, 35, 155, 10)) total[p] += n;
    for (const auto& [p, n] : visits(plan, 155, 155 + 45, 5)) total[p] += n;
    CHECK(each_once(total, 100, 2));
}

TEST_CASE("what a sequence reads does not depend on how the run is cut into sequences") {
    const data::BatchPlan plan(1000, 64, 11, data::ShuffleKind::random);
    std::vector<uint64_t> by_token;
    std::vector<data::Piece> pieces;
    for (uint64_t at = 0; at < 3000; ++at) {
        plan.locate(at, 1, pieces);
        REQUIRE(pieces.size() == 1);
        by_token.push_back(pieces[0].begin);
    }
    for (const int64_t length : {2, 3, 16, 64, 100, 1000}) {
        for (uint64_t at = 0; at + static_cast<uint64_t>(length) <= 3000;
             at += static_cast<uint64_t>(length)) {
            plan.locate(at, length, pieces);
            uint64_t i = at;
            for (const data::Piece& piece : pieces)
                for (int64_t j = 0; j < piece.length; ++j, ++i)
                    REQUIRE(piece.begin + static_cast<uint64_t>(j) == by_token[i]);
            REQUIRE(i == at + static_cast<uint64_t>(length));
        }
    }
}

TEST_CASE("contexts that divide the block read one piece, and every piece has its target") {
    const data::BatchPlan plan(4097, 64, 3, data::ShuffleKind::random);
    std::vector<data::Piece> pieces;
    for (const int64_t length : {8, 16, 32, 64})
        for (uint64_t at = 0; at < 3 * plan.epoch_tokens(); at += static_cast<uint64_t>(length)) {
            plan.locate(at, length, pieces);
            REQUIRE(pieces.size() == 1);
            REQUIRE(pieces[0].begin + static_cast<uint64_t>(length) < 4097);
        }
}

TEST_CASE("file order is file order, and wraps to the beginning") {
    const data::BatchPlan plan(25, 8, 1, data::ShuffleKind::none);  // 3 blocks
    std::vector<data::Piece> pieces;
    plan.locate(4, 12, pieces);
    CHECK(pieces == std::vector<data::Piece>{{4, 12}});
    plan.locate(20, 8, pieces);
    CHECK(pieces == std::vector<data::Piece>{{20, 4}, {0, 4}});
    plan.locate(24, 8, pieces);
    CHECK(pieces == std::vector<data::Piece>{{0, 8}});
    CHECK(plan.epochs(36) == 1.5);
}

TEST_CASE("the order is drawn anew each epoch and from the seed") {
    const auto order = [](uint64_t seed, uint64_t epoch) {
        const data::BatchPlan plan(1025, 8, seed, data::ShuffleKind::random);
        std::vector<uint64_t> begins;
        std::vector<data::Piece> pieces;
        for (uint64_t b = 0; b < plan.blocks(); ++b) {
            plan.locate(epoch * plan.epoch_tokens() + 8 * b, 8, pieces);
            begins.push_back(pieces[0].begin);
        }
        return begins;
    };
    CHECK(order(1, 0) == order(1, 0));
    CHECK(order(1, 0) != order(1, 1));
    CHECK(order(1, 0) != order(2, 0));
    // An on-disk fact: runs made by earlier builds resume with the same data.
    const std::vector<uint64_t> first = order(1, 0);
    CHECK(std::vector<uint64_t>(first.begin(), first.begin() + 6) ==
          std::vector<uint64_t>{832, 952, 496, 656, 992, 472});
}

TEST_CASE("positions far beyond 32 bits") {
    const uint64_t stream = (uint64_t{1} << 40) + 1;
    const data::BatchPlan plan(stream, 65536, 9, data::ShuffleKind::random);
    std::vector<data::Piece> pieces;
    for (const uint64_t at :
         {uint64_t{0}, uint64_t{1} << 33, uint64_t{1} << 39, (uint64_t{1} << 62) + 65536}) {
        plan.locate(at, 65536, pieces);
        REQUIRE(pieces.size() == 1);
        CHECK(pieces[0].begin < stream - 65536);
        CHECK(pieces[0].begin % 65536 == 0);
    }
}

TEST_CASE("data shorter than one block are refused with the numbers") {
    CHECK(error_of([] { data::BatchPlan(100, 100, 1, data::ShuffleKind::random); }) ==
          "3: the data has 100 tokens, but a context of 100 needs at least 101");
    CHECK(error_of([] { data::BatchPlan(0, 1, 1, data::ShuffleKind::none); }) ==
          "3: the data has 0 tokens, but a context of 1 needs at least 2");
    CHECK(data::BatchPlan(101, 100, 1, data::ShuffleKind::random).blocks() == 1);
}
