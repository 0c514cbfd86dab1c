// Row factors, distance tables and QK-clip against double precision. Gradients of the tables by complex
// steps; row factors are linear in r and b.
#include <complex>

#include "kernels/support.h"

using namespace longreach;
using namespace longreach::test;

namespace {

using Complex = std::complex<double>;
// Starts of documents of 7 and 5 positions by turns; the second sequence begins in the middle of one.
Ints starts_of(int64_t batch, int64_t length) {
    Ints starts(batch, length);
    for (int64_t b = 0; b < batch; ++b)
        for (int64_t t = 0; t < length; ++t) {
            const int64_t within = (t + 9 * b) % 12, size = within < 7 ? within : within - 7;
            starts.at(b, t) = static_cast<int32_t>(std::max<int64_t>(0, t - size));
        }
    return starts;
}

struct Factors {
    int64_t batch, length, heads;
    Ints starts;
    Floats shape, r, b, factor, dfactor, dr, db;
    RowFactorSpec spec;

    Factors(int64_t sequences, int64_t positions, int64_t head_count, bool documents)
        : batch(sequences),
          length(positions),
          heads(head_count),
          starts(starts_of(batch, length)),
          shape(normal(1, length + 4, 1, 1.0, 2.0)),
          r(normal(1, heads, 2)),
          b(normal(1, heads, 3)),
          factor(heads, batch * length, batch * length + 3),
          dfactor(normal(heads, batch * length, 4, 1.0, 0.2, batch * length + 5)),
          dr(normal(1, heads, 5)),
          db(normal(1, heads, 6)) {
        spec.length = length;
        spec.shape = shape.vector();
        if (documents) spec.start = starts.tensor();
        spec.r = r.vector();
        spec.b = b.vector();
    }
    Factors(const Factors&) = delete;  // spec points into it
    Factors& operator=(const Factors&) = delete;

    double shape_of(int64_t row) const {
        const int64_t start = spec.start ? starts[row] : 0;
        return shape[row % length - start];
    }
};

}  // namespace

TEST_CASE("row factors agree with their definition") {
    for_each_isa([](Ops& ops) {
        for (bool documents : {false, true})
            for (int64_t heads : {1, 3}) {
                CAPTURE(documents);
                CAPTURE(heads);
                Factors p(2, 37, heads, documents);
                const auto agree = [&](auto r_of, auto b_of) {
                    ops.row_factors(p.factor.tensor(), p.spec);
                    // A product and a sum.
                    CHECK(worst(
                              p.factor,
                              [&](int64_t i) { return r_of(i / 74) * p.shape_of(i % 74) + b_of(i / 74); },
                              [&](int64_t i) {
                                  return 2 * unit *
                                         (std::abs(r_of(i / 74) * p.shape_of(i % 74)) +
                                          std::abs(b_of(i / 74)));
                              }) <= 1);
                    CHECK(p.factor.guards_intact());
                };
                agree([&](int64_t h) { return double{p.r[h]}; }, [&](int64_t h) { return double{p.b[h]}; });
                p.spec.b = Tensor();
                p.spec.constant_b = 0.25f;
                agree([&](int64_t h) { return double{p.r[h]}; }, [](int64_t) { return 0.25; });
                p.spec.r = Tensor();
                p.spec.constant_r = -3.0f;
                agree([](int64_t) { return -3.0; }, [](int64_t) { return 0.25; });
            }
    });
}

TEST_CASE("gradients of row factors are sums over tokens, and over heads where those share") {
    for_each_isa([](Ops& ops) {
        for (bool documents : {false, true})
            for (bool shared : {false, true})
                for (int64_t length : {37, 1200}) {
                    CAPTURE(documents);
                    CAPTURE(shared);
                    Factors p(2, length, 3, documents);
                    Floats dr = normal(1, shared ? 1 : 3, 7), db = normal(1, shared ? 1 : 3, 8);
                    const Floats r_before = dr, b_before = db;
                    if (shared) {
                        p.spec.r = p.r.vector().first(1);
                        p.spec.b = p.b.vector().first(1);
                    }
                    ops.row_factors_backward(dr.vector(), db.vector(), p.dfactor.tensor(), p.spec);
                    for (int64_t e = 0; e < dr.count(); ++e) {
                        double of_r = 0, of_b = 0, size_r = 0, size_b = 0;
                        for (int64_t h = shared ? 0 : e; h < (shared ? 3 : e + 1); ++h)
                            for (int64_t row = 0; row < 2 * length; ++row) {
                                const double d = p.dfactor.at(h, row);
                                of_r += p.shape_of(row) * d;
                                of_b += d;
                                size_r += std::abs(p.shape_of(row) * d);
                                size_b += std::abs(d);
                            }
                        // Sums in f64 (3 * 2400 terms of relative error 2^-53), then two roundings to f32.
                        CHECK(std::abs(dr[e] - (r_before[e] + of_r)) <=
                              2 * unit * (std::abs(of_r) + std::abs(r_before[e])) + 1e-12 * size_r);
                        CHECK(std::abs(db[e] - (b_before[e] + of_b)) <=
                              2 * unit * (std::abs(of_b) + std::abs(b_before[e])) + 1e-12 * size_b);
                    }
                    // Either may be absent.
                    const Floats r_after = dr;
                    ops.row_factors_backward(Tensor(), db.vector(), p.dfactor.tensor(), p.spec);
                    CHECK(same_bits(dr, r_after));
                }
    });
}

