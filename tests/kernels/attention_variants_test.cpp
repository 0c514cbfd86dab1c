// Everything AttentionSpec can ask for: random combinations against plain loops in double, identities between
// variants, and the reference against differences of its own loss.
#include <algorithm>

#include "kernels/decoded_variants.h"
#include "kernels/random_variants.h"

using namespace longreach;
using namespace longreach::test;

namespace {

// From 2048 positions on a CPU's backward pass cuts the keys into segments and adds partial results. The
// harness of the CUDA kernels is slower, and they know no segments.
const int64_t long_sequence = brief() ? 200 : in_harness() ? 430 : 2060;

// Two heads that share keys and values, several tiles, an odd length.
Variant base() {
    return {.batch = 1, .length = 203, .heads = 2, .kv_heads = 1, .head_dim = 16, .maxima = true};
}

// A run of `c` after `prepare`.
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

// Every one of `all` against the same reference, and the same bits from those of one instruction set.
void check_variant(const Variant& c, const std::vector<Ops*>& all, size_t of_one_set = 1) {
    const Problem problem(c);
    const ExactInputs inputs(problem);
    const Reference exact(problem, inputs);
    Floats first(1, 1);
    for (size_t i = 0; i < all.size(); ++i) {
        CAPTURE(all[i]->describe());
        const Problem run = executed(c, *all[i]);
        check_against(run, exact);
        if (i % of_one_set == 0)
            first = run.results();
        else
            CHECK(same_bits(run.results(), first));
    }
}

void check_same_attention(const Problem& a, const Problem& b) {
    CHECK(same_bits(a.o, b.o));
    CHECK(same_bits(a.lse, b.lse));
    if (a.c.maxima && b.c.maxima) CHECK(same_bits(a.maxima, b.maxima));
    if (!a.c.far && !b.c.far) CHECK(same_bits(a.dqkv, b.dqkv));
}

}  // namespace

TEST_CASE("random variants of attention and their gradients against double") {
    // Every instruction set at 1, 2 and 3 threads, by turns; now and then all of them, with the same bits at
    // every number of threads.
    const std::vector<int> threads = in_harness() ? std::vector{1} : std::vector{1, 2, 3};
    std::vector<std::unique_ptr<Ops>> owned;
    std::vector<Ops*> ops;
    for (const std::string& isa : instruction_sets())
        for (int count : threads) {
            owned.push_back(make_test_ops({.threads = count, .isa = isa}));
            ops.push_back(owned.back().get());
        }
    for (uint64_t seed = 1; seed <= random_variants; ++seed) {
        CAPTURE(seed);
        const Variant c = random_variant(seed);
        if (seed % 10 == 0)
            check_variant(c, ops, threads.size());
        else
            check_variant(c, {ops[seed % ops.size()]});
    }
}

TEST_CASE("bf16 products: random variants against double, the same bits with one and three threads") {
    for (const char* isa : bf16_sets()) {
        CAPTURE(isa);
        const auto one = bf16_ops(1, isa), three = bf16_ops(3, isa);
        for (uint64_t seed = 1; seed <= random_variants / 2; ++seed) {
            CAPTURE(seed);
            Variant c = random_variant(seed);
            c.input = bf16_input;
            check_variant(c, {one.get(), three.get()}, 2);
        }
        Variant long_window =
            base();  // several segments and blocks of keys; the window begins at odd keys too
        long_window.length = long_sequence;
        long_window.window = 301;
        long_window.head_dim = 20;
        long_window.gain_rows = long_window.bias_rows = 2;
        long_window.gain_gradient = long_window.bias_gradient = true;
        long_window.input = bf16_input;
        check_variant(long_window, {one.get(), three.get()}, 2);
    }
}

TEST_CASE("bf16 products: a window that sees everything gives the bits of none") {
    const auto ops = bf16_ops(2);
    if (!ops) return;
    Variant c = base();
    const Problem plain = executed(c, *ops);
    c.window = c.length;
    check_same_attention(executed(c, *ops), plain);
}

