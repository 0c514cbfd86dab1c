// Row statistics of attention: against plain loops in double for everything AttentionSpec can ask, in cases
// whose answer is known, and for the same bits at every number of threads.
#include <algorithm>

#include "kernels/statistics_reference.h"

using namespace longreach;
using namespace longreach::test;

namespace {

const uint64_t random_variants = in_harness() ? 60 : 240;

float value(const Floats& all, const Problem& p, RowStatistic which, int64_t token, int64_t head = 0,
            int64_t plus = 0) {
    return all.at((static_cast<int64_t>(which) + plus) * p.c.heads + head, token);
}

}  // namespace

TEST_CASE("row statistics of random variants of attention against double") {
    std::vector<std::unique_ptr<Ops>> ops;
    for (const std::string& isa : instruction_sets())
        for (int threads : {1, 2}) ops.push_back(make_test_ops({.threads = threads, .isa = isa}));
    for (uint64_t seed = 1; seed <= random_variants; ++seed) {
        CAPTURE(seed);
        Ops& one = *ops[seed % ops.size()];
        Problem p(random_statistics_variant(seed, 600'000));
        p.forward(one);
        const Floats actual = statistics_of(p, one);
        const ExactInputs inputs(p);
        CHECK(StatisticsReference(p, inputs, p.lse).all.worst(actual) <= 1);
    }
}

TEST_CASE("row statistics have the same bits at every number of threads") {
    check_thread_independence([](Ops& ops) {
        Problem p({.batch = 2,
                   .length = 201,
                   .heads = 4,
                   .kv_heads = 2,
                   .head_dim = 16,
                   .documents = true,
                   .factor_rows = 4,
                   .gain_rows = 1,
                   .bias_rows = 4,
                   .sink = true});
        p.forward(ops);
        return statistics_of(p, ops);
    });
}

// A query of zeros gives every key the same weight.
TEST_CASE("equal logits: entropy log n, participation 1/n, top weight 1/n, mass of the last hundred 100/n") {
    for_each_isa([](Ops& ops) {
        Problem p({.batch = 1, .length = 300, .heads = 1, .kv_heads = 1, .head_dim = 8});
        for (int64_t i = 0; i < p.c.length; ++i)
            for (int64_t x = 0; x < p.query_cols; ++x) p.qkv.at(i, x) = 0;
        p.forward(ops);
        const Floats all = statistics_of(p, ops);
        for (int64_t i = 0; i < p.c.length; ++i) {
            using enum RowStatistic;
            const double n = double(i) + 1;
            double entropy = 0, near = 0;
            for (int64_t c = 0; c < distance_classes; ++c)
                entropy += double{value(all, p, surprise, i, 0, c)};
            for (int64_t c = 0; c < 3; ++c) near += double{value(all, p, mass, i, 0, c)};
            // Every weight is off by the lse's error of a few u and that of the exponential.
            const double off = 4 * (e_exp + roundings(120));
            CHECK(std::abs(entropy - std::log(n)) <= off * (std::log(n) + 1));
            CHECK(std::abs(double{value(all, p, participation, i)} * n - 1) <= 2 * off);
            CHECK(std::abs(std::exp(-double{value(all, p, top_weight, i)}) / n - 1) <= off);
            CHECK(std::abs(near / std::min(1.0, 100 / n) - 1) <= off);
            CHECK(std::abs(double{value(all, p, first_mass, i)} * n - 1) <= off);
            CHECK(value(all, p, pairs, i) == static_cast<float>(std::max(0.0, n - 2)));
            CHECK(value(all, p, second, i) == 0);
            CHECK(value(all, p, sink_mass, i) == 0);
        }
    });
}

TEST_CASE("a single key has weight 1 and no entropy") {
    for_each_isa([](Ops& ops) {
        Problem p({.batch = 1, .length = 70, .heads = 2, .kv_heads = 1, .head_dim = 8, .window = 1});
        p.forward(ops);
        const Floats all = statistics_of(p, ops);
        for (int64_t h = 0; h < 2; ++h)
            for (int64_t i = 0; i < p.c.length; ++i) {
                using enum RowStatistic;
                const double y = double{value(all, p, top_logit, i, h)};
                // The forward's lse is y but for its rounding, and y is computed twice.
                const double off = 8 * unit * (std::abs(y) + 1) + 2 * roundings(14) * 30;
                CHECK(std::abs(double{value(all, p, mass, i, h)} - 1) <= off);
                CHECK(std::abs(double{value(all, p, participation, i, h)} - 1) <= 2 * off);
                CHECK(std::abs(double{value(all, p, surprise, i, h)}) <= off);
                CHECK(std::abs(double{value(all, p, first_mass, i, h)} - 1) <= off);
                CHECK(value(all, p, pairs, i, h) == 0);
                CHECK(value(all, p, fourth, i, h) == 0);
            }
    });
}

// Scores around 200 whose deviations are of size 1: raw fourth powers would leave no digit of the kurtosis.
TEST_CASE("moments of scores far from zero keep their digits") {
    for_each_isa([](Ops& ops) {
        Problem p({.batch = 1, .length = 400, .heads = 1, .kv_heads = 1, .head_dim = 4});
        for (int64_t i = 0; i < p.c.length; ++i) {
            for (int64_t x = 0; x < 4; ++x) p.qkv.at(i, x) = x == 0 ? 2.0f : 0.0f;  // times the scale 1/2
            p.qkv.at(i, p.query_cols) = 200 + p.qkv.at(i, p.query_cols);
        }
        p.forward(ops);
        const Floats all = statistics_of(p, ops);
        const ExactInputs inputs(p);
        const StatisticsReference exact(p, inputs, p.lse);
        CHECK(exact.all.worst(all) <= 1);
        // One rounding of a raw fourth power would be u 200^4 = 95.
        const int64_t row = static_cast<int64_t>(RowStatistic::fourth);
        CHECK(exact.all.bound[static_cast<size_t>(row * 400 + 399)] < 2);
    });
}