namespace {

struct Numbers {
    double log_tau, decay, p, a;
};
// Gain and bias of distance t by the definitions, written out once more; T is double or Complex.
template <class T>
struct Entry {
    T gain, bias;
};
double real_of(double x) {
    return x;
}
double real_of(Complex x) {
    return x.real();
}
template <class T>
T held(T x, double least, double most) {
    return real_of(x) < least ? T(least) : real_of(x) > most ? T(most) : x;
}
template <class T>
Entry<T> entry(DistanceForm form, double t, T log_tau, T decay, T p, T a) {
    const T one = 1.0;
    const double least = 0.01f;
    switch (form) {
        case DistanceForm::scale_invariant: {
            const T m = 2.0 * std::log(one + t * std::exp(-log_tau));
            return {std::sqrt(one + m), -decay * m};
        }
        case DistanceForm::log_bias:
            return {one, -decay * std::log(one + t * std::exp(-log_tau))};
        case DistanceForm::kerple_log:
            return {one, -held(p, least, 1e9) * std::log(one + held(a, least, 1e9) * t)};
        case DistanceForm::kerple_power: {
            if (t == 0) return {one, T(0.0)};
            return {one, -held(a, least, 1e9) * std::pow(T(t), held(p, least, 2.0))};
        }
    }
    return {one, one};
}

struct Tables {
    static constexpr int64_t room = 45;  // R
    DistanceForm form;
    bool kerple, learned;
    int64_t heads, length;
    Floats gain, bias, dgain, dbias, log_tau, decay, p, a, dlog_tau, ddecay, dp, da;
    DistanceFormSpec spec;

    Tables(DistanceForm which, bool with_learned, int64_t head_count, int64_t distances, int64_t width = room)
        : form(which),
          kerple(form == DistanceForm::kerple_log || form == DistanceForm::kerple_power),
          learned(with_learned || kerple),
          heads(head_count),
          length(distances),
          gain(1, width, width + 3),
          bias(heads, width, width + 2),
          dgain(normal(1, width, 1)),
          dbias(normal(heads, width, 2, 1.0, 0.3, width + 1)),
          log_tau(normal(1, 1, 3, 0.5, 1.0)),
          decay(normal(1, 1, 4, 0.2, 1.0)),
          p(normal(1, heads, 5, 0.2, 1.0)),
          a(normal(1, heads, 6, 0.1, 0.6)),
          dlog_tau(normal(1, 1, 7)),
          ddecay(normal(1, 1, 8)),
          dp(normal(1, heads, 9)),
          da(normal(1, heads, 10)) {
        for (Floats* f : {&gain, &bias})
            for (int64_t i = 0; i < f->count(); ++i) (*f)[i] = sentinel;
        spec.form = form;
        spec.length = length;
        spec.tau = 10.0f;
        spec.constant_decay = 0.75f;
        if (kerple) {
            spec.p = p.vector();
            spec.a = a.vector();
        } else if (learned) {
            spec.log_tau = log_tau.vector();
            spec.decay = decay.vector();
        }
    }
    Tables(const Tables&) = delete;  // spec points into it
    Tables& operator=(const Tables&) = delete;
    static constexpr float sentinel = 77.0f;

    Numbers numbers(int64_t h) const {
        return {learned ? double{log_tau[0]} : std::log(10.0), learned ? double{decay[0]} : 0.75,
                double{p[h]}, double{a[h]}};
    }
    void forward(Ops& ops) { ops.distance_tables(gain.tensor(), bias.tensor(), spec); }
    void backward(Ops& ops) {
        const bool scalars = learned && !kerple;
        ops.distance_tables_backward(scalars ? dlog_tau.vector() : Tensor(),
                                     scalars ? ddecay.vector() : Tensor(), kerple ? dp.vector() : Tensor(),
                                     kerple ? da.vector() : Tensor(), dgain.tensor(), dbias.tensor(), spec);
    }
};

constexpr DistanceForm forms[] = {DistanceForm::scale_invariant, DistanceForm::log_bias,
                                  DistanceForm::kerple_log, DistanceForm::kerple_power};

}  // namespace