TEST_CASE("random variants of attention, one query at a time, against double") {
    // The bounds of the pass over all queries hold: the same roundings per pair. That pass rescales once per
    // tile of 96 keys, this one once per 128; on CUDA devices per key, of which a warp takes a quarter.
    for (uint64_t seed = 1; seed <= random_variants / 3; ++seed) {
        CAPTURE(seed);
        Variant c = random_variant(seed);
        c.documents = false;
        for_each_isa([&](Ops& ops) {
            Problem p(c);
            decoded(p, ops);
            CHECK(Reference(p, ExactInputs(p)).o.worst(p.o) <= 1);
        });
    }
    Variant c = base();
    c.length = brief() ? 140 : 300;  // several blocks of keys
    c.gain_rows = c.bias_rows = 1;
    check_thread_independence([&](Ops& ops) {
        Problem p(c);
        return decoded(p, ops);
    });
    // More heads than take turns at the same keys, and shares of threads that begin within a group.
    c.heads = 20;
    c.kv_heads = 4;
    for_each_isa([&](Ops& ops) {
        Problem p(c);
        decoded(p, ops);
        CHECK(Reference(p, ExactInputs(p)).o.worst(p.o) <= 1);
    });
    check_thread_independence([&](Ops& ops) {
        Problem p(c);
        return decoded(p, ops);
    });
}

// One factor of each product is rounded, the key or the value, in place of both: half of Variant::input.
TEST_CASE("keys and values kept in bf16: random variants, one query at a time, against double") {
    const auto one = bf16_ops(1), three = bf16_ops(3);
    if (!one) return;
    CHECK(one->traits().cached == DType::bf16);
    for (uint64_t seed = 1; seed <= random_variants / 2; ++seed) {
        CAPTURE(seed);
        Variant c = random_variant(seed);
        c.documents = false;
        c.input = bf16_input / 2;
        Problem p(c), q(c);
        const Floats o = decoded_in_bf16(p, *one);
        CHECK(Reference(p, ExactInputs(p)).o.worst(o) <= 1);
        CHECK(same_bits(decoded_in_bf16(q, *three), o));
    }
    for (const int64_t head_dim : {16, 64, 80, 137}) {  // one, four, five vectors of channels and part of one
        Variant c = base();
        c.length = 300;  // several blocks of keys
        c.head_dim = head_dim;
        c.input = bf16_input / 2;
        Problem p(c);
        CHECK(Reference(p, ExactInputs(p)).o.worst(decoded_in_bf16(p, *one)) <= 1);
    }
}

TEST_CASE("variants over several segments of keys") {
    const Variant folded{.batch = 1,
                         .length = long_sequence,
                         .heads = 2,
                         .kv_heads = 1,
                         .head_dim = 4,
                         .window = long_sequence * 3 / 4,
                         .factor_rows = 2,
                         .gain_rows = 1,
                         .bias_rows = 2,
                         .sink = true,
                         .maxima = true,
                         .factor_gradient = true,
                         .gain_gradient = true,
                         .bias_gradient = true,
                         .sink_gradient = true};
    Variant capped = folded;
    capped.softcap = 2;
    capped.factor_rows = 1;
    capped.window = 0;
    capped.chunk = long_sequence * 5 / 8;
    capped.forget = capped.forget_gradient = true;
    Variant forgetting = folded;
    forgetting.gain_rows = forgetting.bias_rows = 0;
    forgetting.gain_gradient = forgetting.bias_gradient = false;
    forgetting.forget = forgetting.forget_gradient = true;
    for (const Variant& c : {folded, capped, forgetting}) {
        const auto ops = make_test_ops({.threads = 2});
        check_variant(c, {ops.get()});
        check_thread_independence([&](Ops& any) { return executed(c, any).results(); });
    }
}

