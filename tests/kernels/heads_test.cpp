// prepare_heads and its gradient against double precision: the forward by its definition,
// every gradient by complex steps.
#include <complex>

#include "kernels/support.h"

using namespace longreach;
using namespace longreach::test;

namespace {

using Complex = std::complex<double>;
size_t at(int64_t i) {
    return static_cast<size_t>(i);
}

enum class Eps { constant, shared, per_head };
struct Case {
    int64_t batch, length, heads, d, pairs;
    HeadNorm norm;
    bool gain;
    Eps eps;
};

std::vector<Case> cases() {
    struct Kind {
        HeadNorm norm;
        bool gain;
        Eps eps;
    };
    const std::vector<Kind> kinds = {
        {HeadNorm::none, false, Eps::constant}, {HeadNorm::rms, false, Eps::constant},
        {HeadNorm::rms, false, Eps::shared},    {HeadNorm::rms, false, Eps::per_head},
        {HeadNorm::rms, true, Eps::constant},   {HeadNorm::rms, true, Eps::per_head},
        {HeadNorm::layer, true, Eps::constant}};
    std::vector<Case> all;
    for (const Kind& k : kinds) {
        all.push_back({3, 5, 3, 24, 12, k.norm, k.gain, k.eps});  // half a head is no whole vector
        all.push_back({1, 7, 2, 64, 16, k.norm, k.gain, k.eps});  // some pairs do not turn
        all.push_back({1, 1, 3, 10, 3, k.norm, k.gain, k.eps});
        all.push_back({2, 3, 1, 128, 0, k.norm, k.gain, k.eps});   // no rotary
        all.push_back({2, 150, 2, 10, 5, k.norm, k.gain, k.eps});  // several rows in a block
    }
    return all;
}

// Everything an op needs; the heads are a range of columns of a wider matrix, as queries are of qkv.
struct Problem {
    static constexpr int64_t before = 3, after = 5;  // columns of the neighbours
    Case c;
    int64_t rows, width;
    HeadSpec spec;
    Floats wide, dwide, normalised, inverse_wide, gain, bias, log_eps, cosine, sine;
    Floats dgain, dbias, dlog_eps;

    explicit Problem(const Case& which)
        : c(which),
          rows(c.batch * c.length),
          width(c.heads * c.d),
          wide(normal(rows, before + width + after, 1, 1.5, 0.4)),
          dwide(normal(rows, before + width + after, 2)),
          normalised(rows, width, width + 3),
          inverse_wide(rows, c.heads + 2),
          gain(normal(1, c.d, 3, 0.4, 1.0)),
          bias(normal(1, c.d, 4, 0.5)),
          log_eps(normal(1, c.eps == Eps::per_head ? c.heads : 1, 5, 1.0, -1.0)),
          cosine(c.length + 3, std::max<int64_t>(c.pairs, 1)),
          sine(c.length + 3, std::max<int64_t>(c.pairs, 1)),
          dgain(normal(1, c.d, 6)),
          dbias(normal(1, c.d, 7)),
          dlog_eps(normal(1, log_eps.count(), 8)) {
        for (int64_t p = 0; p < cosine.rows(); ++p)
            for (int64_t m = 0; m < c.pairs; ++m) {
                const double angle =
                    static_cast<double>(p) *
                    std::pow(10000.0, -2.0 * static_cast<double>(m) / static_cast<double>(c.d));
                cosine.at(p, m) = static_cast<float>(std::cos(angle));
                sine.at(p, m) = static_cast<float>(std::sin(angle));
            }
        spec.length = c.length;
        spec.heads = c.heads;
        spec.head_dim = c.d;
        spec.norm = c.norm;
        spec.eps = 1e-3f;
        if (c.eps != Eps::constant) spec.log_eps = log_eps.vector();
        if (c.gain) spec.gain = gain.vector();
        if (c.norm == HeadNorm::layer) spec.bias = bias.vector();
        if (c.pairs > 0) {
            spec.cosine = cosine.tensor();
            spec.sine = sine.tensor();
        }
    }
    Problem(const Problem&) = delete;  // spec points into it
    Problem& operator=(const Problem&) = delete;

