// The gated delta rule in chunks against its recurrence in double, position by position, forwards and backwards;
// its gates against their formulas.
//
// Bounds. Keys have length 1 and beta is below 1, so that no step of the recurrence makes an error in the state larger.
// A step adds the error of sums of d + e + 2 * delta_chunk terms with roundings of random signs, and T steps add up as
// the root of their number: 4 sqrt(T (d + e + 2 delta_chunk)) u times the size of what is summed. Sizes are products of
// norms, the largest over all positions: a gradient <x, dx> may cancel, its terms do not. A state that hardly fades
// keeps the errors of T steps, and gradients pass through them twice: another factor of 2.
// With bf16 products a step also rounds both factors of the five products in which a position takes part, relative to the
// norms of rows: sums of roundings of random signs, 4 sqrt(10 T) times the deviation of one.
#include <algorithm>
#include <array>

#include "kernels/support.h"

using namespace longreach;
using namespace longreach::test;

namespace {

struct Case {
    int64_t batch, length, heads, d, e;
    bool by_channel = false, documents = false, additive = false;
    double least = 1e-3, most = 3;  // -decay lies between them, evenly in its logarithm
};

// One call, its operands between guards.
struct Problem {
    Case c;
    int64_t rows, w;
    Floats q, k, v, decay, beta, dout;
    Floats o, states, state, dq, dk, dv, ddecay, dbeta;
    Ints starts;
    DeltaSpec spec;
    double input = 0;  // deviation of the relative rounding of a product's factors

    explicit Problem(const Case& which)
        : c(which),
          rows(c.batch * c.length),
          w(c.by_channel ? c.heads * c.d : c.heads),
          q(normal(rows, c.heads * c.d, 1, 1, 0, c.heads * c.d + 4)),
          k(normal(rows, c.heads * c.d, 2)),
          v(normal(rows, c.heads * c.e, 3, 1, 0, c.heads * c.e + 8)),
          decay(rows, w, w + 3),
          beta(rows, c.heads, c.heads + 1),
          dout(normal(rows, c.heads * c.e, 4)),
          o(rows, c.heads * c.e, c.heads * c.e + 5),
          states(c.batch * delta_chunks(c.length) * c.heads, c.d * c.e),
          state(c.batch * c.heads, c.d * c.e),
          dq(rows, c.heads * c.d, c.heads * c.d + 1),
          dk(rows, c.heads * c.d),
          dv(rows, c.heads * c.e),
          ddecay(rows, w),
          dbeta(rows, c.heads),
          starts(c.batch, c.length) {
        const Rng rng(13, Purpose::test, 5);
        uint64_t drawn = 0;
        for (int64_t i = 0; i < decay.count(); ++i)
            decay[i] = static_cast<float>(
                -std::exp(std::log(c.least) + std::log(c.most / c.least) * rng.uniform(drawn++)));
        for (int64_t i = 0; i < beta.count(); ++i) beta[i] = static_cast<float>(rng.uniform(drawn++));
        for (int64_t n = 0; n < rows; ++n)
            for (int64_t h = 0; h < c.heads; ++h) unit_length(n, h);
        for (int64_t n = 0; n < rows; ++n) {
            const int64_t t = n % c.length;
            const bool starts_here = t == 0 || rng.uniform(drawn++) < 0.06 || (t >= 70 && t < 73);
            starts[n] = starts_here ? static_cast<int32_t>(t) : starts[n - 1];
        }
        spec = {.batch = c.batch, .length = c.length, .heads = c.heads, .key_dim = c.d, .value_dim = c.e};
        spec.query_scale = 0.25f;
        spec.additive = c.additive;
        if (c.documents) spec.doc_start = starts.tensor();
    }
    void unit_length(int64_t n, int64_t h) {
        double squares = 0;
        for (int64_t i = 0; i < c.d; ++i) squares += std::pow(double{k.at(n, h * c.d + i)}, 2);
        for (int64_t i = 0; i < c.d; ++i)
            k.at(n, h * c.d + i) = static_cast<float>(k.at(n, h * c.d + i) / std::sqrt(squares));
    }
    bool starts_at(int64_t n) const {
        return c.documents ? starts[n] == static_cast<int32_t>(n % c.length) : n % c.length == 0;
    }
    double keeps(int64_t n, int64_t h, int64_t i) const {
        return std::exp(double{decay.at(n, c.by_channel ? h * c.d + i : h)});
    }
    void forward(Ops& ops) {
        Floats workspace(1, ops.delta_workspace(spec, false) / 4);
        ops.delta_rule(o.tensor(), states.tensor(), state.tensor(), workspace.vector(), q.tensor(),
                       k.tensor(), v.tensor(), decay.tensor(), beta.tensor(), spec);
    }
    void backward(Ops& ops) {
        Floats workspace(1, ops.delta_workspace(spec, true) / 4);
        ops.delta_rule_backward(dq.tensor(), dk.tensor(), dv.tensor(), ddecay.tensor(), dbeta.tensor(),
                                workspace.vector(), dout.tensor(), states.tensor(), q.tensor(), k.tensor(),
                                v.tensor(), decay.tensor(), beta.tensor(), spec);
    }
    double relative() const {
        const double steps = double(c.length), terms = double(c.d + c.e + 2 * delta_chunk);
        return 4 * std::sqrt(steps * (terms * unit * unit + 10 * input * input));
    }
};

// The recurrence and its transpose, one head at a time.
struct Exact {
    Doubles o, dq, dk, dv, ddecay, dbeta, state;
    // Of the summands, the largest over all positions.
    double size_o = 0, size_dq = 0, size_dk = 0, size_dv = 0, size_ddecay = 0, size_dbeta = 0, size_state = 0;