TEST_CASE("the reference's gradients are the derivatives of its loss") {
    Variant plain = base();
    plain.length = 20;
    plain.head_dim = 4;
    plain.factor_rows = 2;
    plain.gain_rows = 2;
    plain.bias_rows = 1;
    plain.sink = true;
    Variant capped = plain;
    capped.softcap = 1.5;
    capped.factor_rows = 1;
    Variant squared = plain;
    squared.row_square = true;
    squared.window = 7;
    for (Variant* c : {&plain, &capped}) c->forget = true;
    for (const Variant& c : {plain, capped, squared}) {
        Problem problem(c);
        problem.sink[0] = 0.3f, problem.sink[1] = -0.7f;
        ExactInputs inputs(problem);
        const Reference exact(problem, inputs);
        // Central differences with step h err by h^2 times a third derivative; derivatives here are of order
        // 10, so the error is of order 1e-10, to which the rounding of a loss of order 100 by h adds 1e-13 / 1e-5.
        const double h = 1e-5, tolerance = 1e-6;
        const auto compare = [&](std::vector<double>& input, size_t at, double derivative) {
            const double before = input[at];
            input[at] = before + h;
            const double above = Reference(problem, inputs).loss;
            input[at] = before - h;
            const double below = Reference(problem, inputs).loss;
            input[at] = before;
            CHECK(std::abs((above - below) / (2 * h) - derivative) < tolerance);
        };
        for (size_t at = 0; at < inputs.qkv.size(); at += 7) compare(inputs.qkv, at, exact.dqkv.value[at]);
        for (size_t at = 0; at < inputs.sink.size(); ++at)
            compare(inputs.sink, at, exact.dsink.value[at] - double{Problem::sink_before});
        for (size_t at = 0; at < inputs.factor.size(); ++at) {
            double derivative = exact.dfactor.value[at];
            if (c.factor_rows == 1) derivative += exact.dfactor.value[at + inputs.factor.size()];
            compare(inputs.factor, at, derivative);
        }
        for (size_t at = 0; at < inputs.forget.size() && c.forget; ++at) {
            // Central differences of c are of numbers below 1e5: their rounding by h is 1e5 2^-52 / h.
            compare(inputs.forget, at, exact.dforget.value[at]);
        }
        if (c.row_square) continue;
        const size_t beyond = static_cast<size_t>(problem.entries - c.length);
        for (size_t at = beyond; at < inputs.gain.size(); ++at)
            if (at % static_cast<size_t>(problem.entries) >= beyond)
                compare(inputs.gain, at, exact.dgain.value[at]);
        for (size_t at = beyond; at < inputs.bias.size(); ++at)
            compare(inputs.bias, at, exact.dbias.value[at]);
    }
}

TEST_CASE("first visible keys of windows, chunks and documents") {
    for_each_isa([](Ops& ops) {
        const int64_t batch = 2, length = 37;
        Ints documents(batch, length);
        for (int64_t b = 0; b < batch; ++b)
            for (int64_t i = 0; i < length; ++i)
                documents.at(b, i) = static_cast<int32_t>(i < 5 + b ? 0 : i < 20 ? 5 + b : i);
        for (int64_t window : {0, 1, 2, 9, 37, 1000})
            for (int64_t chunk : {0, 1, 2, 10, 37, 1000})
                for (bool with_documents : {false, true}) {
                    Ints start(batch, length);
                    ops.row_starts(start.tensor(), with_documents ? documents.tensor() : Tensor(), length,
                                   window, chunk);
                    for (int64_t b = 0; b < batch; ++b)
                        for (int64_t i = 0; i < length; ++i) {
                            // The earliest key from which on every rule lets query i see.
                            int64_t first = 0;
                            const auto hidden = [&](int64_t j) {
                                return (window > 0 && i - j >= window) ||
                                       (chunk > 0 && j / chunk != i / chunk) ||
                                       (with_documents && j < documents.at(b, i));
                            };
                            while (hidden(first)) ++first;
                            CHECK(start.at(b, i) == first);
                        }
                    CHECK(start.guards_intact());
                }
    });
}

TEST_CASE("a sink at minus infinity is no sink, bit for bit") {
    for_each_isa([](Ops& ops) {
        Variant with = base();
        with.sink = with.sink_gradient = true;
        const Problem none = executed(base(), ops);
        const Problem sink = executed(with, ops, [](Problem& p) {
            for (int64_t h = 0; h < p.c.heads; ++h) p.sink[h] = -std::numeric_limits<float>::infinity();
        });
        check_same_attention(none, sink);
        for (int64_t h = 0; h < sink.c.heads; ++h) CHECK(sink.dsink[h] == Problem::sink_before);
    });
}