    Tensor kept() { return c.gain ? normalised.tensor() : Tensor(); }
    Tensor inverse() {
        return c.norm == HeadNorm::none ? Tensor() : inverse_wide.tensor().col_range(1, c.heads);
    }
    void forward(Ops& ops) {
        ops.prepare_heads(wide.tensor().col_range(before, width), kept(), inverse(), spec);
    }
    void backward(Ops& ops) {
        ops.prepare_heads_backward(dwide.tensor().col_range(before, width),
                                   c.gain ? dgain.vector() : Tensor(), spec.bias ? dbias.vector() : Tensor(),
                                   spec.log_eps ? dlog_eps.vector() : Tensor(),
                                   wide.tensor().col_range(before, width), kept(), inverse(), spec);
    }

    // What a head depends on, as double or Complex.
    template <class T>
    struct Inputs {
        std::vector<T> x, gain, bias;
        T log_eps;
    };
    template <class T>
    Inputs<T> inputs(const Floats& source, int64_t r, int64_t h) const {
        Inputs<T> in;
        for (int64_t i = 0; i < c.d; ++i) {
            in.x.push_back(source.at(r, before + h * c.d + i));
            in.gain.push_back(c.gain ? double{gain[i]} : 1.0);
            in.bias.push_back(spec.bias ? double{bias[i]} : 0.0);
        }
        in.log_eps = log_eps[c.eps == Eps::per_head ? h : 0];
        return in;
    }
    // One head at position r % length by the definition.
    template <class T>
    struct Outputs {
        std::vector<T> normalised, y;
        T inverse;
    };
    template <class T>
    Outputs<T> reference(const Inputs<T>& in, int64_t r) const {
        const double d = static_cast<double>(c.d);
        const T eps = spec.log_eps ? std::exp(in.log_eps) : T(double{spec.eps});
        T mean = 0, variance = 0;
        if (c.norm == HeadNorm::layer)
            for (const T& v : in.x) mean += v / d;
        for (const T& v : in.x) variance += (v - mean) * (v - mean) / d;
        Outputs<T> out;
        out.inverse = c.norm == HeadNorm::none ? T(1.0) : 1.0 / std::sqrt(variance + eps);
        for (size_t i = 0; i < in.x.size(); ++i) {
            out.normalised.push_back((in.x[i] - mean) * out.inverse);
            out.y.push_back(in.gain[i] * out.normalised[i] + in.bias[i]);
        }
        for (int64_t m = 0; m < c.pairs; ++m) {
            const double cos = cosine.at(r % c.length, m), sin = sine.at(r % c.length, m);
            T &first = out.y[at(m)], &second = out.y[at(m + c.d / 2)];
            const T x1 = first, x2 = second;
            first = x1 * cos - x2 * sin;
            second = x1 * sin + x2 * cos;
        }
        return out;
    }
    // Derivative of <dy, y> of one head along the imaginary part of the inputs.
    static constexpr double tiny = 1e-30;
    double slope(const Inputs<Complex>& in, const Floats& dy, int64_t r, int64_t h) const {
        const Outputs<Complex> out = reference(in, r);
        double sum = 0;
        for (int64_t i = 0; i < c.d; ++i) sum += dy.at(r, before + h * c.d + i) * out.y[at(i)].imag() / tiny;
        return sum;
    }

    // Any order of summing d terms errs by at most d * unit * sum |terms|: mean and variance once each, then
    // a few roundings. The inverse root halves the variance's relative error.
    double step() const { return static_cast<double>(c.d + 8) * unit; }
    // How much an error of the mean weighs in a normalised element: inverse * mean |x|; 0 without a mean.
    double mean_weight(const Inputs<double>& in, double inverse) const {
        if (c.norm != HeadNorm::layer) return 0;
        double sum = 0;
        for (double v : in.x) sum += std::abs(v);
        return inverse * sum / static_cast<double>(c.d);
    }
    int64_t partner(int64_t i) const { return (i + c.d / 2) % c.d; }
};

}  // namespace

