// Stick-breaking attention against loops in double: random combinations of everything it takes, cases whose
// answer is known, and the reference against differences of its own loss.
#include <algorithm>

#include "kernels/decoded_variants.h"
#include "kernels/stick_breaking_reference.h"

using namespace longreach;
using namespace longreach::test;

namespace {

const uint64_t random_variants = brief() ? 24 : in_harness() ? 40 : 240;
const int64_t long_sequence = brief() ? 200 : in_harness() ? 430 : 2100;

Variant random_sticks(uint64_t seed) {
    Draw draw(seed, 5);
    Variant c{.sticks = true, .seed = seed};
    do {
        const int64_t sizes[] = {4, 5, 8, 16, 20, 31, 32, 64, 96, 128};
        c.head_dim = sizes[draw.below(std::size(sizes))];
        c.batch = 1 + draw.below(3);
        c.kv_heads = 1 + draw.below(3);
        c.heads = c.kv_heads * (1 + draw.below(3));
        c.length = draw.chance(0.1) ? 1 + draw.below(4) : 1 + draw.below(300);
    } while (c.tokens() * c.heads * c.length / 2 * c.head_dim > 800'000);
    const auto rows = [&] { return draw.chance(0.5) ? c.heads : 1; };
    if (draw.chance(0.4)) c.window = 1 + draw.below(c.length + 10);
    if (draw.chance(0.3)) c.chunk = 1 + draw.below(c.length + 10);
    c.documents = draw.chance(0.3);
    if (draw.chance(0.3)) c.softcap = draw.chance(0.5) ? 0.5 : 30.0;
    if (draw.chance(0.5)) c.factor_rows = rows();
    if (draw.chance(0.6)) c.gain_rows = rows(), c.bias_rows = rows();
    c.factor_gradient = draw.chance(c.factor_rows ? 0.8 : 0.1);
    c.gain_gradient = c.tables() && draw.chance(0.6);
    c.bias_gradient = c.tables() && draw.chance(0.6);
    return c;
}

Variant base() {
    return {.batch = 1, .length = 203, .heads = 2, .kv_heads = 1, .head_dim = 16, .sticks = true};
}
template <class Prepare>
Problem executed(const Variant& c, Ops& ops, Prepare prepare) {
    Problem run(c);
    prepare(run);
    run.execute(ops);
    return run;
}

}  // namespace

TEST_CASE("random variants of stick-breaking attention and their gradients against double") {
    std::vector<std::unique_ptr<Ops>> ops;
    for (const std::string& isa : instruction_sets())
        for (int threads : {1, 2, 3}) ops.push_back(make_test_ops({.threads = threads, .isa = isa}));
    for (uint64_t seed = 1; seed <= random_variants; ++seed) {
        CAPTURE(seed);
        check_sticks(executed(random_sticks(seed), *ops[seed % ops.size()], [](Problem&) {}));
    }
}

TEST_CASE("stick-breaking in bf16 products: random variants against double") {
    for (const char* isa : bf16_sets()) {
        CAPTURE(isa);
        const auto one = bf16_ops(1, isa), three = bf16_ops(3, isa);
        for (uint64_t seed = 1; seed <= random_variants / 2; ++seed) {
            CAPTURE(seed);
            Variant c = random_sticks(seed);
            c.input = bf16_input;
            const Problem run = executed(c, *one, [](Problem&) {});
            check_sticks(run);
            CHECK(same_bits(run.results(), executed(c, *three, [](Problem&) {}).results()));
        }
    }
}

TEST_CASE("stick-breaking over several segments: the same bits at every number of threads") {
    Variant c{.length = long_sequence,
              .heads = 2,
              .kv_heads = 1,
              .head_dim = 4,
              .factor_rows = 2,
              .gain_rows = 1,
              .bias_rows = 2,
              .factor_gradient = true,
              .gain_gradient = true,
              .bias_gradient = true,
              .sticks = true};
    // Scores of -4 or so: sticks of which the farthest keys still get a part.
    const auto low = [](Problem& p) {
        for (int64_t i = 0; i < p.bias.count(); ++i) p.bias[i] -= 5;
    };
    check_thread_independence([&](Ops& any) { return executed(c, any, low).results(); });
    const auto ops = make_test_ops({.threads = 2});
    check_sticks(executed(c, *ops, low));
    c.window = long_sequence * 3 / 5;
    c.softcap = 2;
    check_sticks(executed(c, *ops, low));
}

TEST_CASE("the stick reference's gradients are the derivatives of its loss") {
    Variant plain = base();
    plain.length = 20;
    plain.head_dim = 4;
    plain.factor_rows = 2;
    plain.gain_rows = 2;
    plain.bias_rows = 1;
    Variant capped = plain;
    capped.softcap = 1.5;
    capped.window = 7;
    for (const Variant& c : {plain, capped}) {
        Problem problem(c);
        ExactInputs inputs(problem);
        const StickReference exact(problem, inputs);
        const double h = 1e-5, tolerance = 1e-6;  // as in attention_variants_test.cpp
        const auto compare = [&](std::vector<double>& input, size_t at, double derivative) {
            const double before = input[at];
            input[at] = before + h;
            const double above = StickReference(problem, inputs).loss;
            input[at] = before - h;
            const double below = StickReference(problem, inputs).loss;
            input[at] = before;
            CHECK(std::abs((above - below) / (2 * h) - derivative) < tolerance);
        };
        for (size_t at = 0; at < inputs.qkv.size(); at += 7) compare(inputs.qkv, at, exact.dqkv.value[at]);
        for (size_t at = 0; at < inputs.factor.size(); ++at)
            compare(inputs.factor, at, exact.dfactor.value[at]);
        const size_t beyond = static_cast<size_t>(problem.entries - c.length);
        for (size_t at = beyond; at < inputs.gain.size(); ++at)
            if (at % static_cast<size_t>(problem.entries) >= beyond)
                compare(inputs.gain, at, exact.dgain.value[at]);
        for (size_t at = beyond; at < inputs.bias.size(); ++at)
            compare(inputs.bias, at, exact.dbias.value[at]);
    }
}

TEST_CASE("a query without an earlier key in sight gives zero and keeps the whole stick") {
    for_each_isa([](Ops& ops) {
        for (int64_t chunk : {1, 7, 64}) {
            Variant c = base();
            c.chunk = chunk;
            const Problem run = executed(c, ops, [](Problem&) {});
            for (int64_t i = 0; i < c.length; i += chunk) {
                for (int64_t m = 0; m < run.o.cols(); ++m) CHECK(run.o.at(i, m) == 0);
                CHECK(run.lse.at(0, i) == 0);
            }
        }
    });
}

TEST_CASE("weights and what is left of the stick add up to one") {
    for_each_isa([](Ops& ops) {
        const Problem run = executed(base(), ops, [](Problem& p) {
            for (int64_t n = 0; n < p.c.tokens(); ++n)
                for (int64_t m = 0; m < p.kv_cols; ++m) p.qkv.at(n, p.query_cols + p.kv_cols + m) = 1;
        });
        const ExactInputs inputs(run);
        const StickReference exact(run, inputs);
        for (int64_t n = 0; n < run.c.tokens(); ++n) {
            const double left = std::exp(double{run.lse.at(0, n)});
            const double bound = safety * (exact.o.bound[static_cast<size_t>(n * run.query_cols)] +
                                           left * exact.lse.bound[static_cast<size_t>(n)]) +
                                 2 * unit;
            CHECK(std::abs(double{run.o.at(n, 0)} + left - 1) <= bound);
        }
    });
}

TEST_CASE("a key with a score of 100 takes the stick; farther ones get nothing, not even a gradient") {
    for_each_isa([](Ops& ops) {
        Variant c = base();
        c.heads = 1;
        const Problem run = executed(c, ops, [](Problem& p) {
            for (int64_t n = 0; n < p.c.tokens(); ++n)
                for (int64_t m = 0; m < 16; ++m) {
                    p.qkv.at(n, m) = m == 0 ? 4.0f : 0.0f;
                    p.qkv.at(n, 16 + m) = m != 0 ? 0.0f : n == 50 ? 100.0f : -100.0f;
                }
        });
        // Queries after key 50 take it whole: between them every weight is below e^-100.
        for (int64_t i = 51; i < c.length; ++i)
            for (int64_t m = 0; m < 16; ++m)
                CHECK(run.o.at(i, m) == doctest::Approx(run.qkv.at(50, 32 + m)).epsilon(4e-7));
        for (int64_t j = 51; j < c.length; ++j)
            for (int64_t m = 0; m < 16; ++m) CHECK(std::abs(run.dqkv.at(j, 32 + m)) < 1e-40f);
        check_sticks(run);
    });
}

TEST_CASE("sticks that are used up: hundreds of keys with scores above zero") {
    for_each_isa([](Ops& ops) {
        Variant c = base();
        c.length = 600;
        c.gain_rows = c.bias_rows = 1;
        c.gain_gradient = c.bias_gradient = true;
        check_sticks(executed(c, ops, [](Problem& p) {
            for (int64_t i = 0; i < p.bias.count(); ++i) p.bias[i] += 2.5f;
        }));
    });
}

TEST_CASE("stick-breaking, one query at a time, against double") {
    for (uint64_t seed = 1; seed <= random_variants / 4; ++seed) {
        CAPTURE(seed);
        Variant c = random_sticks(seed);
        c.documents = false;
        for_each_isa([&](Ops& ops) {
            Problem p(c);
            decoded(p, ops);
            const ExactInputs inputs(p);
            CHECK(StickReference(p, inputs).o.worst(p.o) <= 1);
        });
    }
}

TEST_CASE("stick-breaking with keys and values kept in bf16, one query at a time, against double") {
    const auto ops = bf16_ops(2);
    if (!ops) return;
    for (uint64_t seed = 1; seed <= random_variants / 4; ++seed) {
        CAPTURE(seed);
        Variant c = random_sticks(seed);
        c.documents = false;
        c.input = bf16_input / 2;  // one factor of each product is rounded, in place of both
        Problem p(c);
        const Floats o = decoded_in_bf16(p, *ops);
        const ExactInputs inputs(p);
        CHECK(StickReference(p, inputs).o.worst(o) <= 1);
    }
}

TEST_CASE("row statistics of stick-breaking attention against double") {
    for (uint64_t seed = 1; seed <= random_variants / 4; ++seed) {
        CAPTURE(seed);
        const Variant c = random_sticks(seed);
        for_each_isa([&](Ops& ops) {
            Problem p(c);
            p.forward(ops);
            Floats all(row_statistics * c.heads, c.tokens());
            Ints watched = watched_of(c);
            ops.attention_statistics(all.tensor(), p.lse.tensor(), p.part(p.qkv, 0), p.part(p.qkv, 1),
                                     watched.tensor(), p.spec());
            CHECK(all.guards_intact());
            check_stick_statistics(p, all);
        });
    }
}

TEST_CASE("stick-breaking refuses what only a softmax has") {
    const auto ops = make_test_ops({.threads = 1});
    Variant sink = base(), square = base(), far = base(), forget = base();
    sink.sink = true;
    square.gain_rows = square.bias_rows = 1;
    square.row_square = true;
    far.far = true;
    forget.forget = true;
    for (const Variant& c : {sink, square, far, forget}) {
        Problem run(c);
        CHECK_THROWS_AS(run.forward(*ops), Error);
    }
    Variant maxima = base();
    maxima.maxima = true;
    Problem run(maxima);
    CHECK_THROWS_AS(run.forward(*ops), Error);
}