TEST_CASE("a sink far above the scores takes everything, and its gradient stays finite") {
    for_each_isa([](Ops& ops) {
        Variant c = base();
        c.sink = c.sink_gradient = true;
        const Problem run = executed(c, ops, [](Problem& p) {
            for (int64_t h = 0; h < p.c.heads; ++h) p.sink[h] = 1000;
        });
        for (int64_t i = 0; i < run.o.count(); ++i) CHECK(run.o[i] == 0);
        for (int64_t i = 0; i < run.lse.count(); ++i)
            CHECK(run.lse[i] == doctest::Approx(1000).epsilon(4 * unit));
        for (int64_t h = 0; h < c.heads; ++h) CHECK(run.dsink[h] == Problem::sink_before);
    });
}

TEST_CASE("the probabilities of a row sum to one minus the sink's share") {
    for_each_isa([](Ops& ops) {
        Variant c = base();
        c.sink = true;
        const Problem run = executed(c, ops, [](Problem& p) {
            for (int64_t n = 0; n < p.c.tokens(); ++n)
                for (int64_t m = 0; m < p.kv_cols; ++m)
                    p.qkv.at(n, p.query_cols + p.kv_cols + m) = 1;  // every value: o is the sum of its row
            p.sink[0] = 1.5f, p.sink[1] = -2.0f;
        });
        // The lse is off by its bound, which multiplies the share; o by its own.
        const ExactInputs inputs(run);
        const Reference exact(run, inputs);
        for (int64_t h = 0; h < c.heads; ++h)
            for (int64_t n = 0; n < c.tokens(); ++n) {
                const double share = std::exp(double{run.sink[h]} - double{run.lse.at(h, n)});
                const double bound =
                    safety * (exact.lse.bound[static_cast<size_t>(h * c.tokens() + n)] * share +
                              exact.o.bound[static_cast<size_t>(n * run.query_cols + h * c.head_dim)]);
                CHECK(std::abs(double{run.o.at(n, h * c.head_dim)} - (1 - share)) <= bound);
            }
    });
}

TEST_CASE("a softcap far above the scores changes nothing") {
    for_each_isa([](Ops& ops) {
        // z is below 30; tanh(z / c) differs from z / c by the relative (z / c)^2 / 3 < 1e-9, far below u.
        Variant c = base();
        c.softcap = 1e6;
        const Problem capped = executed(c, ops);
        const Problem plain(base());
        const ExactInputs inputs(plain);
        Reference expected(plain, inputs);
        const Reference bounds(capped, inputs);
        expected.o.bound = bounds.o.bound;
        expected.lse.bound = bounds.lse.bound;
        expected.dqkv.bound = bounds.dqkv.bound;
        check_against(capped, expected);
    });
}

TEST_CASE("a softcap below the scores bounds them: equal signs make equal probabilities") {
    for_each_isa([](Ops& ops) {
        // Every score is beyond 20 softcaps, where tanh is 1 in f32: each row is a plain mean.
        Variant c = base();
        c.softcap = 0.5;
        const Problem run = executed(c, ops, [](Problem& p) {
            for (int64_t n = 0; n < p.c.tokens(); ++n)
                for (int64_t m = 0; m < p.query_cols + p.kv_cols; ++m) p.qkv.at(n, m) = 3;
        });
        for (int64_t n = 0; n < c.tokens(); ++n)
            for (int64_t h = 0; h < c.heads; ++h) {
                const double expected = 0.5 + std::log(double(n) + 1);
                // e_tanh and a rounding of the cap; the exponentials and additions of the sum.
                const double bound = 0.5 * (e_tanh + 4 * unit) + (double(n) / 64 + 3) * 2 * e_exp +
                                     roundings(double(n) + 4) + 8 * unit * expected;
                CHECK(std::abs(double{run.lse.at(h, n)} - expected) <= bound);
            }
        // Nothing moves a score that is saturated.
        for (int64_t n = 0; n < c.tokens(); ++n)
            for (int64_t m = 0; m < run.query_cols + run.kv_cols; ++m) CHECK(run.dqkv.at(n, m) == 0);
    });
}