    explicit Exact(const Problem& p)
        : o(p.o.rows(), p.o.cols()),
          dq(p.dq.rows(), p.dq.cols()),
          dk(p.dk.rows(), p.dk.cols()),
          dv(p.dv.rows(), p.dv.cols()),
          ddecay(p.ddecay.rows(), p.ddecay.cols()),
          dbeta(p.dbeta.rows(), p.dbeta.cols()),
          state(p.state.rows(), p.state.cols()) {
        for (int64_t b = 0; b < p.c.batch; ++b)
            for (int64_t h = 0; h < p.c.heads; ++h) head(p, b, h);
    }

  private:
    using State = std::vector<double>;  // [d, e]
    static double norm(const State& s) {
        double squares = 0;
        for (double x : s) squares += x * x;
        return std::sqrt(squares);
    }
    static double row_norm(const Floats& x, int64_t n, int64_t begin, int64_t width) {
        double squares = 0;
        for (int64_t i = 0; i < width; ++i) squares += std::pow(double{x.at(n, begin + i)}, 2);
        return std::sqrt(squares);
    }

    void head(const Problem& p, int64_t b, int64_t h) {
        const Case& c = p.c;
        const int64_t d = c.d, e = c.e, first = b * c.length;
        const double scale = p.spec.query_scale, of_k = p.spec.key_scale;
        const auto key = [&](int64_t n, int64_t i) { return of_k * double{p.k.at(n, h * d + i)}; };
        const auto query = [&](int64_t n, int64_t i) { return scale * double{p.q.at(n, h * d + i)}; };
        std::vector<State> faded, after;  // S before and after k u^T is added
        std::vector<std::vector<double>> rests, us;
        double largest = 0, largest_value = 0;
        for (int64_t t = 0; t < c.length; ++t) {
            const int64_t n = first + t;
            const double beta = p.beta.at(n, h);
            State s = p.starts_at(n) ? State(static_cast<size_t>(d * e)) : after.back();
            for (int64_t i = 0; i < d * e; ++i) s[size_t(i)] *= p.keeps(n, h, i / e);
            faded.push_back(s);
            std::vector<double> rest, u;
            for (int64_t j = 0; j < e; ++j) {
                double r = p.v.at(n, h * e + j);
                for (int64_t i = 0; i < d; ++i) r -= c.additive ? 0 : s[size_t(i * e + j)] * key(n, i);
                rest.push_back(r);
                u.push_back(beta * r);
            }
            for (int64_t i = 0; i < d * e; ++i) s[size_t(i)] += key(n, i / e) * u[size_t(i % e)];
            for (int64_t j = 0; j < e; ++j)
                for (int64_t i = 0; i < d; ++i) o.at(n, h * e + j) += s[size_t(i * e + j)] * query(n, i);
            largest = std::max({largest, norm(s), norm(faded.back())});
            largest_value = std::max(largest_value, row_norm(p.v, n, h * e, e));
            size_o = std::max(size_o, scale * row_norm(p.q, n, h * d, d) * (largest + largest_value));
            after.push_back(s);
            rests.push_back(rest);
            us.push_back(u);
        }
        for (int64_t i = 0; i < d * e; ++i) state.at(b * c.heads + h, i) = after.back()[size_t(i)];
        size_state = std::max(size_state, largest + largest_value);

        State ds(static_cast<size_t>(d * e));
        double largest_ds = 0, largest_out = 0;
        for (int64_t t = c.length - 1; t >= 0; --t) {
            const int64_t n = first + t;
            const size_t at = static_cast<size_t>(t);
            const double beta = p.beta.at(n, h);
            for (int64_t i = 0; i < d; ++i)
                for (int64_t j = 0; j < e; ++j) {
                    const double out = p.dout.at(n, h * e + j);
                    dq.at(n, h * d + i) += scale * after[at][size_t(i * e + j)] * out;
                    ds[size_t(i * e + j)] += query(n, i) * out;
                }
            largest_out = std::max(largest_out, row_norm(p.dout, n, h * e, e));
            largest_ds = std::max(largest_ds, norm(ds));
            for (int64_t j = 0; j < e; ++j) {
                double du = 0;
                for (int64_t i = 0; i < d; ++i) du += ds[size_t(i * e + j)] * key(n, i);
                dbeta.at(n, h) += du * rests[at][size_t(j)];
                dv.at(n, h * e + j) = beta * du;
            }
            for (int64_t i = 0; i < d; ++i)
                for (int64_t j = 0; j < e; ++j) {
                    const size_t ij = size_t(i * e + j);
                    const double dr = c.additive ? 0 : dv.at(n, h * e + j);
                    dk.at(n, h * d + i) += of_k * (ds[ij] * us[at][size_t(j)] - faded[at][ij] * dr);
                    ds[ij] -= key(n, i) * dr;
                    ddecay.at(n, c.by_channel ? h * d + i : h) += ds[ij] * faded[at][ij];
                    ds[ij] *= p.starts_at(n) ? 0 : p.keeps(n, h, i);
                }
        }
        const double both = largest + largest_value;
        size_dq = std::max(size_dq, 2 * scale * both * largest_out);
        size_dk = std::max(size_dk, 2 * largest_ds * both);
        size_dv = std::max(size_dv, 2 * largest_ds);
        size_dbeta = std::max(size_dbeta, 2 * largest_ds * both);
        size_ddecay = std::max(size_ddecay, 2 * largest_ds * both);
    }
};

std::vector<Case> cases() {
    std::vector<Case> all;
    for (bool by_channel : {false, true})
        for (bool documents : {false, true}) {
            for (const std::array<int64_t, 5>& s : std::vector<std::array<int64_t, 5>>{{1, 1, 1, 4, 4},
                                                                                       {2, 37, 3, 8, 12},
                                                                                       {1, 64, 2, 16, 16},
                                                                                       {1, 65, 1, 20, 8},
                                                                                       {2, 150, 2, 32, 64},
                                                                                       {1, 200, 1, 64, 32}}) {
                if (brief() && s[1] > 140 && documents != by_channel) continue;
                all.push_back({s[0], s[1], s[2], s[3], s[4], by_channel, documents});
            }
            // Decays that keep nearly everything, nearly nothing, and both.
            for (const auto& [least, most] :
                 std::vector<std::pair<double, double>>{{1e-12, 1e-6}, {20, 2000}, {1e-6, 300}})
                all.push_back({1, 140, 2, 16, 16, by_channel, documents, false, least, most});
            all.push_back({2, 150, 2, 20, 12, by_channel, documents, true});
        }
    return all;
}

double worst_of(const Floats& actual, const Doubles& exact, double bound) {
    return worst(
        actual, [&](int64_t i) { return exact[i]; }, [&](int64_t) { return bound; });
}

void check_against_recurrence(Ops& ops, const Case& c, double input) {
    CAPTURE(c.length);
    CAPTURE(c.by_channel);
    CAPTURE(c.documents);
    CAPTURE(c.most);
    Problem p(c);
    p.input = input;
    p.forward(ops);
    p.backward(ops);
    const Exact exact(p);
    const double relative = p.relative();
    CHECK(worst_of(p.o, exact.o, relative * exact.size_o) <= 1);
    CHECK(worst_of(p.state, exact.state, relative * exact.size_state) <= 1);
    CHECK(worst_of(p.dq, exact.dq, relative * exact.size_dq) <= 1);
    CHECK(worst_of(p.dk, exact.dk, relative * exact.size_dk) <= 1);
    CHECK(worst_of(p.dv, exact.dv, relative * exact.size_dv) <= 1);
    CHECK(worst_of(p.ddecay, exact.ddecay, relative * exact.size_ddecay) <= 1);
    CHECK(worst_of(p.dbeta, exact.dbeta, relative * exact.size_dbeta) <= 1);
    for (const Floats* x : {&p.o, &p.states, &p.state, &p.dq, &p.dk, &p.dv, &p.ddecay, &p.dbeta})
        CHECK(x->guards_intact());
}

}  // namespace