TEST_CASE("distance tables agree with their definitions and fill the distances asked for alone") {
    for_each_isa([](Ops& ops) {
        for (DistanceForm form : forms)
            for (bool learned : {false, true})
                for (int64_t length : {int64_t{1}, int64_t{30}, Tables::room}) {
                    CAPTURE(static_cast<int>(form));
                    CAPTURE(length);
                    Tables p(form, learned, 3, length);
                    p.forward(ops);
                    for (int64_t h = 0; h < 3; ++h)
                        for (int64_t t = 0; t < Tables::room; ++t) {
                            const int64_t column = Tables::room - 1 - t;
                            if (t >= length) {
                                REQUIRE(p.bias.at(h, column) == Tables::sentinel);
                                REQUIRE(p.gain.at(0, column) == Tables::sentinel);
                                continue;
                            }
                            const Numbers n = p.numbers(h);
                            const auto e = entry(form, static_cast<double>(t), n.log_tau, n.decay, n.p, n.a);
                            // Rounded once; the definition's own error in f64 is a few 2^-53 of 1 + bias.
                            REQUIRE(std::abs(p.bias.at(h, column) - e.bias) <=
                                    unit * std::abs(e.bias) + 1e-14 * (1 + std::abs(e.bias)));
                            REQUIRE(std::abs(p.gain.at(0, column) - e.gain) <=
                                    unit * e.gain + 1e-14 * (1 + e.gain));
                        }
                    CHECK(p.gain.guards_intact());
                    CHECK(p.bias.guards_intact());
                }
    });
}

TEST_CASE("the scale-invariant form has the published values at tau 10") {
    const double gains[] = {1, 1.09116, 1.23480, 1.68303, 2.23064, 2.74851, 3.20551, 3.61037};
    const double drops[] = {0, .19062, .52473, 1.83258, 3.97575, 6.55429, 9.27527, 12.03475};
    const int64_t distances[] = {0, 1, 3, 15, 63, 255, 1023, 4095};
    for_each_isa([&](Ops& ops) {
        Tables p(DistanceForm::scale_invariant, false, 1, 4096, 4096);
        p.spec.constant_decay = 1.0f;
        p.forward(ops);
        for (size_t i = 0; i < 8; ++i) {
            // Five decimals, and a rounding to f32.
            CHECK(std::abs(p.gain.at(0, 4095 - distances[i]) - gains[i]) <= 5.1e-6 + unit * gains[i]);
            CHECK(std::abs(p.bias.at(0, 4095 - distances[i]) + drops[i]) <= 5.1e-6 + unit * drops[i]);
        }
    });
}

TEST_CASE("KERPLE with power 1 is linear in the distance") {
    for_each_isa([](Ops& ops) {
        Tables p(DistanceForm::kerple_power, true, 2, Tables::room);
        p.p[0] = p.p[1] = 1.0f;
        p.forward(ops);
        for (int64_t h = 0; h < 2; ++h)
            for (int64_t t = 0; t < Tables::room; ++t) {
                const double expected = -double{p.a[h]} * static_cast<double>(t);
                // One rounding; the power itself is within one unit of f64.
                CHECK(std::abs(p.bias.at(h, Tables::room - 1 - t) - expected) <=
                      1.001 * unit * std::abs(expected));
            }
    });
}

TEST_CASE("KERPLE's logarithm with a small and p = m / a nears the straight line -m t") {
    for_each_isa([](Ops& ops) {
        Tables p(DistanceForm::kerple_log, true, 2, Tables::room);
        constexpr double slope[] = {0.5, 0.0625};
        for (int64_t h = 0; h < 2; ++h) {
            p.a[h] = 0.01f;  // the smallest that is not raised
            p.p[h] = static_cast<float>(slope[h] / double{p.a[h]});
        }
        p.forward(ops);
        for (int64_t h = 0; h < 2; ++h)
            for (int64_t t = 0; t < Tables::room; ++t) {
                // x - x^2/2 <= log(1 + x) <= x, and two roundings.
                const double straight = slope[h] * static_cast<double>(t), x = 0.01 * static_cast<double>(t);
                const double bias = -double{p.bias.at(h, Tables::room - 1 - t)};
                CHECK(bias <= straight * (1 + 3 * unit));
                CHECK(bias >= straight * (1 - x / 2 - 3 * unit));
            }
    });
}

