// Entmax attention against loops in double: random combinations of everything it takes, cases whose answer is known, and the
// reference against differences of its own loss.
#include <algorithm>

#include "kernels/decoded_variants.h"
#include "kernels/entmax_reference.h"
#include "kernels/random_variants.h"

using namespace longreach;
using namespace longreach::test;

namespace {

const uint64_t variants = brief() ? 30 : 240;

Variant random_entmax(uint64_t seed) {
    Variant c = random_variant(seed);
    Draw draw(seed, 7);
    c.maxima = c.absolute = false;
    const double alphas[] = {1.5, 1.5, 1.5, 1.05, 1.2, 1.75, 2};
    c.alpha = alphas[draw.below(std::size(alphas))];
    c.alpha_gradient = c.alpha < 2 && draw.chance(0.3);
    return c;
}

Variant base() {
    return {.batch = 1, .length = 203, .heads = 2, .kv_heads = 1, .head_dim = 16, .alpha = 1.5};
}
template <class Prepare>
Problem executed(const Variant& c, Ops& ops, Prepare prepare) {
    Problem run(c);
    prepare(run);
    run.execute(ops);
    return run;
}
Problem executed(const Variant& c, Ops& ops) {
    return executed(c, ops, [](Problem&) {});
}
// Queries and keys whose scores with every query are those of the keys alone: 4 x key(j) / sqrt(d).
template <class Key>
void set_scores(Problem& p, Key key) {
    for (int64_t n = 0; n < p.c.tokens(); ++n)
        for (int64_t m = 0; m < p.query_cols + p.kv_cols; ++m)
            p.qkv.at(n, m) = m % p.c.head_dim != 0 ? 0.0f
                             : m < p.query_cols    ? 1.0f
                                                   : static_cast<float>(key(n));
}

}  // namespace

TEST_CASE("random variants of entmax attention and their gradients against double") {
    std::vector<std::unique_ptr<Ops>> ops;
    for (const std::string& isa : instruction_sets())
        for (int threads : {1, 2, 3}) ops.push_back(make_test_ops({.threads = threads, .isa = isa}));
    for (uint64_t seed = 1; seed <= variants; ++seed) {
        CAPTURE(seed);
        const Variant c = random_entmax(seed);
        CAPTURE(c.alpha);
        check_entmax(executed(c, *ops[seed % ops.size()]));
    }
}

TEST_CASE(
    "entmax in bf16 products: random variants against double, the same bits with one and three threads") {
    for (const char* isa : bf16_sets()) {
        CAPTURE(isa);
        const auto one = bf16_ops(1, isa), three = bf16_ops(3, isa);
        for (uint64_t seed = 1; seed <= variants / 2; ++seed) {
            CAPTURE(seed);
            Variant c = random_entmax(seed);
            c.input = bf16_input;
            const Problem run = executed(c, *one);
            check_entmax(run);
            CHECK(same_bits(run.results(), executed(c, *three).results()));
        }
    }
}

TEST_CASE("entmax over several segments of keys: the same bits at every number of threads") {
    Variant c{.length = brief() ? 200 : 2060,
              .heads = 2,
              .kv_heads = 1,
              .head_dim = 4,
              .factor_rows = 2,
              .gain_rows = 1,
              .bias_rows = 2,
              .sink = true,
              .factor_gradient = true,
              .gain_gradient = true,
              .bias_gradient = true,
              .sink_gradient = true,
              .alpha = 1.5};
    Variant others = c;
    others.alpha = 1.3;
    others.window = c.length * 3 / 5;
    others.softcap = 2;
    others.forget = others.forget_gradient = others.alpha_gradient = true;
    for (const Variant& x : {c, others}) {
        check_thread_independence([&](Ops& any) { return executed(x, any).results(); });
        const auto ops = make_test_ops({.threads = 2});
        check_entmax(executed(x, *ops));
    }
}

