// The gated delta rule in chunks against its recurrence in double, position by position, forwards and backwards;
// its gates against their formulas.
#include <array>

#include "kernels/delta_reference.h"

using namespace longreach;
using namespace longreach::test;
using namespace longreach::test::delta;

namespace {

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
            all.push_back({1, 140, 3, 16, 16, by_channel, documents, false, 1e-3, 3, true});
            all.push_back({2, 150, 2, 20, 12, by_channel, documents, true});
            if (!on_cpu()) continue;  // a GPU has no keys that erase, and passes no states on
            for (const int64_t length : {37, 150})
                all.push_back(erasing({2, length, 2, 20, 12, by_channel, documents, false, 0.12}));
            for (const int64_t length : {37, 64, 100})
                all.push_back(chained({3, length, 2, 20, 12, by_channel, documents}));
            all.push_back(chained({3, 70, 1, 16, 16, by_channel, documents, true}));
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
    CAPTURE(c.erases);
    CAPTURE(c.chained);
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
    if (!c.erases) CHECK(worst_of(p.dbeta, exact.dbeta, relative * exact.size_dbeta) <= 1);
    if (c.erases) CHECK(worst_of(p.derase, exact.derase, relative * exact.size_dk) <= 1);
    for (const Floats* x : {&p.o, &p.states, &p.state, &p.dq, &p.dk, &p.dv, &p.ddecay, &p.dbeta, &p.derase})
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
        for (const auto& [erases, chained] : {std::pair(false, false), {true, false}, {false, true}}) {
            if ((erases || chained) && !on_cpu()) continue;
            check_thread_independence([&](Ops& ops) {
                Case c = {brief() ? 1 : 3, 130, brief() ? 2 : 3, 16, 16, by_channel, true, false, 0.12};
                c.erases = erases;
                c.chained = chained;
                Problem p(c);
                p.forward(ops);
                p.backward(ops);
                return joined(
                    {&p.o, &p.states, &p.state, &p.dq, &p.dk, &p.dv, &p.ddecay, &p.dbeta, &p.derase});
            });
        }
}

TEST_CASE("the delta rule with k as the key that reads: the bits without one") {
    if (!on_cpu()) return;
    for_each_isa([](Ops& ops) {
        for (bool by_channel : {false, true}) {
            Problem p({2, 130, 2, 16, 12, by_channel, true}), same({2, 130, 2, 16, 12, by_channel, true});
            p.forward(ops);
            same.spec.erase = same.k.tensor();
            same.forward(ops);
            CHECK(same_bits(p.o, same.o));
            CHECK(same_bits(p.state, same.state));
        }
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
    refused([](Problem& p) { p.spec.chained = p.spec.continues = true; });
    refused([](Problem& p) { p.spec.value_dim = 16; });
    refused([](Problem& p) { p.beta = Floats(20, 3); });
    refused([](Problem& p) { p.decay = Floats(20, 5); });
    refused([](Problem& p) { p.states = Floats(3, 64); });
}

namespace {

// decay, beta and the gradients of a fixed direction.
struct Gates {
    int64_t rows, heads, width;
    float beta_max = 1;
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
        ops.delta_gates(decay.tensor(), beta.tensor(), u.tensor(), ub.tensor(),
                        {a_log.vector(), bias.vector(), beta_max});
    }
    void backward(Ops& ops) {
        ops.delta_gates_backward(du.tensor(), dub.tensor(), da_log.vector(), dbias.vector(), ddecay.tensor(),
                                 dbeta.tensor(), u.tensor(), ub.tensor(),
                                 {a_log.vector(), bias.vector(), beta_max});
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
                g.beta_max = spread < 1 ? 1.0f : 2.0f;  // a factor of 2 rounds nothing
                const Floats da_before = g.da_log, dbias_before = g.dbias;
                g.forward(ops);
                g.backward(ops);
                const auto decay = [&](int64_t i) { return -g.rate(i) * g.softplus(i); };
                CHECK(worst(g.decay, decay, [&](int64_t i) { return g.error(i) * std::abs(decay(i)); }) <= 1);
                const auto beta = [&](int64_t i) { return g.beta_max / (1 + std::exp(-double{g.ub[i]})); };
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