TEST_CASE("a row factor of ones changes no bit") {
    for_each_isa([](Ops& ops) {
        for (int64_t rows : {1, 2}) {
            Variant c = base();
            c.factor_rows = rows;
            c.factor_gradient = true;
            const Problem ones = executed(c, ops, [](Problem& p) {
                for (int64_t i = 0; i < p.factor.count(); ++i) p.factor[i] = 1;
            });
            check_same_attention(executed(base(), ops), ones);
        }
    });
}

TEST_CASE("where the row factor is zero a row is a plain mean, and the factor still has a gradient") {
    for_each_isa([](Ops& ops) {
        Variant c = base();
        c.factor_rows = 1;
        c.factor_gradient = true;
        const Problem run = executed(c, ops, [](Problem& p) {
            for (int64_t i = 0; i < p.factor.count(); ++i) p.factor[i] = 0;
        });
        double largest = 0;
        for (int64_t n = 0; n < c.tokens(); ++n) {
            for (int64_t h = 0; h < c.heads; ++h) {
                const double keys = double(n) + 1;
                CHECK(std::abs(double{run.lse.at(h, n)} - std::log(keys)) <=
                      safety * (roundings(keys) + (keys / 64 + 3) * e_exp + 4 * unit * std::log(keys)));
                CHECK(run.maxima.at(h, n) == -std::numeric_limits<float>::infinity());
                largest = std::max(largest, std::abs(double{run.dfactor.at(h, n)}));
            }
            for (int64_t m = 0; m < run.query_cols + run.kv_cols; ++m) CHECK(run.dqkv.at(n, m) == 0);
        }
        CHECK(largest > 0.1);
    });
}

TEST_CASE("row maxima do not depend on the row factor") {
    for_each_isa([](Ops& ops) {
        for (bool absolute : {false, true}) {
            Variant plain = base();
            plain.absolute = absolute;
            Variant c = plain;
            c.factor_rows = 2;
            const Problem run = executed(c, ops, [](Problem& p) {
                for (int64_t i = 0; i < p.factor.count(); ++i) p.factor[i] = i % 2 ? -0.37f : 2.3f;
            });
            const Problem unscaled(plain);
            const ExactInputs inputs(unscaled);
            CHECK(Reference(unscaled, inputs).maxima.worst(run.maxima) <= 1);
        }
    });
}

TEST_CASE("row squares of zero: the gain is the root of the table") {
    for_each_isa([](Ops& ops) {
        Variant c = base();
        c.gain_rows = 2;
        c.bias_rows = 1;
        Variant squared = c;
        squared.row_square = true;
        const Problem square = executed(squared, ops, [](Problem& p) {
            for (int64_t i = 0; i < p.square.count(); ++i) p.square[i] = 0;
        });
        const Problem root = executed(c, ops, [&](Problem& p) {
            for (int64_t i = 0; i < p.gain.count(); ++i)
                p.gain[i] = std::sqrt(std::max(0.0f, square.gain[i]));
        });
        check_same_attention(root, square);  // a square root is rounded correctly everywhere
    });
}

TEST_CASE("one table row for all heads equals equal rows, and its gradient is their sum") {
    for_each_isa([](Ops& ops) {
        Variant one = base();
        one.gain_rows = one.bias_rows = 1;
        one.gain_gradient = one.bias_gradient = true;
        Variant many = one;
        many.gain_rows = many.bias_rows = 2;
        const Problem shared = executed(one, ops);
        const Problem single = executed(many, ops, [&](Problem& p) {
            for (int64_t h = 0; h < 2; ++h)
                for (int64_t t = 0; t < p.entries; ++t) {
                    p.gain.at(h, t) = shared.gain.at(0, t);
                    p.bias.at(h, t) = shared.bias.at(0, t);
                }
        });
        check_same_attention(shared, single);
        const ExactInputs inputs(shared);
        const Reference exact(shared, inputs);
        for (int64_t t = shared.entries - one.length; t < shared.entries; ++t) {
            const auto at = static_cast<size_t>(t);
            // Both sums lie within the bound around the same value.
            CHECK(std::abs(double{single.dgain.at(0, t)} + double{single.dgain.at(1, t)} -
                           double{shared.dgain.at(0, t)}) <= 2 * safety * exact.dgain.bound[at]);
            CHECK(std::abs(double{single.dbias.at(0, t)} + double{single.dbias.at(1, t)} -
                           double{shared.dbias.at(0, t)}) <= 2 * safety * exact.dbias.bound[at]);
        }
    });
}