TEST_CASE("KERPLE holds p and a where they leave their range, and they get no gradient there") {
    for_each_isa([](Ops& ops) {
        for (DistanceForm form : {DistanceForm::kerple_log, DistanceForm::kerple_power}) {
            CAPTURE(static_cast<int>(form));
            Tables p(form, true, 3, Tables::room), edge(form, true, 3, Tables::room);
            const bool power = form == DistanceForm::kerple_power;
            // Head 0: p below, head 1: a below, head 2: p above 2, where only the power is held.
            p.p[0] = -0.3f;
            edge.p[0] = 0.01f;
            p.a[1] = 0.0099f;
            edge.a[1] = 0.01f;
            p.p[2] = 2.5f;
            edge.p[2] = power ? 2.0f : 2.5f;
            p.forward(ops);
            edge.forward(ops);
            CHECK(same_bits(p.bias, edge.bias));
            const Floats dp = p.dp, da = p.da;
            p.backward(ops);
            CHECK(p.dp[0] == dp[0]);
            CHECK(p.da[0] != da[0]);
            CHECK(p.dp[1] != dp[1]);
            CHECK(p.da[1] == da[1]);
            CHECK((p.dp[2] == dp[2]) == power);
            CHECK(p.da[2] != da[2]);
        }
    });
}

TEST_CASE("gradients of distance tables agree with complex steps") {
    for_each_isa([](Ops& ops) {
        for (DistanceForm form : forms)
            for (int64_t length : {1, 30, 45, 3000}) {
                CAPTURE(static_cast<int>(form));
                CAPTURE(length);
                const int64_t room = std::max<int64_t>(length, 45);
                Tables p(form, true, 3, length, room);
                const float poison = std::numeric_limits<float>::quiet_NaN();
                for (int64_t column = 0; column < room - length; ++column) {
                    p.dgain.at(0, column) = poison;  // distances that were not asked for
                    for (int64_t h = 0; h < 3; ++h) p.dbias.at(h, column) = poison;
                }
                const Floats of_tau = p.dlog_tau, of_decay = p.ddecay, of_p = p.dp, of_a = p.da;
                p.backward(ops);
                const double tiny = 1e-30;
                // Sum and sum of sizes over the distances of the derivative by one of the four numbers.
                const auto slope = [&](int64_t h, int which) {
                    const Numbers n = p.numbers(h);
                    double sum = 0, size = 0;
                    for (int64_t t = 0; t < length; ++t) {
                        const auto e =
                            entry(form, static_cast<double>(t), Complex(n.log_tau, which == 0 ? tiny : 0),
                                  Complex(n.decay, which == 1 ? tiny : 0),
                                  Complex(n.p, which == 2 ? tiny : 0), Complex(n.a, which == 3 ? tiny : 0));
                        const int64_t column = room - 1 - t;
                        const double gain = h == 0 ? p.dgain.at(0, column) * e.gain.imag() / tiny : 0;
                        const double bias = p.dbias.at(h, column) * e.bias.imag() / tiny;
                        sum += gain + bias;
                        size += std::abs(gain) + std::abs(bias);
                    }
                    return std::pair{sum, size};
                };
                const auto agree = [&](const Floats& actual, const Floats& before, int which) {
                    for (int64_t e = 0; e < actual.count(); ++e) {
                        double sum = 0, size = 0;
                        for (int64_t h = e; h < (which < 2 ? 3 : e + 1); ++h) {
                            const auto [of_head, size_of_head] = slope(h, which);
                            sum += of_head;
                            size += size_of_head;
                        }
                        // Everything in f64 (3000 additions: 1e-12 of the sizes), then two roundings.
                        CHECK(std::abs(actual[e] - (before[e] + sum)) <=
                              2 * unit * (std::abs(before[e]) + std::abs(sum)) + 1e-12 * size);
                    }
                };
                if (p.kerple) {
                    agree(p.dp, of_p, 2);
                    agree(p.da, of_a, 3);
                } else {
                    agree(p.dlog_tau, of_tau, 0);
                    agree(p.ddecay, of_decay, 1);
                }
            }
    });
}

