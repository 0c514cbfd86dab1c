// Running sums of forget gates and their gradient against loops in double, bounds derived where they stand;
// what attention makes of such sums, in cases that need no gates (random ones: attention_variants_test.cpp).
#include <algorithm>

#include "kernels/attention_variants.h"

using namespace longreach;
using namespace longreach::test;

namespace {

constexpr double wide_unit = 0x1p-53;

// Sequences of gates; `spread` is the deviation of the logits.
struct Gates {
    int64_t sequences, length, heads;
    Floats u, bias, dsums, du, dbias;
    Doubles sums;
    Gates(int64_t b, int64_t t, int64_t h, double spread = 2)
        : sequences(b),
          length(t),
          heads(h),
          u(normal(b * t, h, 1, spread, 0, h + 3)),
          bias(normal(1, h, 2)),
          dsums(normal(h, b * t, 3, 1, 0, b * t + 1)),
          du(b * t, h, h + 2),
          dbias(1, h),
          sums(h, b * t, b * t + 5) {}

    void forward(Ops& ops) { ops.forget_sums(sums.tensor(), u.tensor(), bias.vector(), length, 0); }
    void backward(Ops& ops) {
        ops.forget_sums_backward(du.tensor(), dbias.vector(), dsums.tensor(), u.tensor(), bias.vector(),
                                 length);
    }
    double logit(int64_t n, int64_t h) const { return double{u.at(n, h)} + double{bias[h]}; }
    // -log(1 + e^-x) without a difference of large numbers.
    static double log_gate(double x) { return std::min(x, 0.0) - std::log1p(std::exp(-std::abs(x))); }
    double exact(int64_t h, int64_t n) const {
        double sum = 0;
        for (int64_t m = n / length * length; m <= n; ++m) sum += log_gate(logit(m, h));
        return sum;
    }
    // Terms of one sign, in any order, each good to a few roundings; the reference errs as much.
    double bound(double sum) const { return 2 * (double(length) + 8) * wide_unit * std::abs(sum); }
};

const std::vector<std::array<int64_t, 3>> shapes = {
    {1, 1, 1}, {2, 37, 3}, {1, 256, 2}, {3, 257, 1}, {1, 1000, 5}};

// Attention of two heads that share keys and values, several tiles, an odd length.
Variant base() {
    return {.batch = 1, .length = 203, .heads = 2, .kv_heads = 1, .head_dim = 16, .maxima = true};
}
template <class Prepare>
Problem executed(const Variant& c, Ops& ops, Prepare prepare) {
    Problem run(c);
    prepare(run);
    run.execute(ops);
    return run;
}

}  // namespace

TEST_CASE("sums of forget gates against double") {
    for_each_isa([](Ops& ops) {
        for (const auto& [b, t, h] : shapes)
            for (double spread : {0.1, 2.0, 60.0}) {
                Gates g(b, t, h, spread);
                g.forward(ops);
                CHECK(worst(
                          g.sums, [&](int64_t i) { return g.exact(i / (b * t), i % (b * t)); },
                          [&](int64_t i) { return g.bound(g.exact(i / (b * t), i % (b * t))); }) <= 1);
                CHECK(g.sums.guards_intact());
            }
    });
}

TEST_CASE("logits so large that an exponential overflows or vanishes") {
    for_each_isa([](Ops& ops) {
        Gates g(1, 4, 1);
        g.bias[0] = 0;
        g.dsums[0] = g.dsums[1] = g.dsums[2] = 0, g.dsums[3] = 1;
        const float logits[] = {-2000, 2000, -0.0f, -1e30f};
        for (int64_t i = 0; i < 4; ++i) g.u.at(i, 0) = logits[i];
        g.forward(ops);
        g.backward(ops);
        CHECK(g.sums[0] == -2000);
        CHECK(g.sums[1] == -2000);
        CHECK(g.sums[2] == doctest::Approx(-2000 - std::log(2.0)).epsilon(4 * wide_unit));
        CHECK(g.sums[3] == double{-1e30f});
        CHECK(g.du.at(0, 0) == 1);
        CHECK(g.du.at(1, 0) == 0);
        CHECK(g.du.at(2, 0) == 0.5f);
        CHECK(g.du.at(3, 0) == 1);
    });
}