TEST_CASE("a far pair equal to the near pair changes no bit, at any border") {
    for_each_isa([](Ops& ops) {
        const Problem plain = executed(base(), ops);
        for (int64_t from : {0, 1, 15, 16, 17, 63, 64, 65, 100, 202, 203, 1000}) {
            CAPTURE(from);
            Variant c = base();
            c.far = true;
            c.far_from = from;
            check_same_attention(plain, executed(c, ops, [](Problem& p) {
                                     for (int64_t n = 0; n < p.c.tokens(); ++n)
                                         for (int64_t m = 0; m < p.far.cols(); ++m)
                                             p.far.at(n, m) = p.qkv.at(n, m);
                                 }));
        }
    });
}

TEST_CASE("far from distance zero: only the far pair counts") {
    for_each_isa([](Ops& ops) {
        Variant c = base();
        c.far = true;
        const Problem far = executed(c, ops);
        const Problem near = executed(base(), ops, [&](Problem& p) {
            for (int64_t n = 0; n < p.c.tokens(); ++n)
                for (int64_t m = 0; m < far.far.cols(); ++m) p.qkv.at(n, m) = far.far.at(n, m);
        });
        check_same_attention(near, far);
    });
}

TEST_CASE("the backward pass refuses a far pair, and tables it has no gradients for") {
    const auto ops = make_test_ops({.threads = 1});
    Variant far = base();
    far.far = true;
    Problem run(far);
    run.forward(*ops);
    CHECK_THROWS_AS(run.backward(*ops), Error);
    Variant squared = base();
    squared.gain_rows = squared.bias_rows = 1;
    squared.row_square = squared.gain_gradient = true;
    Problem other(squared);
    other.forward(*ops);
    CHECK_THROWS_AS(other.backward(*ops), Error);
}

TEST_CASE("a window or chunk as long as the sequence is full attention") {
    for_each_isa([](Ops& ops) {
        const Problem full = executed(base(), ops);
        for (int64_t length : {203, 204, 5000}) {
            Variant windowed = base(), chunked = base();
            windowed.window = chunked.chunk = length;
            check_same_attention(full, executed(windowed, ops));
            check_same_attention(full, executed(chunked, ops));
        }
    });
}

TEST_CASE("every query of a windowed row sees min(n, W) keys, the newest") {
    for_each_isa([](Ops& ops) {
        for (int64_t window : {1, 2, 31, 64, 97, 150}) {
            Variant c = base();
            c.window = window;
            // Queries of zero weigh the keys they see equally; values are positions.
            const Problem run = executed(c, ops, [](Problem& p) {
                for (int64_t n = 0; n < p.c.tokens(); ++n) {
                    for (int64_t m = 0; m < p.query_cols; ++m) p.qkv.at(n, m) = 0;
                    for (int64_t m = 0; m < p.kv_cols; ++m)
                        p.qkv.at(n, p.query_cols + p.kv_cols + m) = static_cast<float>(n);
                }
            });
            for (int64_t n = 0; n < c.tokens(); ++n) {
                const double keys = double(std::min(n + 1, window));
                const double e_sum = roundings(keys) + (keys / 64 + 3) * e_exp;
                CHECK(std::abs(double{run.lse.at(0, n)} - std::log(keys)) <=
                      safety * (e_sum + 4 * unit * std::log(keys)));
                const double mean = double(n) - (keys - 1) / 2;
                CHECK(std::abs(double{run.o.at(n, 0)} - mean) <= safety * (2 * e_sum + 4 * unit) * mean);
            }
        }
    });
}

TEST_CASE("chunks are documents of equal length") {
    for_each_isa([](Ops& ops) {
        for (int64_t chunk : {1, 7, 64, 100}) {
            Variant chunked = base(), documents = base();
            chunked.chunk = chunk;
            documents.documents = true;
            check_same_attention(executed(chunked, ops), executed(documents, ops, [&](Problem& p) {
                                     for (int64_t i = 0; i < p.c.length; ++i)
                                         p.doc_start.at(0, i) = static_cast<int32_t>(i / chunk * chunk);
                                 }));
        }
    });
}