TEST_CASE("prepared heads agree with their definition and leave their neighbours alone") {
    for_each_isa([](Ops& ops) {
        for (const Case& c : cases()) {
            CAPTURE(c.d);
            CAPTURE(static_cast<int>(c.norm));
            CAPTURE(c.gain);
            CAPTURE(static_cast<int>(c.eps));
            Problem p(c);
            const Floats source = p.wide;
            p.forward(ops);
            for (int64_t r = 0; r < p.rows; ++r) {
                for (int64_t h = 0; h < c.heads; ++h) {
                    const auto in = p.inputs<double>(source, r, h);
                    const auto out = p.reference(in, r);
                    const double weight = p.mean_weight(in, out.inverse);
                    if (c.norm != HeadNorm::none)
                        REQUIRE(std::abs(p.inverse_wide.at(r, 1 + h) - out.inverse) <=
                                p.step() * out.inverse);
                    // Error and size of gain * n + bias before the rotation.
                    std::vector<double> error, size;
                    for (int64_t i = 0; i < c.d; ++i) {
                        const double n = out.normalised[at(i)];
                        const double of_n = c.norm == HeadNorm::none ? 0 : p.step() * (std::abs(n) + weight);
                        if (c.gain) REQUIRE(std::abs(p.normalised.at(r, h * c.d + i) - n) <= of_n);
                        const double gained = std::abs(in.gain[at(i)] * n);
                        size.push_back(gained + std::abs(in.bias[at(i)]));
                        error.push_back(std::abs(in.gain[at(i)]) * of_n + 2 * unit * size.back());
                    }
                    // Two products and a sum, their terms at most the sizes of both partners.
                    for (int64_t i = 0; i < c.d; ++i) {
                        const size_t a = at(i), b = at(p.partner(i));
                        REQUIRE(std::abs(p.wide.at(r, Problem::before + h * c.d + i) - out.y[a]) <=
                                error[a] + error[b] + 3 * unit * (size[a] + size[b]));
                    }
                }
                for (int64_t i = 0; i < p.wide.cols(); ++i)
                    if (i < Problem::before || i >= Problem::before + p.width)
                        REQUIRE(p.wide.at(r, i) == source.at(r, i));
                REQUIRE(p.inverse_wide.at(r, 0) == 0);
                REQUIRE(p.inverse_wide.at(r, c.heads + 1) == 0);
            }
            CHECK(p.normalised.guards_intact());
            CHECK(p.wide.guards_intact());
        }
    });
}

