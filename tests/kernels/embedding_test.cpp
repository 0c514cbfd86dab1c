// Gather and scatter-add of embedding rows: no rounding is left open, so everything is compared bit by bit.
#include "kernels/support.h"

using namespace longreach;
using namespace longreach::test;

TEST_CASE("embedding copies the rows of its tokens") {
    for_each_isa([](Ops& ops) {
        for (int64_t width : {1, 24, 100, 300}) {
            Floats table = normal(257, width, 1), x(70, width, width + 3);
            Ints tokens = integers(7, 10, 2, 257);
            ops.embedding(x.tensor(), table.tensor(), tokens.tensor());
            for (int64_t n = 0; n < 70; ++n)
                for (int64_t c = 0; c < width; ++c) REQUIRE(x.at(n, c) == table.at(tokens[n], c));
            CHECK(x.guards_intact());
        }
    });
}

TEST_CASE("embedding_backward adds rows in token order") {
    for_each_isa([](Ops& ops) {
        for (int64_t width : {1, 24, 300}) {
            for (int64_t vocabulary : {2, 257}) {
                Floats dtable = normal(vocabulary, width, 1), dx = normal(500, width, 2, 1, 0, width + 5);
                Ints tokens = integers(1, 500, 3, vocabulary);
                Floats expected = dtable;
                for (int64_t n = 0; n < 500; ++n)
                    for (int64_t c = 0; c < width; ++c) expected.at(tokens[n], c) += dx.at(n, c);
                ops.embedding_backward(dtable.tensor(), dx.tensor(), tokens.vector());
                CHECK(same_bits(dtable, expected));
                CHECK(dtable.guards_intact());
            }
        }
    });
}

TEST_CASE("embedding_backward does not depend on the number of threads") {
    check_thread_independence([](Ops& ops) {
        Floats dtable(50, 300), dx = normal(400, 300, 2);
        Ints tokens = integers(1, 400, 3, 50);
        ops.embedding_backward(dtable.tensor(), dx.tensor(), tokens.vector());
        return dtable;
    });
}

TEST_CASE("a token outside the table is refused") {
    for_each_isa([](Ops& ops) {
        Floats table(10, 8), x(2, 8);
        for (int32_t bad : {-1, 10}) {
            Ints tokens(1, 2);
            tokens[1] = bad;
            CHECK_THROWS_AS(ops.embedding(x.tensor(), table.tensor(), tokens.vector()), Error);
            CHECK_THROWS_AS(ops.embedding_backward(table.tensor(), x.tensor(), tokens.vector()), Error);
        }
    });
}
