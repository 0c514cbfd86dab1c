// Stick-breaking attention against loops in double: random combinations of everything it takes, cases whose
// answer is known, and the reference against differences of its own loss.
//
// Bounds, with e_y of a score as attention_variants.h derives it. The logarithms of a break, log s(y) and
// log(1 - s(y)), move by (1 - s) e_y and s e_y and are good to e_log (an exponential and a logarithm,
// relative to log(1 + e^-|y|)) and 4 u of their size. A weight's exponent is one of the first and a sum
// of the second, which is rounded once per key of a tile and once per tile: fewer than the keys.
// Everything behind the weights follows from the formulas at the top of
// kernels/cpu/stick_breaking_backward.cpp term by term.
#include <algorithm>

#include "kernels/attention_variants.h"

using namespace longreach;
using namespace longreach::test;

namespace {

constexpr double e_log = 8e-7;

struct StickReference {
    using Output = Reference::Output;
    struct Weight {
        Reference::Pair pair;
        double share, e_share;  // P
        double sigma, e_sigma;  // s(y)
    };

    const Problem& p;
    const Variant& c;
    const ExactInputs& in;
    Output o, lse, dqkv, dfactor, dgain, dbias;
    double loss = 0;

    StickReference(const Problem& problem, const ExactInputs& inputs)
        : p(problem),
          c(problem.c),
          in(inputs),
          o(problem.o.count()),
          lse(problem.lse.count()),
          dqkv(problem.dqkv.count()),
          dfactor(problem.dfactor.count()),
          dgain(problem.dgain.count()),
          dbias(problem.dbias.count()) {
        for (int64_t b = 0; b < c.batch; ++b)
            for (int64_t h = 0; h < c.heads; ++h)
                for (int64_t i = 0; i < c.length; ++i) add_row(b, h, i);
        for (Output* table : {&dgain, &dbias})
            for (size_t at = 0; at < table->value.size(); ++at)
                if (static_cast<int64_t>(at) % p.entries < p.entries - c.length)
                    table->value[at] = double{Problem::untouched};
    }
    static double at(const std::vector<double>& x, int64_t i) { return x[static_cast<size_t>(i)]; }

    // From the nearest key on; `rest` and its error: what is left, as -log.
    std::vector<Weight> weights(int64_t b, int64_t h, int64_t i, double& rest, double& e_rest) const {
        std::vector<Weight> all;
        const int64_t first = first_visible(p, b, i);
        const double additions = roundings(double(i - first) + 4);
        double errors = 0;
        rest = e_rest = 0;
        for (int64_t j = i - 1; j >= first; --j) {
            Weight w{pair_of(p, in, b, h, i, j), 0, 0, 0, 0};
            const double y = w.pair.y, r = std::log1p(std::exp(-std::abs(y)));
            w.sigma = 1 / (1 + std::exp(-y));
            w.e_sigma = w.sigma * ((1 - w.sigma) * w.pair.e_y + e_exp + 6 * unit);
            const double taken = std::min(y, 0.0) - r, left = std::max(y, 0.0) + r;
            const double e_taken = (1 - w.sigma) * w.pair.e_y + e_log * r + 4 * unit * std::abs(taken);
            w.share = std::exp(taken - rest);
            w.e_share =
                w.share * (e_taken + errors + additions * rest + 4 * unit * (std::abs(taken) + rest) + e_exp);
            all.push_back(w);
            rest += left;
            errors += w.sigma * w.pair.e_y + e_log * r + 4 * unit * left;
        }
        e_rest = errors + (additions + 4 * unit) * rest;
        return all;
    }