TEST_CASE("sums continued position by position in a cache with room are those of the whole") {
    for_each_isa([](Ops& ops) {
        for (int64_t prompt : {1, 5}) {
            Gates g(3, 40, 2);
            const int64_t room = 43;
            Doubles cache(g.heads, g.sequences * room);
            for (int64_t i = 0; i < cache.count(); ++i) cache[i] = 1234;
            const auto read = [&](int64_t first, int64_t count) {  // positions of every sequence
                Floats rows(g.sequences * count, g.heads);
                for (int64_t n = 0; n < rows.rows(); ++n)
                    for (int64_t h = 0; h < g.heads; ++h)
                        rows.at(n, h) = g.u.at(n / count * g.length + first + n % count, h);
                ops.forget_sums(cache.tensor(), rows.tensor(), g.bias.vector(), count, first);
            };
            read(0, prompt);
            for (int64_t i = prompt; i < g.length; ++i) read(i, 1);
            for (int64_t h = 0; h < g.heads; ++h)
                for (int64_t b = 0; b < g.sequences; ++b)
                    for (int64_t i = 0; i < room; ++i) {
                        const double value = cache.at(h, b * room + i);
                        if (i >= g.length) {
                            CHECK(value == 1234);
                            continue;
                        }
                        const double exact = g.exact(h, b * g.length + i);
                        CHECK(std::abs(value - exact) <= g.bound(exact));
                    }
        }
    });
}

TEST_CASE("gradients of forget gates against double") {
    for_each_isa([](Ops& ops) {
        for (const auto& [b, t, h] : shapes) {
            Gates g(b, t, h);
            for (int64_t x = 0; x < h; ++x) g.dbias[x] = 0.5f;
            g.backward(ops);
            Doubles expected(b * t, h), sizes(b * t, h), total(1, h), total_size(1, h);
            for (int64_t x = 0; x < h; ++x)
                for (int64_t s = 0; s < b; ++s) {
                    double later = 0, size = 0;
                    for (int64_t i = t - 1; i >= 0; --i) {
                        const int64_t n = s * t + i;
                        later += double{g.dsums.at(x, n)};
                        size += std::abs(double{g.dsums.at(x, n)});
                        const double keeps_not = 1 / (1 + std::exp(g.logit(n, x)));
                        expected.at(n, x) = later * keeps_not;
                        sizes.at(n, x) = size * keeps_not;
                        total[x] += expected.at(n, x);
                        total_size[x] += sizes.at(n, x);
                    }
                }
            const auto wide = [&](double size) { return 4 * (double(b * t) + 8) * wide_unit * size; };
            CHECK(worst(
                      g.du, [&](int64_t i) { return expected[i]; },
                      [&](int64_t i) { return 2 * unit * std::abs(expected[i]) + wide(sizes[i]); }) <= 1);
            CHECK(worst(
                      g.dbias, [&](int64_t i) { return 0.5 + total[i]; },
                      [&](int64_t i) {
                          return 2 * unit * (std::abs(total[i]) + std::abs(0.5 + total[i])) +
                                 wide(total_size[i]);
                      }) <= 1);
            CHECK(g.du.guards_intact());
            CHECK(g.dbias.guards_intact());
        }
    });
}

TEST_CASE("forget gates: the same bits at every number of threads") {
    check_thread_independence([](Ops& ops) {
        Gates g(4, 3000, 3);
        g.forward(ops);
        g.backward(ops);
        Floats all(1, g.du.count() + g.dbias.count() + 2 * g.sums.count());
        int64_t to = 0;
        for (const Floats* x : {&g.du, &g.dbias})
            for (int64_t i = 0; i < x->count(); ++i) all[to++] = (*x)[i];
        for (int64_t i = 0; i < g.sums.count(); ++i) {
            const auto high = static_cast<float>(g.sums[i]);
            all[to++] = high;
            all[to++] = static_cast<float>(g.sums[i] - double{high});
        }
        return all;
    });
}