TEST_CASE("maxima of heads grow to the largest row and never shrink") {
    for_each_isa([](Ops& ops) {
        for (int64_t rows : {1, 5, 33, 9000}) {
            CAPTURE(rows);
            Floats maxima = normal(4, rows, 1, 3.0, -10.0, rows + 3), out(1, 4);
            const float infinity = std::numeric_limits<float>::infinity();
            for (int64_t i = 0; i < rows; ++i) maxima.at(2, i) = -infinity;
            maxima.at(1, rows - 1) = 50;
            out[0] = -infinity;
            out[1] = 3;
            out[2] = -infinity;
            out[3] = 1000;
            ops.head_maxima(out.vector(), maxima.tensor());
            float largest = -infinity;
            for (int64_t i = 0; i < rows; ++i) largest = std::max(largest, maxima.at(0, i));
            CHECK(out[0] == largest);
            CHECK(out[1] == 50);
            CHECK(out[2] == -infinity);
            CHECK(out[3] == 1000);
            CHECK(out.guards_intact());
        }
    });
}

namespace {

struct Clip {
    int64_t heads, kv, d = 6, width = 37;
    Floats wq, wk, maxima;
    Clip(int64_t query_heads, int64_t kv_heads)
        : heads(query_heads),
          kv(kv_heads),
          wq(normal(heads * d, width, 1, 1.0, 0.0, width + 3)),
          wk(normal(kv * d, width, 2, 1.0, 0.0, width + 1)),
          maxima(1, heads) {}
    void run(Ops& ops, float limit) { ops.qk_clip(wq.tensor(), wk.tensor(), maxima.vector(), d, limit); }
};

}  // namespace

TEST_CASE("QK-clip brings heads above the limit back to it and leaves the others alone") {
    for_each_isa([](Ops& ops) {
        for (int64_t kv : {4, 2}) {
            CAPTURE(kv);
            Clip p(4, kv);
            const Floats wq = p.wq, wk = p.wk;
            p.maxima[0] = 25;
            p.maxima[1] = 10;
            p.maxima[2] = 11;
            p.maxima[3] = -200;
            p.run(ops, 10.0f);
            const auto factor = [&](int64_t row, bool query) {
                const double g = std::min(1.0, 10.0 / std::max(double{p.maxima[row / p.d]}, 1.0));
                return kv == 4 ? std::sqrt(g) : query ? g : 1.0;
            };
            // The factor is rounded once and so is the product.
            CHECK(worst(
                      p.wq, [&](int64_t i) { return factor(i / p.width, true) * wq[i]; },
                      [&](int64_t i) { return 2.001 * unit * std::abs(wq[i]); }) <= 1);
            CHECK(worst(
                      p.wk, [&](int64_t i) { return factor(i / p.width, false) * wk[i]; },
                      [&](int64_t i) { return 2.001 * unit * std::abs(wk[i]); }) <= 1);
            for (int64_t r = 0; r < 4 * p.d; ++r)
                for (int64_t i = 0; i < p.width; ++i)
                    if (r / p.d == 1 || r / p.d == 3) REQUIRE(p.wq.at(r, i) == wq.at(r, i));
            CHECK(p.wq.guards_intact());
            CHECK(p.wk.guards_intact());
        }
    });
}

TEST_CASE("QK-clip does nothing at or below the limit, nor where no maximum is known") {
    for_each_isa([](Ops& ops) {
        Clip p(4, 4);
        const Floats wq = p.wq, wk = p.wk;
        p.maxima[0] = 10;
        p.maxima[1] = 0;
        p.maxima[2] = -std::numeric_limits<float>::infinity();
        p.maxima[3] = std::numeric_limits<float>::quiet_NaN();
        p.run(ops, 10.0f);
        CHECK(same_bits(p.wq, wq));
        CHECK(same_bits(p.wk, wk));
    });
}

TEST_CASE("row factors, distance tables, maxima and clipping do not depend on the number of threads") {
    check_thread_independence([&](Ops& ops) {
        Factors p(3, 4000, 3, true);
        ops.row_factors(p.factor.tensor(), p.spec);
        ops.row_factors_backward(p.dr.vector(), p.db.vector(), p.dfactor.tensor(), p.spec);
        return joined({&p.factor, &p.dr, &p.db});
    });
    for (DistanceForm form : forms)
        check_thread_independence([&](Ops& ops) {
            Tables p(form, true, 3, 5000, 5000);
            p.forward(ops);
            p.backward(ops);
            return joined({&p.gain, &p.bias, &p.dlog_tau, &p.ddecay, &p.dp, &p.da});
        });
    check_thread_independence([&](Ops& ops) {
        Floats maxima = normal(5, 9001, 1), out(1, 5);
        ops.head_maxima(out.vector(), maxima.tensor());
        Clip p(5, 5);
        for (int64_t h = 0; h < 5; ++h) p.maxima[h] = out[h];
        p.run(ops, 1.0f);
        return joined({&out, &p.wq, &p.wk});
    });
}