    void add_row(int64_t b, int64_t h, int64_t i) {
        const int64_t d = c.head_dim, n = b * c.length + i, group = c.heads / c.kv_heads, g = h / group;
        const int64_t columns = p.dqkv.cols(), q_at = h * d, k_at = p.query_cols + g * d,
                      v_at = k_at + p.kv_cols;
        const double scale = static_cast<float>(1 / std::sqrt(double(d)));
        const double f = c.factor_rows ? at(in.factor, (c.factor_rows == 1 ? 0 : h) * c.tokens() + n) : 1;
        const auto row_of = [&](int64_t j) { return (b * c.length + j) * columns; };
        double rest = 0, e_rest = 0;
        const std::vector<Weight> all = weights(b, h, i, rest, e_rest);
        const double count = double(all.size());
        lse.add(h * c.tokens() + n, -rest, e_rest);

        double delta = 0, e_delta = 0;
        for (int64_t m = 0; m < d; ++m) {
            double value = 0, e_value = 0;
            for (size_t x = 0; x < all.size(); ++x) {
                const double v = at(in.qkv, row_of(i - 1 - int64_t(x)) + v_at + m);
                value += all[x].share * v;
                e_value += (all[x].e_share + roundings(count + 2) * all[x].share) * std::abs(v);
            }
            o.add(n * p.query_cols + q_at + m, value, e_value);
            const double dout = at(in.dout, n * p.query_cols + q_at + m);
            delta += dout * value;
            e_delta += std::abs(dout) * (safety * e_value + roundings(double(d)) * std::abs(value));
        }
        loss += delta;

        const double e_sums = roundings(double(c.length * group) + 8);
        const double e_table_sums = roundings(double(c.tokens() * c.heads) + 20);
        double given = 0, e_given = 0, given_size = 0;
        for (size_t x = 0; x < all.size(); ++x) {
            const int64_t j = i - 1 - int64_t(x);
            const Weight& w = all[x];
            double dp = 0, magnitude = 0;
            for (int64_t m = 0; m < d; ++m) {
                const double product =
                    at(in.dout, n * p.query_cols + q_at + m) * at(in.qkv, row_of(j) + v_at + m);
                dp += product;
                magnitude += std::abs(product);
            }
            const double dw = w.share * dp;
            const double e_dw = w.e_share * std::abs(dp) + w.share * roundings(double(d) + 2) * magnitude;
            const double others = delta - given;
            const double e_others = e_delta + e_given + roundings(count + 2) * (std::abs(delta) + given_size);
            const double dl = dw - w.sigma * others;
            const double e_dl = e_dw + w.sigma * e_others + w.e_sigma * std::abs(others) +
                                4 * unit * (std::abs(dw) + w.sigma * std::abs(others));
            given += dw;
            given_size += std::abs(dw);
            e_given += e_dw;

            const Reference::Pair& s = w.pair;
            const double without = dl * s.gain * s.slope * scale;
            const double e_without =
                scale * s.gain * (e_dl * s.slope + std::abs(dl) * (s.e_slope + 8 * unit * s.slope));
            const double ds = f * without, e_ds = std::abs(f) * e_without;
            const auto put = [&](int64_t row, int64_t column, double weight, double e_weight, double of) {
                dqkv.add(row_of(row) + column, weight * of,
                         (e_weight + e_sums * std::abs(weight)) * std::abs(of));
            };
            for (int64_t m = 0; m < d; ++m) {
                put(i, q_at + m, ds, e_ds, at(in.qkv, row_of(j) + k_at + m));
                put(j, k_at + m, ds, e_ds, at(in.qkv, row_of(i) + q_at + m));
                put(j, v_at + m, w.share, w.e_share, at(in.dout, n * p.query_cols + q_at + m));
            }
            const double df = dl * s.gain * s.capped;
            const double e_df =
                c.softcap > 0
                    ? s.gain * (e_dl * std::abs(s.capped) + std::abs(dl) * s.e_capped) +
                          (e_sums + 8 * unit) * std::abs(df)
                    : (e_without + (e_sums + roundings(double(d) + 4)) * std::abs(without)) * s.magnitude;
            dfactor.add(h * c.tokens() + n, df, e_df);
            if (!c.tables()) continue;
            const auto entry = [&](int64_t rows) {
                return (rows == 1 ? 0 : h) * p.entries + p.entries - 1 - (i - j);
            };
            dgain.add(
                entry(c.gain_rows), dl * s.score,
                e_dl * std::abs(s.score) + std::abs(dl) * s.e_score + e_table_sums * std::abs(dl * s.score));
            dbias.add(entry(c.bias_rows), dl, e_dl + e_table_sums * std::abs(dl));
        }
    }
};

void check_sticks(const Problem& run) {
    const ExactInputs inputs(run);
    StickReference exact(run, inputs);
    // A stick below 2^-150 is used up; how far below is not said.
    for (int64_t n = 0; n < run.lse.count(); ++n) {
        double& value = exact.lse.value[static_cast<size_t>(n)];
        if (value > -103) continue;
        CHECK(run.lse[n] <= -103);
        value = double{run.lse[n]};
    }
    CHECK(exact.o.worst(run.o) <= 1);
    CHECK(exact.lse.worst(run.lse) <= 1);
    CHECK(exact.dqkv.worst(run.dqkv) <= 1);
    if (run.c.factor_gradient) CHECK(exact.dfactor.worst(run.dfactor) <= 1);
    if (run.c.gain_gradient) CHECK(exact.dgain.worst(run.dgain) <= 1);
    if (run.c.bias_gradient) CHECK(exact.dbias.worst(run.dbias) <= 1);
}

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
        for (int threads : {1, 2, 3}) ops.push_back(make_cpu_ops({.threads = threads, .isa = isa}));
    for (uint64_t seed = 1; seed <= 240; ++seed) {
        CAPTURE(seed);
        check_sticks(executed(random_sticks(seed), *ops[seed % ops.size()], [](Problem&) {}));
    }
}