TEST_CASE("forget gates of shapes that do not fit are refused") {
    const auto ops = make_test_ops({.threads = 1});
    Gates g(2, 5, 3);
    const auto forward = [&](const Tensor& sums, const Tensor& bias, int64_t length, int64_t first) {
        ops->forget_sums(sums, g.u.tensor(), bias, length, first);
    };
    CHECK_THROWS_AS(forward(g.sums.tensor(), g.bias.vector(), 4, 0), Error);
    CHECK_THROWS_AS(forward(g.sums.tensor(), g.bias.vector(), 5, 1), Error);
    CHECK_THROWS_AS(forward(g.sums.tensor(), g.bias.vector().first(2), 5, 0), Error);
    CHECK_THROWS_AS(forward(g.sums.tensor().first_rows(2), g.bias.vector(), 5, 0), Error);
}

TEST_CASE("equal forget sums change no bit") {
    for_each_isa([](Ops& ops) {
        Variant c = base();
        c.forget = c.forget_gradient = true;
        const Problem run = executed(c, ops, [](Problem& p) {
            for (int64_t i = 0; i < p.forget.count(); ++i) p.forget[i] = -123456.789;
        });
        const Problem plain = executed(base(), ops, [](Problem&) {});
        CHECK(same_bits(run.o, plain.o));
        CHECK(same_bits(run.lse, plain.lse));
        CHECK(same_bits(run.maxima, plain.maxima));
        CHECK(same_bits(run.dqkv, plain.dqkv));
    });
}

TEST_CASE("forget sums that fall evenly are a bias by distance, whatever they start from") {
    // c_i = start - i / 64. The bounds are those of start 0: a start of 2^16, in f32 alone, would leave an
    // error of 2^-8 in every difference.
    for_each_isa([](Ops& ops) {
        Variant c = base();
        c.forget = c.forget_gradient = true;
        const auto of_start = [&](double start) {
            return executed(c, ops, [&](Problem& p) {
                for (int64_t i = 0; i < p.forget.count(); ++i)
                    p.forget[i] = start - 0x1p-6 * double(i % c.tokens());
            });
        };
        const Problem near = of_start(0), far = of_start(-0x1p16);
        Problem steps(c);
        for (int64_t i = 0; i < steps.forget.count(); ++i) steps.forget[i] = -0x1p-6 * double(i % c.tokens());
        const ExactInputs inputs(steps);
        const Reference exact(steps, inputs);  // its bounds know of no start
        for (const Problem* run : {&near, &far}) check_against(*run, exact);
        Variant biased = base();
        biased.gain_rows = biased.bias_rows = 1;
        check_against(executed(biased, ops,
                               [](Problem& p) {
                                   for (int64_t u = 0; u < p.entries; ++u) {
                                       p.gain[u] = 1;
                                       p.bias[u] = -0x1p-6f * static_cast<float>(p.entries - 1 - u);
                                   }
                               }),
                      exact);
    });
}

TEST_CASE("a gate that forgets everything is the start of a document") {
    for_each_isa([](Ops& ops) {
        Variant c = base(), documents = base();
        c.maxima = documents.maxima = false;  // they are of all visible keys
        c.forget = documents.documents = true;
        const Problem forgets = executed(c, ops, [](Problem& p) {
            for (int64_t i = 0; i < p.forget.count(); ++i) p.forget[i] = i % p.c.length < 77 ? 0 : -1e6;
        });
        const Problem starts = executed(documents, ops, [](Problem& p) {
            for (int64_t i = 0; i < p.c.length; ++i) p.doc_start.at(0, i) = i < 77 ? 0 : 77;
        });
        const ExactInputs inputs(starts);
        Problem reference(documents);
        for (int64_t i = 0; i < c.length; ++i) reference.doc_start.at(0, i) = i < 77 ? 0 : 77;
        const Reference exact(reference, inputs);
        check_against(forgets, exact);
        check_against(starts, exact);
    });
}