TEST_CASE("the entmax reference's gradients are the derivatives of its loss") {
    Variant plain = base();
    plain.length = 20;
    plain.head_dim = 4;
    plain.factor_rows = plain.gain_rows = 2;
    plain.bias_rows = 1;
    plain.sink = plain.forget = true;
    Variant capped = plain;
    capped.softcap = 1.5;
    capped.window = 7;
    capped.alpha = 1.25;
    capped.alpha_gradient = true;
    for (const Variant& c : {plain, capped}) {
        Problem problem(c);
        problem.sink[0] = 0.3f, problem.sink[1] = -0.7f;
        ExactInputs inputs(problem);
        const EntmaxReference exact(problem, inputs);
        // As in attention_variants_test.cpp. A weight that becomes 0 between the two ends has a second derivative on one side
        // alone, which adds at most h times it.
        const double h = 1e-6, tolerance = 1e-5;
        const auto compare = [&](std::vector<double>& input, size_t at, double derivative) {
            const double before = input[at];
            input[at] = before + h;
            const double above = EntmaxReference(problem, inputs).loss;
            input[at] = before - h;
            const double below = EntmaxReference(problem, inputs).loss;
            input[at] = before;
            CHECK(std::abs((above - below) / (2 * h) - derivative) < tolerance);
        };
        for (size_t at = 0; at < inputs.qkv.size(); at += 7) compare(inputs.qkv, at, exact.dqkv.value[at]);
        for (size_t at = 0; at < inputs.sink.size(); ++at)
            compare(inputs.sink, at, exact.dsink.value[at] - double{Problem::sink_before});
        for (size_t at = 0; at < inputs.alpha_logit.size() && c.alpha_gradient; ++at)
            compare(inputs.alpha_logit, at, exact.dalpha.value[at] - double{Problem::sink_before});
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

TEST_CASE("equal scores share the weight; scores far enough below have none, not even a gradient") {
    for_each_isa([](Ops& ops) {
        for (const double alpha : {1.5, 1.1, 2.0}) {
            CAPTURE(alpha);
            Variant c = base();
            c.alpha = alpha;
            c.length = 600;
            // Odd keys score 1 / (alpha - 1) less, times a little more.
            const double gap = 4 * 1.01 / (alpha - 1);
            const Problem run = executed(c, ops, [&](Problem& p) {
                set_scores(p, [&](int64_t n) { return n % 2 == 0 ? 8 : 8 - gap; });
            });
            check_entmax(run);
            for (int64_t j = 1; j < c.length; j += 2)
                for (int64_t m = 0; m < 16; ++m) {
                    CHECK(run.dqkv.at(j, run.query_cols + m) == 0);
                    CHECK(run.dqkv.at(j, run.query_cols + run.kv_cols + m) == 0);
                }
            for (int64_t n = 0; n < 40; ++n) {
                double mean = 0;
                for (int64_t j = 0; j <= n; j += 2) mean += double{run.qkv.at(j, 48)} / double(n / 2 + 1);
                CHECK(double{run.o.at(n, 0)} == doctest::Approx(mean).epsilon(1e-4));
            }
        }
    });
}

TEST_CASE(
    "entmax: a window that sees everything gives the bits of none, and a sink at minus infinity those of no sink") {
    for_each_isa([](Ops& ops) {
        const Problem plain = executed(base(), ops);
        Variant window = base(), sink = base();
        window.window = window.length;
        sink.sink = sink.sink_gradient = true;
        const Problem none = executed(sink, ops, [](Problem& p) {
            for (int64_t h = 0; h < p.c.heads; ++h) p.sink[h] = -std::numeric_limits<float>::infinity();
        });
        for (const Problem* other : {&none}) {
            CHECK(same_bits(other->o, plain.o));
            CHECK(same_bits(other->lse, plain.lse));
            CHECK(same_bits(other->dqkv, plain.dqkv));
        }
        CHECK(same_bits(executed(window, ops).results(), plain.results()));
        for (int64_t h = 0; h < sink.heads; ++h) CHECK(none.dsink[h] == Problem::sink_before);
    });
}

TEST_CASE("a sink far above the scores takes everything") {
    for_each_isa([](Ops& ops) {
        for (const double alpha : {1.5, 1.05}) {
            Variant c = base();
            c.alpha = alpha;
            c.sink = c.sink_gradient = true;
            const Problem run = executed(c, ops, [](Problem& p) {
                for (int64_t h = 0; h < p.c.heads; ++h) p.sink[h] = 1000;
            });
            for (int64_t i = 0; i < run.o.count(); ++i) CHECK(run.o[i] == 0);
            for (int64_t i = 0; i < run.dqkv.count(); ++i) CHECK(run.dqkv[i] == 0);
            for (int64_t h = 0; h < c.heads; ++h) CHECK(run.dsink[h] == Problem::sink_before);
        }
    });
}

TEST_CASE("a score that is not a number makes its rows so, and no others") {
    for_each_isa([](Ops& ops) {
        for (const double alpha : {1.5, 1.2}) {
            Variant c = base();
            c.alpha = alpha;
            Problem run(c);
            run.qkv.at(100, run.query_cols) = std::numeric_limits<float>::quiet_NaN();
            run.forward(ops);
            for (int64_t n = 0; n < c.length; ++n) CHECK(std::isnan(run.o.at(n, 0)) == (n >= 100));
        }
    });
}

TEST_CASE("entmax, one query at a time, against double") {
    for (uint64_t seed = 1; seed <= variants / 3; ++seed) {
        CAPTURE(seed);
        Variant c = random_entmax(seed);
        c.documents = false;
        for_each_isa([&](Ops& ops) {
            Problem p(c);
            decoded(p, ops);
            CHECK(EntmaxReference(p, ExactInputs(p)).o.worst(p.o) <= 1);
        });
    }
    Variant c = base();
    c.length = brief() ? 140 : 300;  // several blocks of keys
    check_thread_independence([&](Ops& ops) {
        Problem p(c);
        return decoded(p, ops);
    });
}

TEST_CASE("entmax with keys and values kept in bf16, one query at a time, against double") {
    const auto ops = bf16_ops(2);
    if (!ops) return;
    for (uint64_t seed = 1; seed <= variants / 4; ++seed) {
        CAPTURE(seed);
        Variant c = random_entmax(seed);
        c.documents = false;
        c.input = bf16_input / 2;  // one factor of each product is rounded, in place of both
        Problem p(c);
        const Floats o = decoded_in_bf16(p, *ops);
        CHECK(EntmaxReference(p, ExactInputs(p)).o.worst(o) <= 1);
    }
}

TEST_CASE("row statistics of entmax attention against double") {
    for (uint64_t seed = 1; seed <= variants / 4; ++seed) {
        CAPTURE(seed);
        const Variant c = random_entmax(seed);
        for_each_isa([&](Ops& ops) {
            Problem p(c);
            p.forward(ops);
            Floats all(row_statistics * c.heads, c.tokens());
            Ints watched = watched_of(c);
            ops.attention_statistics(all.tensor(), p.lse.tensor(), p.part(p.qkv, 0), p.part(p.qkv, 1),
                                     watched.tensor(), p.spec());
            CHECK(all.guards_intact());
            const ExactInputs inputs(p);
            const EntmaxReference exact(p, inputs);
            for (int64_t b = 0; b < c.batch; ++b)
                for (int64_t h = 0; h < c.heads; ++h)
                    for (int64_t i = 0; i < c.length; ++i) check_entmax_row(exact, all, b, h, i);
        });
    }
}

TEST_CASE("entmax refuses what only a softmax has, and an alpha beyond its range") {
    const auto ops = make_test_ops({.threads = 1});
    Variant maxima = base(), top = base(), low = base(), high = base();
    maxima.maxima = true;
    top.top_k = 5;
    low.alpha = 1;
    high.alpha = 2.5;
    for (const Variant& c : {maxima, top, low, high}) {
        Problem run(c);
        CHECK_THROWS_AS(run.forward(*ops), Error);
    }
}