TEST_CASE("gradients of prepared heads agree with complex steps and leave their neighbours alone") {
    for_each_isa([](Ops& ops) {
        for (const Case& c : cases()) {
            CAPTURE(c.d);
            CAPTURE(static_cast<int>(c.norm));
            CAPTURE(c.gain);
            CAPTURE(static_cast<int>(c.eps));
            Problem p(c);
            const Floats source = p.wide, dy = p.dwide;
            const Floats gain_before = p.dgain, bias_before = p.dbias, eps_before = p.dlog_eps;
            p.forward(ops);
            p.backward(ops);
            const size_t d = at(c.d);
            std::vector<double> gain_sum(d), gain_size(d), bias_sum(d), bias_size(d);
            std::vector<double> eps_sum(at(p.log_eps.count())), eps_size(at(p.log_eps.count()));
            for (int64_t r = 0; r < p.rows; ++r) {
                for (int64_t h = 0; h < c.heads; ++h) {
                    const auto real = p.inputs<double>(source, r, h);
                    const auto out = p.reference(real, r);
                    const double weight = p.mean_weight(real, out.inverse);
                    // Sizes of the gradient after the rotation, at n, and of n; in each both partners of a
                    // pair, whose terms the rotation adds.
                    std::vector<double> turned(d), size_g(d), size_n(d);
                    double mean_g = 0, mean_gn = 0;
                    for (int64_t i = 0; i < c.d; ++i) {
                        const int64_t column = Problem::before + h * c.d;
                        turned[at(i)] = std::abs(double{dy.at(r, column + i)}) +
                                        std::abs(double{dy.at(r, column + p.partner(i))});
                        size_g[at(i)] = turned[at(i)] * std::abs(real.gain[at(i)]);
                        size_n[at(i)] = std::abs(out.normalised[at(i)]) +
                                        std::abs(out.normalised[at(p.partner(i))]) + weight;
                        mean_g += size_g[at(i)] / static_cast<double>(d);
                        mean_gn += size_g[at(i)] * size_n[at(i)] / static_cast<double>(d);
                    }
                    if (c.norm != HeadNorm::layer) mean_g = 0;
                    if (c.norm == HeadNorm::none) mean_gn = 0;
                    auto in = p.inputs<Complex>(source, r, h);
                    const Complex nudge(0, Problem::tiny);
                    for (int64_t i = 0; i < c.d; ++i) {
                        in.x[at(i)] += nudge;
                        const double expected = p.slope(in, dy, r, h);
                        in.x[at(i)] -= nudge;
                        // dx = r (g - mean(g) - n mean(g n)): saved n (or y) and r carry one step of error
                        // each, the means another, and n enters its term twice.
                        const double bound =
                            3 * p.step() * out.inverse * (size_g[at(i)] + mean_g + size_n[at(i)] * mean_gn);
                        REQUIRE(std::abs(p.dwide.at(r, Problem::before + h * c.d + i) - expected) <= bound);

                        in.gain[at(i)] += nudge;
                        gain_sum[at(i)] += p.slope(in, dy, r, h);
                        in.gain[at(i)] -= nudge;
                        gain_size[at(i)] += turned[at(i)] * size_n[at(i)];
                        in.bias[at(i)] += nudge;
                        bias_sum[at(i)] += p.slope(in, dy, r, h);
                        in.bias[at(i)] -= nudge;
                        bias_size[at(i)] += turned[at(i)];
                    }
                    const size_t e = c.eps == Eps::per_head ? at(h) : 0;
                    in.log_eps += nudge;
                    eps_sum[e] += p.slope(in, dy, r, h);
                    eps_size[e] += 0.5 * std::exp(double{p.log_eps[static_cast<int64_t>(e)]}) * out.inverse *
                                   out.inverse * mean_gn * static_cast<double>(d);
                }
                for (int64_t i = 0; i < p.dwide.cols(); ++i)
                    if (i < Problem::before || i >= Problem::before + p.width)
                        REQUIRE(p.dwide.at(r, i) == dy.at(r, i));
            }
            // As many additions as there are heads of all tokens, each rounding at most the sum of sizes;
            // before them the rotation (2) and the product, and a step of error of the saved n.
            const double additions = static_cast<double>(p.rows * c.heads + 6) * unit;
            for (int64_t i = 0; i < c.d; ++i) {
                const double of_gain = c.gain ? gain_sum[at(i)] : 0;
                REQUIRE(std::abs(p.dgain[i] - (gain_before[i] + of_gain)) <=
                        (c.gain ? 1 : 0) * ((additions + p.step()) * gain_size[at(i)] +
                                            additions * std::abs(gain_before[i])));
                const double of_bias = p.spec.bias ? bias_sum[at(i)] : 0;
                REQUIRE(std::abs(p.dbias[i] - (bias_before[i] + of_bias)) <=
                        (p.spec.bias ? 1 : 0) * additions * (bias_size[at(i)] + std::abs(bias_before[i])));
            }
            for (int64_t e = 0; e < p.log_eps.count(); ++e) {
                // eps r^2 <n, g> / 2: r twice, n and the sum over channels once each; summed in f64,
                // then two roundings to f32.
                const double of_eps = p.spec.log_eps ? eps_sum[at(e)] : 0;
                REQUIRE(std::abs(p.dlog_eps[e] - (eps_before[e] + of_eps)) <=
                        (p.spec.log_eps ? 1 : 0) * (4 * p.step() * eps_size[at(e)] +
                                                    2 * unit * (std::abs(eps_before[e]) + std::abs(of_eps))));
            }
            CHECK(p.dwide.guards_intact());
            CHECK(p.dgain.guards_intact());
            CHECK(p.dlog_eps.guards_intact());
        }
    });
}

