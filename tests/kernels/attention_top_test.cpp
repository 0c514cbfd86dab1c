// Attention to the largest scores of each query, on a CPU: against plain loops in double.
#include "kernels/decoded_variants.h"
#include "kernels/random_variants.h"

using namespace longreach;
using namespace longreach::test;

TEST_CASE(
    "random variants of attention to the largest scores, of all queries and of one at a time, against "
    "double") {
    int64_t rows = 0, undecided = 0;
    const auto check_top = [&](Variant c) {
        c.maxima = false;
        CAPTURE(c.top_k);
        CAPTURE(c.top_k_block);
        const Problem problem(c);
        const ExactInputs inputs(problem);
        const Reference exact(problem, inputs);
        rows += c.heads * c.tokens();
        undecided += exact.undecided;
        for_each_isa([&](Ops& ops) {
            Problem p(c);
            p.forward(ops);
            CHECK(exact.o.worst(p.o) <= 1);
            CHECK(exact.lse.worst(p.lse) <= 1);
            CHECK((p.o.guards_intact() && p.lse.guards_intact()));
            if (c.documents) return;
            CHECK(exact.o.worst(decoded(p, ops)) <= 1);
        });
    };
    for (uint64_t seed = 1; seed <= random_variants; ++seed) {
        CAPTURE(seed);
        Variant c = random_variant(seed);
        Draw draw(seed, 2);
        c.top_k_block = draw.chance(0.5) ? 1 + draw.below(20) : 0;
        c.top_k = std::max<int64_t>(1, c.top_k_block) * (1 + draw.below(draw.chance(0.5) ? 4 : 40));
        check_top(c);
    }
    // Several tiles of keys; collections that are cut many times; blocks that several tiles share.
    Variant c{.batch = 1, .length = brief() ? 340 : 700, .heads = 2, .kv_heads = 1, .head_dim = 12};
    for (const auto& [k, block] :
         {std::pair<int64_t, int64_t>{9, 0}, {100, 0}, {64, 16}, {300, 100}, {10, 1}})
        for (const int64_t window : {0, 450})
            for (const bool tables : {false, true}) {
                c.top_k = k, c.top_k_block = block, c.window = window;
                c.gain_rows = c.bias_rows = tables ? 1 : 0;
                c.forget = !tables && window > 0;
                check_top(c);
            }
    // Scores are normal numbers, errors about 1e-6: few rows have two so near each other.
    CHECK(undecided < rows / 100);
    check_thread_independence([&](Ops& ops) {
        Problem p(c);
        p.forward(ops);
        return p.o;
    });
}

TEST_CASE("attention to the largest scores: equal scores, the nearest count, however many; a NaN is seen") {
    for_each_isa([](Ops& ops) {
        for (const int64_t block : {0, 8}) {
            Variant c{.batch = 1, .length = 500, .heads = 1, .kv_heads = 1, .head_dim = 4};
            c.top_k = 16, c.top_k_block = block;
            Problem p(c);
            for (int64_t n = 0; n < c.length; ++n)
                for (int64_t m = 0; m < 4; ++m)
                    p.qkv.at(n, m) = 1, p.qkv.at(n, 4 + m) = -1, p.qkv.at(n, 8 + m) = float(n);
            p.forward(ops);
            for (int64_t n = 0; n < c.length; ++n) {
                const int64_t first = std::max<int64_t>(0, block > 0 ? n / block * block - block : n - 15);
                // Sums of at most 16 positions below 500 are exact, their weights equal.
                CHECK(p.o.at(n, 0) == doctest::Approx(double(first + n) / 2).epsilon(4 * unit));
                // Scores of -2 in base 2 and the largest of them times log 2: 3 + 2 roundings of up to 2.9.
                CHECK(std::abs(double{p.lse.at(0, n)} - (std::log(double(n - first + 1)) - 2)) <=
                      safety * (e_exp + 5 * 2.9 * unit + roundings(16)));
            }
            p.qkv.at(100, 4) = std::numeric_limits<float>::quiet_NaN();
            p.forward(ops);
            for (int64_t n = 100; n < c.length; ++n) CHECK(std::isnan(p.o.at(n, 0)));
            CHECK(!std::isnan(p.o.at(99, 0)));
        }
    });
}