TEST_CASE("the delta rule in chunks agrees with its recurrence, and gradients with its transpose") {
    for_each_isa([](Ops& ops) {
        for (const Case& c : cases()) check_against_recurrence(ops, c, 0);
    });
}

TEST_CASE("the delta rule in bf16 products agrees with its recurrence, and gradients with its transpose") {
    const auto ops = bf16_ops(2);
    if (!ops) return;
    for (const Case& c : cases()) check_against_recurrence(*ops, c, bf16_input);
}

TEST_CASE("a sequence read in parts, each from the state that the last one left, is the whole sequence") {
    for_each_isa([](Ops& ops) {
        for (bool by_channel : {false, true})
            for (int64_t prompt : {1, 64, 70}) {
                CAPTURE(by_channel);
                CAPTURE(prompt);
                Problem p({2, 90, 2, 16, 12, by_channel});
                const Exact exact(p);
                for (int64_t at = 0; at < p.c.length;) {
                    const int64_t count = at == 0 ? prompt : 1;
                    Problem part({2, count, 2, 16, 12, by_channel});
                    for (int64_t n = 0; n < part.rows; ++n) {
                        const int64_t from = n / count * p.c.length + at + n % count;
                        for (int64_t i = 0; i < part.q.cols(); ++i) {
                            part.q.at(n, i) = p.q.at(from, i);
                            part.k.at(n, i) = p.k.at(from, i);
                        }
                        for (int64_t i = 0; i < part.v.cols(); ++i) part.v.at(n, i) = p.v.at(from, i);
                        for (int64_t i = 0; i < part.w; ++i) part.decay.at(n, i) = p.decay.at(from, i);
                        for (int64_t i = 0; i < 2; ++i) part.beta.at(n, i) = p.beta.at(from, i);
                    }
                    part.spec.continues = at > 0;
                    Floats workspace(1, ops.delta_workspace(part.spec, false) / 4);
                    ops.delta_rule(part.o.tensor(), Tensor(), p.state.tensor(), workspace.vector(),
                                   part.q.tensor(), part.k.tensor(), part.v.tensor(), part.decay.tensor(),
                                   part.beta.tensor(), part.spec);
                    for (int64_t n = 0; n < part.rows; ++n)
                        for (int64_t i = 0; i < part.o.cols(); ++i)
                            p.o.at(n / count * p.c.length + at + n % count, i) = part.o.at(n, i);
                    at += count;
                }
                CHECK(worst_of(p.o, exact.o, p.relative() * exact.size_o) <= 1);
                CHECK(worst_of(p.state, exact.state, p.relative() * exact.size_state) <= 1);
            }
    });
}

