// Sums of values between keys and queries, biases of keys and the gradients of both against loops in double, bounds derived
// where they stand; what attention makes of such sums, in cases that need no terms (random ones:
// attention_variants_test.cpp). Programs by token: laws_test.cpp.
#include <algorithm>

#include "kernels/attention_variants.h"

using namespace longreach;
using namespace longreach::test;

namespace {

constexpr double wide_unit = 0x1p-53;

// Values and biases of sequences.
struct Sums {
    int64_t sequences, length, heads;
    Floats values, keys, dsums, dvalues;
    Doubles sums;
    Sums(int64_t b, int64_t t, int64_t h)
        : sequences(b),
          length(t),
          heads(h),
          values(normal(h, b * t, 1, 2, 0, b * t + 3)),
          keys(normal(h, b * t, 2, 2, 0, b * t + 1)),
          dsums(normal(h, b * t, 3, 1, 0, b * t + 1)),
          dvalues(h, b * t, b * t + 2),
          sums(h, b * t, b * t + 5) {}

    void forward(Ops& ops) {
        ops.running_sums(sums.tensor(), Tensor(), values.tensor(), keys.tensor(), length, 0);
    }
    void backward(Ops& ops) { ops.running_sums_backward(dvalues.tensor(), dsums.tensor(), length); }
    double exact(int64_t h, int64_t n) const {
        double sum = double{keys.at(h, n)};
        for (int64_t m = n / length * length; m <= n; ++m) sum += double{values.at(h, m)};
        return sum;
    }
    // length + 1 numbers in any order, and as many roundings of the reference.
    double bound(int64_t h, int64_t n) const {
        double size = std::abs(double{keys.at(h, n)});
        for (int64_t m = n / length * length; m <= n; ++m) size += std::abs(double{values.at(h, m)});
        return 2 * double(length + 1) * wide_unit * size;
    }
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

TEST_CASE("running sums against double, with and without biases of keys") {
    for_each_isa([](Ops& ops) {
        for (const auto& [b, t, h] : shapes) {
            Sums s(b, t, h);
            s.forward(ops);
            const int64_t n = b * t;
            CHECK(worst(
                      s.sums, [&](int64_t i) { return s.exact(i / n, i % n); },
                      [&](int64_t i) { return s.bound(i / n, i % n); }) <= 1);
            CHECK(s.sums.guards_intact());
            Doubles alone(h, n);
            ops.running_sums(alone.tensor(), Tensor(), Tensor(), s.keys.tensor(), t, 0);
            for (int64_t i = 0; i < alone.count(); ++i) CHECK(alone[i] == double{s.keys.at(i / n, i % n)});
            ops.running_sums(alone.tensor(), Tensor(), s.values.tensor(), Tensor(), t, 0);
            CHECK(worst(
                      alone,
                      [&](int64_t i) { return s.exact(i / n, i % n) - double{s.keys.at(i / n, i % n)}; },
                      [&](int64_t i) { return s.bound(i / n, i % n); }) <= 1);
        }
    });
}

TEST_CASE("sums continued position by position in a cache with room are those of the whole") {
    for_each_isa([](Ops& ops) {
        for (int64_t prompt : {1, 5}) {
            Sums s(3, 40, 2);
            const int64_t room = 43;
            Doubles cache(s.heads, s.sequences * room), total(s.heads, s.sequences);
            for (int64_t i = 0; i < cache.count(); ++i) cache[i] = 1234;
            for (int64_t i = 0; i < total.count(); ++i) total[i] = 99;  // of another generation
            const auto read = [&](int64_t first, int64_t count) {       // positions of every sequence
                Floats values(s.heads, s.sequences * count), keys(s.heads, s.sequences * count);
                for (int64_t h = 0; h < s.heads; ++h)
                    for (int64_t n = 0; n < values.cols(); ++n) {
                        const int64_t token = n / count * s.length + first + n % count;
                        values.at(h, n) = s.values.at(h, token);
                        keys.at(h, n) = s.keys.at(h, token);
                    }
                ops.running_sums(cache.tensor(), total.tensor(), values.tensor(), keys.tensor(), count,
                                 first);
            };
            read(0, prompt);
            for (int64_t i = prompt; i < s.length; ++i) read(i, 1);
            for (int64_t h = 0; h < s.heads; ++h)
                for (int64_t b = 0; b < s.sequences; ++b)
                    for (int64_t i = 0; i < room; ++i) {
                        const double value = cache.at(h, b * room + i);
                        if (i >= s.length) {
                            CHECK(value == 1234);
                            continue;
                        }
                        const int64_t token = b * s.length + i;
                        CHECK(std::abs(value - s.exact(h, token)) <= s.bound(h, token));
                    }
        }
    });
}

TEST_CASE("gradients of running sums against double") {
    for_each_isa([](Ops& ops) {
        for (const auto& [b, t, h] : shapes) {
            Sums s(b, t, h);
            s.backward(ops);
            Doubles expected(h, b * t), sizes(h, b * t);
            for (int64_t x = 0; x < h; ++x)
                for (int64_t q = 0; q < b; ++q) {
                    double later = 0, size = 0;
                    for (int64_t n = (q + 1) * t - 1; n >= q * t; --n) {
                        later += double{s.dsums.at(x, n)};
                        size += std::abs(double{s.dsums.at(x, n)});
                        expected.at(x, n) = later;
                        sizes.at(x, n) = size;
                    }
                }
            CHECK(worst(
                      s.dvalues, [&](int64_t i) { return expected[i]; },
                      [&](int64_t i) {
                          return unit * std::abs(expected[i]) + 2 * double(t) * wide_unit * sizes[i];
                      }) <= 1);
            CHECK(s.dvalues.guards_intact());
        }
    });
}

TEST_CASE("gradients at what terms read: set, added, in columns of a wider matrix") {
    for_each_isa([](Ops& ops) {
        const int64_t tokens = 301, heads = 3;
        Floats derivative = normal(heads, tokens, 4, 1, 0, tokens + 1),
               gradient = normal(heads, tokens, 5, 1, 0, tokens + 2);
        Floats dx(tokens, heads, 2 * heads + 1);
        const auto exact = [&](int64_t i) {
            return double{derivative.at(i % heads, i / heads)} * double{gradient.at(i % heads, i / heads)};
        };
        ops.term_gradient(dx.tensor(), derivative.tensor(), gradient.tensor(), Write::set);
        CHECK(worst(dx, exact, [&](int64_t i) { return unit * std::abs(exact(i)); }) <= 1);
        ops.term_gradient(dx.tensor(), derivative.tensor(), gradient.tensor(), Write::add);
        // Two products and a sum, each with one rounding.
        CHECK(worst(
                  dx, [&](int64_t i) { return 2 * exact(i); },
                  [&](int64_t i) { return 4.1 * unit * std::abs(exact(i)); }) <= 1);
        CHECK(dx.guards_intact());
    });
}

// Angles of sums in two sequences with room for more, the tokens from position 3 on; grouped heads.
struct Turned {
    static constexpr int64_t sequences = 2, length = 37, room = 45, first = 3, groups = 2, heads = 4, d = 12,
                             pairs = 5, tokens = sequences * length;
    Doubles sums{groups, sequences*room}, theta{1, pairs};
    Floats cosine{tokens, groups*pairs, groups*pairs + 1}, sine{tokens, groups*pairs};
    Floats x = normal(tokens, heads*d, 6, 1, 0, heads*d + 3), dx = normal(tokens, heads*d, 7);
    Floats dsums{groups, tokens, tokens + 2};
    explicit Turned(double largest) {
        for (int64_t i = 0; i < sums.count(); ++i) sums[i] = largest * std::sin(1.7 * double(i));
        for (int64_t m = 0; m < pairs; ++m) theta[m] = std::pow(10.0, -double(m));
    }
    double angle(int64_t n, int64_t column) const {
        return sums.at(column / pairs, n / length * room + first + n % length) * theta[column % pairs];
    }
    void forward(Ops& ops) {
        ops.token_angles(cosine.tensor(), sine.tensor(), sums.tensor(), theta.tensor(), length, first);
    }
    void backward(Ops& ops, Write write) {
        ops.token_angles_backward(dsums.tensor(), dx.tensor(), x.tensor(), theta.tensor(), d, write);
    }
    // Of the gradient at a sum: its value, and the sizes of its terms.
    std::pair<double, double> gradient(int64_t g, int64_t n) const {
        double sum = 0, size = 0;
        for (int64_t h = g * heads / groups; h < (g + 1) * heads / groups; ++h)
            for (int64_t m = 0; m < pairs; ++m) {
                const double up = double{dx.at(n, h * d + d / 2 + m)} * double{x.at(n, h * d + m)},
                             down = double{dx.at(n, h * d + m)} * double{x.at(n, h * d + d / 2 + m)};
                sum += theta[m] * (up - down);
                size += theta[m] * (std::abs(up) + std::abs(down));
            }
        return {sum, size};
    }
};

TEST_CASE("cosines and sines of sums, up to millions of radians") {
    for_each_isa([](Ops& ops) {
        for (const double largest : {1.0, 1e3, 1e6}) {
            Turned t(largest);
            t.forward(ops);
            const int64_t columns = Turned::groups * Turned::pairs;
            // The rounding to f32, and that of the angle in double.
            const auto bound = [&](int64_t) { return unit + 4 * wide_unit * largest; };
            const auto angle = [&](int64_t i) { return t.angle(i / columns, i % columns); };
            CHECK(worst(
                      t.cosine, [&](int64_t i) { return std::cos(angle(i)); }, bound) <= 1);
            CHECK(worst(
                      t.sine, [&](int64_t i) { return std::sin(angle(i)); }, bound) <= 1);
            CHECK((t.cosine.guards_intact() && t.sine.guards_intact()));
        }
    });
}

TEST_CASE("gradients at the sums that turn heads, set and added") {
    for_each_isa([](Ops& ops) {
        Turned t(1);
        for (const Write write : {Write::set, Write::add}) {
            t.backward(ops, write);
            const double times = write == Write::add ? 2 : 1;
            CHECK(worst(
                      t.dsums,
                      [&](int64_t i) {
                          return times * t.gradient(i / Turned::tokens, i % Turned::tokens).first;
                      },
                      [&](int64_t i) {
                          const auto [sum, size] = t.gradient(i / Turned::tokens, i % Turned::tokens);
                          return 3 * unit * std::abs(sum) + 100 * wide_unit * size;
                      }) <= 1);
            CHECK(t.dsums.guards_intact());
        }
    });
}

TEST_CASE("sums that are no numbers turn heads by no number") {
    for_each_isa([](Ops& ops) {
        Turned t(1);
        t.sums.at(0, Turned::first) = std::nan("");
        t.sums.at(1, Turned::first) = INFINITY;
        t.forward(ops);
        for (int64_t c = 0; c < Turned::groups * Turned::pairs; ++c) CHECK(std::isnan(t.cosine.at(0, c)));
        CHECK(std::isfinite(t.cosine.at(1, 0)));
    });
}

TEST_CASE("token angles of shapes that do not fit are refused") {
    const auto ops = make_test_ops({.threads = 1});
    Turned t(1);
    const auto forward = [&](const Tensor& sums, int64_t length, int64_t first) {
        ops->token_angles(t.cosine.tensor(), t.sine.tensor(), sums, t.theta.tensor(), length, first);
    };
    CHECK_THROWS_AS(forward(t.sums.tensor(), 36, 0), Error);
    CHECK_THROWS_AS(forward(t.sums.tensor(), Turned::length, 9), Error);  // beyond the room
    CHECK_THROWS_AS(forward(t.sums.tensor().first_rows(1), Turned::length, 0), Error);
    CHECK_THROWS_AS(ops->token_angles_backward(t.dsums.tensor(), t.dx.tensor(), t.x.tensor(),
                                               t.theta.tensor(), 10, Write::set),
                    Error);
}

TEST_CASE("terms: the same bits at every number of threads") {
    check_thread_independence([](Ops& ops) {
        Sums s(4, 3000, 3);
        s.forward(ops);
        s.backward(ops);
        Turned t(1e3);
        t.forward(ops);
        t.backward(ops, Write::set);
        Floats all(1, s.dvalues.count() + 2 * s.sums.count() + t.cosine.count() + t.dsums.count());
        int64_t to = 0;
        for (int64_t i = 0; i < t.cosine.count(); ++i) all[to++] = t.cosine[i];
        for (int64_t i = 0; i < t.dsums.count(); ++i) all[to++] = t.dsums[i];
        for (int64_t i = 0; i < s.dvalues.count(); ++i) all[to++] = s.dvalues[i];
        for (int64_t i = 0; i < s.sums.count(); ++i) {
            const auto high = static_cast<float>(s.sums[i]);
            all[to++] = high;
            all[to++] = static_cast<float>(s.sums[i] - double{high});
        }
        return all;
    });
}

TEST_CASE("running sums of shapes that do not fit are refused") {
    const auto ops = make_test_ops({.threads = 1});
    Sums s(2, 5, 3);
    const auto forward = [&](const Tensor& sums, const Tensor& total, int64_t length, int64_t first) {
        ops->running_sums(sums, total, s.values.tensor(), s.keys.tensor(), length, first);
    };
    Doubles total(3, 2), wider(3, 12);
    CHECK_THROWS_AS(forward(s.sums.tensor(), Tensor(), 4, 0), Error);
    CHECK_THROWS_AS(forward(s.sums.tensor(), total.tensor(), 5, 1), Error);
    CHECK_THROWS_AS(forward(wider.tensor(), Tensor(), 5, 1), Error);  // no total to continue
    CHECK_THROWS_AS(forward(s.sums.tensor().first_rows(2), Tensor(), 5, 0), Error);
    CHECK_THROWS_AS(forward(s.sums.tensor(), total.tensor().first_rows(2), 5, 0), Error);
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
