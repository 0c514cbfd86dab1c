// Gather and scatter-add of embedding rows. A gather rounds nothing; a sum of n rows is off by at most roundings(n) of
// the sum of magnitudes, in whatever order a backend adds.
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

namespace {

// A gradient of `vocabulary` rows after the rows of `tokens` were added to it, in units of the bounds.
double error_of_sums(Ops& ops, Ints& tokens, int64_t vocabulary, int64_t width) {
    const int64_t n = tokens.count();
    Floats dtable = normal(vocabulary, width, 1), dx = normal(n, width, 2, 1, 0, width + 5);
    std::vector<double> sum(static_cast<size_t>(dtable.count())), magnitude(sum.size());
    std::vector<int64_t> terms(static_cast<size_t>(vocabulary), 1);
    const auto add = [&](int64_t row, int64_t column, float x) {
        sum[static_cast<size_t>(row * width + column)] += double{x};
        magnitude[static_cast<size_t>(row * width + column)] += std::abs(double{x});
    };
    for (int64_t i = 0; i < dtable.count(); ++i) add(i / width, i % width, dtable[i]);
    for (int64_t i = 0; i < n; ++i) {
        ++terms[static_cast<size_t>(tokens[i])];
        for (int64_t c = 0; c < width; ++c) add(tokens[i], c, dx.at(i, c));
    }
    ops.embedding_backward(dtable.tensor(), dx.tensor(), tokens.vector());
    CHECK(dtable.guards_intact());
    return worst(
        dtable, [&](int64_t i) { return sum[static_cast<size_t>(i)]; },
        [&](int64_t i) {
            const double additions = static_cast<double>(terms[static_cast<size_t>(i / width)] - 1);
            return additions * unit / (1 - additions * unit) * magnitude[static_cast<size_t>(i)];
        });
}

}  // namespace

TEST_CASE("embedding_backward adds the rows of each token") {
    for_each_isa([](Ops& ops) {
        for (int64_t width : {1, 24, 300})
            for (int64_t vocabulary : {2, 257, 1500}) {
                Ints tokens = integers(1, 500, 3, vocabulary);
                CHECK(error_of_sums(ops, tokens, vocabulary, width) <= 1);
            }
    });
}

TEST_CASE("embedding_backward: one token at most positions, others once, some in runs") {
    for_each_isa([](Ops& ops) {
        const int64_t n = 5000, vocabulary = 40000;
        for (int64_t frequent : {0, 1234, 39999}) {
            CAPTURE(frequent);
            Ints tokens = integers(1, n, 4, vocabulary), tenth = integers(1, n, 5, 10);
            for (int64_t i = 0; i < n; ++i)
                if (tenth[i] < 7) tokens[i] = static_cast<int32_t>(frequent);
            for (int64_t i = 64; i < 192; ++i) tokens[i] = 77;  // two chunks of its own
            CHECK(error_of_sums(ops, tokens, vocabulary, 8) <= 1);
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