TEST_CASE("values written under orthogonal keys are read back, and overwritten by a later one") {
    // Keys 1, 2, 4, ... of a Hadamard matrix of order 16, written twice with beta = 1 and no decay.
    for_each_isa([](Ops& ops) {
        for (bool by_channel : {false, true}) {
            Problem p({1, 48, 1, 16, 8, by_channel});
            p.spec.query_scale = 1;
            for (int64_t n = 0; n < p.rows; ++n) {
                p.beta[n] = n < 32 ? 1.0f : 0.0f;
                for (int64_t i = 0; i < p.w; ++i) p.decay.at(n, i) = 0;
                for (int64_t i = 0; i < 16; ++i) {
                    const bool odd = __builtin_popcountll(static_cast<uint64_t>((n % 16) & i)) % 2 == 1;
                    p.k.at(n, i) = p.q.at(n, i) = odd ? -0.25f : 0.25f;
                }
            }
            p.forward(ops);
            double largest = 0;
            for (int64_t n = 0; n < 48; ++n)
                for (int64_t j = 0; j < 8; ++j)
                    largest =
                        std::max(largest, std::abs(double{p.o.at(n, j)} - p.v.at(n < 32 ? n : n - 16, j)));
            CHECK(largest <= p.relative() * 8);
        }
    });
}