TEST_CASE("scores depend on the distance alone") {
    // The same query and key vector at every position: <q_i, k_j> must be a function of i - j.
    for_each_isa([](Ops& ops) {
        const int64_t length = 40, d = 64;
        Problem p({1, length, 2, d, d / 2, HeadNorm::rms, false, Eps::constant});
        for (int64_t r = 1; r < length; ++r)
            for (int64_t i = 0; i < p.wide.cols(); ++i) p.wide.at(r, i) = p.wide.at(0, i);
        p.forward(ops);
        const auto score = [&](int64_t i, int64_t j) {
            double sum = 0;
            for (int64_t k = Problem::before; k < Problem::before + d; ++k)
                sum += double{p.wide.at(i, k)} * p.wide.at(j, d + k);
            return sum;
        };
        // |q| = |k| = sqrt(d) after the norm. Rounding of one table entry or rotation errs by a few units of
        // an element; against a vector of length sqrt(d) that is at most 6 units * d.
        for (int64_t t : {0, 1, 5, 17})
            for (int64_t j = 0; j + t < length; ++j)
                CHECK(std::abs(score(j + t, j) - score(t, 0)) <= 2 * 6 * unit * static_cast<double>(d));
    });
}

TEST_CASE("heads without norm and rotary are not touched") {
    for_each_isa([](Ops& ops) {
        Problem p({2, 3, 2, 64, 0, HeadNorm::none, false, Eps::constant});
        const Floats x = p.wide, dy = p.dwide;
        p.forward(ops);
        p.backward(ops);
        CHECK(same_bits(p.wide, x));
        CHECK(same_bits(p.dwide, dy));
    });
}

TEST_CASE("a layer norm with gain 1 and bias 0 leaves mean 0 and variance 1") {
    for_each_isa([](Ops& ops) {
        Problem p({1, 9, 2, 64, 0, HeadNorm::layer, true, Eps::constant});
        p.spec.eps = 0.0f;
        for (int64_t i = 0; i < p.c.d; ++i) {
            p.gain[i] = 1;
            p.bias[i] = 0;
        }
        const Floats source = p.wide;
        p.forward(ops);
        for (int64_t r = 0; r < p.rows; ++r)
            for (int64_t h = 0; h < p.c.heads; ++h) {
                const auto in = p.inputs<double>(source, r, h);
                const double weight = p.mean_weight(in, p.inverse_wide.at(r, 1 + h));
                const double d = static_cast<double>(p.c.d);
                double mean = 0, square = 0, size = 0, square_size = 0;
                for (int64_t i = 0; i < p.c.d; ++i) {
                    const double y = p.wide.at(r, Problem::before + h * p.c.d + i);
                    mean += y / d;
                    square += y * y / d;
                    // Each element errs by a step of its size plus the mean's.
                    size += (std::abs(y) + weight) / d;
                    square_size += 2 * std::abs(y) * (std::abs(y) + weight) / d;
                }
                CHECK(std::abs(mean) <= p.step() * size);
                CHECK(std::abs(square - 1) <= p.step() * square_size);
            }
    });
}