TEST_CASE("stick-breaking over several segments: the same bits at every number of threads") {
    Variant c{.length = 2100,
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
    const auto ops = make_cpu_ops({.threads = 2});
    check_sticks(executed(c, *ops, low));
    c.window = 1300;
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
        // Queries behind key 50 take it whole: between them every weight is below e^-100.
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
    for (uint64_t seed = 1; seed <= 60; ++seed) {
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

TEST_CASE("row statistics of stick-breaking attention against double") {
    for (uint64_t seed = 1; seed <= 60; ++seed) {
        CAPTURE(seed);
        const Variant c = random_sticks(seed);
        for_each_isa([&](Ops& ops) {
            Problem p(c);
            p.forward(ops);
            Floats all(row_statistics * c.heads, c.tokens());
            ops.attention_statistics(all.tensor(), p.lse.tensor(), p.part(p.qkv, 0), p.part(p.qkv, 1),
                                     Tensor(), p.spec());
            const ExactInputs inputs(p);
            const StickReference exact(p, inputs);
            Reference::Output expected(all.count());
            using enum RowStatistic;
            for (int64_t b = 0; b < c.batch; ++b)
                for (int64_t h = 0; h < c.heads; ++h)
                    for (int64_t i = 0; i < c.length; ++i) {
                        const auto put = [&](RowStatistic which, int64_t plus, double value, double bound) {
                            expected.add(((static_cast<int64_t>(which) + plus) * c.heads + h) * c.tokens() +
                                             b * c.length + i,
                                         value, bound);
                        };
                        double rest = 0, e_rest = 0;
                        const auto weights = exact.weights(b, h, i, rest, e_rest);
                        const double rounded = roundings(102);
                        constexpr double infinity = std::numeric_limits<double>::infinity();
                        double largest = -infinity, runner_up = -infinity, e_largest = 0;
                        for (size_t x = 0; x < weights.size(); ++x) {
                            const auto& w = weights[x];
                            const int64_t t = int64_t(x) + 1;
                            int64_t k = 0;
                            while (t >= distance_class_begin[static_cast<size_t>(k) + 1]) ++k;
                            const double log = w.share > 0 ? std::log(w.share) : 0;
                            const double e_log_share = w.share > 0 ? w.e_share / w.share : 0;
                            if (w.share > 0) {
                                runner_up = std::max(runner_up, std::min(largest, log));
                                largest = std::max(largest, log);
                                e_largest = std::max(e_largest, e_log_share + 4 * unit * std::abs(log));
                            }
                            put(mass, k, w.share, w.e_share + rounded * w.share);
                            put(surprise, k, -w.share * log,
                                w.share * (std::abs(log) * (e_log_share + rounded) + e_log_share));
                            put(participation, 0, w.share * w.share,
                                w.share * (2 * w.e_share + rounded * w.share));
                            if (x + 1 == weights.size())
                                put(first_mass, 0, w.share, w.e_share + unit * w.share);
                        }
                        put(sink_mass, 0, std::exp(-rest),
                            std::exp(-rest) * (e_rest + e_exp + 4 * unit * rest));
                        for (const auto& [which, log] :
                             {std::pair(top_weight, largest), std::pair(second_weight, runner_up)}) {
                            const double got =
                                all.at(static_cast<int64_t>(which) * c.heads + h, b * c.length + i);
                            if (log == -infinity)
                                CHECK(got == log);
                            else if (log > -60)  // below, the kernels' logarithms are of nothing
                                CHECK(std::abs(got - log) <= safety * e_largest + unit);
                        }
                        for (RowStatistic which : {mass, surprise, participation, first_mass, sink_mass}) {
                            const int64_t classes =
                                which == mass || which == surprise ? int64_t{distance_classes} : 1;
                            for (int64_t k = 0; k < classes; ++k) {
                                const int64_t row = (static_cast<int64_t>(which) + k) * c.heads + h;
                                const auto at = static_cast<size_t>(row * c.tokens() + b * c.length + i);
                                const double error =
                                    std::abs(double{all.at(row, b * c.length + i)} - expected.value[at]);
                                CHECK(error <= safety * expected.bound[at] + floor_of_bounds);
                            }
                        }
                    }
        });
    }
}

TEST_CASE("stick-breaking refuses what only a softmax has") {
    const auto ops = make_cpu_ops({.threads = 1});
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