TEST_CASE("the delta rule: the same bits at every number of threads") {
    for (bool by_channel : {false, true})
        check_thread_independence([&](Ops& ops) {
            Problem p({brief() ? 1 : 3, 130, brief() ? 2 : 3, 16, 16, by_channel, true});
            p.forward(ops);
            p.backward(ops);
            return joined({&p.o, &p.states, &p.state, &p.dq, &p.dk, &p.dv, &p.ddecay, &p.dbeta});
        });
}

TEST_CASE("the delta rule of shapes that do not fit is refused") {
    const auto ops = make_test_ops({.threads = 1});
    const auto refused = [&](auto change) {
        Problem p({2, 10, 2, 8, 8});
        change(p);
        CHECK_THROWS_AS(p.forward(*ops), Error);
    };
    refused([](Problem& p) { p.spec.heads = 3; });
    refused([](Problem& p) { p.spec.length = 5; });
    refused([](Problem& p) { p.spec.value_dim = 16; });
    refused([](Problem& p) { p.beta = Floats(20, 3); });
    refused([](Problem& p) { p.decay = Floats(20, 5); });
    refused([](Problem& p) { p.states = Floats(3, 64); });
}

namespace {

// decay, beta and the gradients of a fixed direction.
struct Gates {
    int64_t rows, heads, width;
    Floats u, ub, a_log, bias, ddecay, dbeta;
    Floats decay, beta, du, dub, da_log, dbias;
    Gates(int64_t n, int64_t h, int64_t w, double spread = 2)
        : rows(n),
          heads(h),
          width(w),
          u(normal(n, w, 1, spread, 0, w + 3)),
          ub(normal(n, h, 2, spread)),
          a_log(normal(1, h, 3)),
          bias(normal(1, w, 4)),
          ddecay(normal(n, w, 5)),
          dbeta(normal(n, h, 6)),
          decay(n, w, w + 2),
          beta(n, h, h + 1),
          du(n, w, w + 1),
          dub(n, h),
          da_log(normal(1, h, 7)),
          dbias(normal(1, w, 8)) {}
    void forward(Ops& ops) {
        ops.delta_gates(decay.tensor(), beta.tensor(), u.tensor(), ub.tensor(), a_log.vector(),
                        bias.vector());
    }
    void backward(Ops& ops) {
        ops.delta_gates_backward(du.tensor(), dub.tensor(), da_log.vector(), dbias.vector(), ddecay.tensor(),
                                 dbeta.tensor(), u.tensor(), ub.tensor(), a_log.vector(), bias.vector());
    }
    int64_t head(int64_t c) const { return c / (width / heads); }
    double x(int64_t i) const { return double{u[i]} + double{bias[i % width]}; }
    double rate(int64_t i) const { return std::exp(double{a_log[head(i % width)]}); }
    double softplus(int64_t i) const { return std::max(x(i), 0.0) + std::log1p(std::exp(-std::abs(x(i)))); }
    // Relative: exp and sigmoid by simd_math.h with the rounding of their arguments, and a few products.
    double error(int64_t i) const {
        return 2e-6 + (std::abs(double{u[i]}) + std::abs(double{bias[i % width]})) * 4 * unit;
    }
};

}  // namespace