TEST_CASE("the length of a head after an rms norm follows from its length before, whatever eps is") {
    // |y|^2 = |x|^2 / (|x|^2 / d + eps), rotary or not, eps given or learned.
    for_each_isa([](Ops& ops) {
        for (double eps : {1.0, 30.0, 1e4})
            for (Eps kind : {Eps::constant, Eps::per_head}) {
                CAPTURE(eps);
                Problem p({1, 6, 2, 64, 32, HeadNorm::rms, false, kind});
                p.spec.eps = static_cast<float>(eps);
                for (int64_t h = 0; h < p.log_eps.count(); ++h)
                    p.log_eps[h] = static_cast<float>(std::log(eps));
                const Floats source = p.wide;
                p.forward(ops);
                for (int64_t r = 0; r < p.rows; ++r)
                    for (int64_t h = 0; h < 2; ++h) {
                        double before = 0, after = 0;
                        for (int64_t i = 0; i < 64; ++i) {
                            const int64_t column = Problem::before + h * 64 + i;
                            before += double{source.at(r, column)} * source.at(r, column);
                            after += double{p.wide.at(r, column)} * p.wide.at(r, column);
                        }
                        const double expected = before / (before / 64 + eps);
                        // A step of error per element, at most doubled by the pair; the square doubles it
                        // again. A rounded log_eps moves eps by up to |log eps| units.
                        const double bound = 4 * p.step() + std::abs(std::log(eps)) * unit;
                        CHECK(std::abs(after - expected) <= bound * expected);
                    }
            }
    });
}

TEST_CASE("prepared heads and their gradients do not depend on the number of threads") {
    for (const Case& c : {Case{3, 50, 3, 64, 32, HeadNorm::rms, false, Eps::per_head},
                          Case{3, 50, 3, 64, 32, HeadNorm::rms, true, Eps::shared},
                          Case{3, 50, 3, 64, 16, HeadNorm::layer, true, Eps::constant}}) {
        CAPTURE(static_cast<int>(c.norm));
        CAPTURE(c.gain);
        check_thread_independence([&](Ops& ops) {
            Problem p(c);
            p.forward(ops);
            p.backward(ops);
            return joined(
                {&p.wide, &p.dwide, &p.normalised, &p.inverse_wide, &p.dgain, &p.dbias, &p.dlog_eps});
        });
    }
}

TEST_CASE("angles of groups of heads: the bits of each group with tables of its own") {
    for_each_isa([](Ops& ops) {
        for (const HeadNorm norm : {HeadNorm::none, HeadNorm::rms}) {
            // Tables of 12 columns: 4 pairs for each of three groups of two heads.
            const Case c = {2, 7, 6, 24, 12, norm, false, Eps::constant};
            const int64_t groups = 3, pairs = 4, width = 2 * c.d;
            Problem whole(c), apart(c);
            whole.spec.angle_heads = groups;
            whole.forward(ops);
            whole.backward(ops);
            for (int64_t g = 0; g < groups; ++g) {
                HeadSpec one = apart.spec;
                one.heads = 2;
                one.cosine = one.cosine.col_range(g * pairs, pairs);
                one.sine = one.sine.col_range(g * pairs, pairs);
                const auto heads = [&](Floats& x) {
                    return x.tensor().col_range(Problem::before + g * width, width);
                };
                const Tensor inverse = apart.inverse() ? apart.inverse().col_range(2 * g, 2) : Tensor();
                ops.prepare_heads(heads(apart.wide), Tensor(), inverse, one);
                ops.prepare_heads_backward(heads(apart.dwide), Tensor(), Tensor(), Tensor(),
                                           heads(apart.wide), Tensor(), inverse, one);
            }
            CHECK(same_bits(whole.wide, apart.wide));
            CHECK(same_bits(whole.dwide, apart.dwide));
        }
    });
}

TEST_CASE("a gain of 1 changes no bit") {
    for_each_isa([](Ops& ops) {
        for (const int64_t pairs : {0, 5, 32}) {
            CAPTURE(pairs);
            Problem plain({2, 9, 2, 64, pairs, HeadNorm::rms, false, Eps::constant});
            Problem gained({2, 9, 2, 64, pairs, HeadNorm::rms, true, Eps::constant});
            for (int64_t i = 0; i < gained.gain.cols(); ++i) gained.gain.at(0, i) = 1;
            plain.forward(ops);
            gained.forward(ops);
            CHECK(same_bits(gained.wide, plain.wide));
        }
    });
}