TEST_CASE("gates of the delta rule and their gradients agree with their formulas") {
    for_each_isa([](Ops& ops) {
        for (const auto& [n, h, w] :
             std::vector<std::array<int64_t, 3>>{{1, 1, 1}, {37, 3, 3}, {300, 2, 40}, {70, 17, 17}})
            for (double spread : {0.5, 8.0}) {
                Gates g(n, h, w, spread);
                const Floats da_before = g.da_log, dbias_before = g.dbias;
                g.forward(ops);
                g.backward(ops);
                const auto decay = [&](int64_t i) { return -g.rate(i) * g.softplus(i); };
                CHECK(worst(g.decay, decay, [&](int64_t i) { return g.error(i) * std::abs(decay(i)); }) <= 1);
                const auto beta = [&](int64_t i) { return 1 / (1 + std::exp(-double{g.ub[i]})); };
                CHECK(worst(g.beta, beta, [&](int64_t i) {
                          return (1e-6 + std::abs(double{g.ub[i]}) * unit) * beta(i);
                      }) <= 1);
                const auto du = [&](int64_t i) {
                    return -double{g.ddecay[i]} * g.rate(i) / (1 + std::exp(-g.x(i)));
                };
                CHECK(worst(g.du, du, [&](int64_t i) { return g.error(i) * std::abs(du(i)) + 1e-37; }) <= 1);
                const auto dub = [&](int64_t i) {
                    return double{g.dbeta[i]} * beta(i) / (1 + std::exp(double{g.ub[i]}));
                };
                CHECK(worst(g.dub, dub, [&](int64_t i) {
                          return (2e-6 + 2 * std::abs(double{g.ub[i]}) * unit) * std::abs(dub(i)) + 1e-37;
                      }) <= 1);
                Doubles sums(1, w), sizes(1, w), rates(1, h), rate_sizes(1, h);
                for (int64_t i = 0; i < n * w; ++i) {
                    sums[i % w] += du(i);
                    sizes[i % w] += std::abs(du(i));
                    rates[g.head(i % w)] += double{g.ddecay[i]} * decay(i);
                    rate_sizes[g.head(i % w)] += std::abs(double{g.ddecay[i]} * decay(i));
                }
                const double adds = 2e-6 + 16 * spread * unit + double(n + 2) * unit;
                CHECK(worst(
                          g.dbias, [&](int64_t i) { return double{dbias_before[i]} + sums[i]; },
                          [&](int64_t i) { return adds * (std::abs(double{dbias_before[i]}) + sizes[i]); }) <=
                      1);
                CHECK(worst(
                          g.da_log, [&](int64_t i) { return double{da_before[i]} + rates[i]; },
                          [&](int64_t i) {
                              return adds * (std::abs(double{da_before[i]}) + rate_sizes[i]);
                          }) <= 1);
                for (const Floats* x : {&g.decay, &g.beta, &g.du, &g.dub}) CHECK(x->guards_intact());
            }
    });
}

TEST_CASE("gates of the delta rule: the same bits at every number of threads") {
    check_thread_independence([](Ops& ops) {
        Gates g(3000, 4, 32);
        g.forward(ops);
        g.backward(ops);
        return joined({&g.decay, &g.beta, &g.du, &g.dub, &g.da_log, &g.dbias});
    });
}
