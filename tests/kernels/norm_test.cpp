// norm and norm_backward against double precision: the forward by its definition,
// the gradient by complex steps.
#include <complex>

#include "kernels/support.h"

using namespace longreach;
using namespace longreach::test;

namespace {

using Complex = std::complex<double>;

struct Case {
    int64_t rows, width;
    NormKind kind;
    bool gain, bias;
};

std::vector<Case> cases() {
    std::vector<Case> all;
    for (auto [rows, width] : {std::pair<int64_t, int64_t>{1, 24}, {7, 100}, {3, 257}, {300, 33}, {2, 1000}})
        for (NormKind kind : {NormKind::rms, NormKind::layer})
            for (bool affine : {false, true})
                all.push_back({rows, width, kind, affine, affine && kind == NormKind::layer});
    return all;
}

// One row by the definition; T is double or Complex.
template <class T>
std::vector<T> reference(const std::vector<T>& x, const NormSpec& spec) {
    const double n = static_cast<double>(x.size());
    T mean = 0, variance = 0;
    if (spec.kind == NormKind::layer)
        for (const T& v : x) mean += v / n;
    for (const T& v : x) variance += (v - mean) * (v - mean) / n;
    std::vector<T> y;
    for (const T& v : x) y.push_back((v - mean) / std::sqrt(variance + double{spec.eps}));
    return y;
}

struct Problem {
    Case c;
    NormSpec spec;
    Floats x, dy, gain, bias, y, normalised, inverse;

    explicit Problem(const Case& which)
        : c(which),
          spec{which.kind, 1e-3f},
          x(normal(c.rows, c.width, 1, 1.5, 0.5, c.width + 5)),
          dy(normal(c.rows, c.width, 2, 1.0, 0.1)),
          gain(normal(1, c.width, 3, 0.3, 1.0)),
          bias(normal(1, c.width, 4, 0.3)),
          y(c.rows, c.width, c.width + 3),
          normalised(c.rows, c.width),
          inverse(1, c.rows) {}

    Tensor gain_or_none() { return c.gain ? gain.vector() : Tensor(); }
    Tensor bias_or_none() { return c.bias ? bias.vector() : Tensor(); }
    void forward(Ops& ops) {
        ops.norm(y.tensor(), normalised.tensor(), inverse.vector(), x.tensor(), gain_or_none(),
                 bias_or_none(), spec);
    }
    std::vector<double> row(int64_t r) const {
        std::vector<double> values;
        for (int64_t i = 0; i < c.width; ++i) values.push_back(x.at(r, i));
        return values;
    }
    // r * mean |x|: how much an error of the mean weighs in a normalised element; 0 for RMS.
    double mean_weight(int64_t r) const {
        if (c.kind == NormKind::rms) return 0;
        double sum = 0;
        for (double v : row(r)) sum += std::abs(v);
        return sum / static_cast<double>(c.width) * double{inverse[r]};
    }
    // Any order of summing C terms errs by at most C * unit * sum |terms|: mean and variance each once, then
    // a few roundings. The inverse root halves the variance's relative error.
    double step() const { return static_cast<double>(c.width + 8) * unit; }
};

}  // namespace

TEST_CASE("norm agrees with its definition") {
    for_each_isa([](Ops& ops) {
        for (const Case& c : cases()) {
            CAPTURE(c.rows);
            CAPTURE(c.width);
            CAPTURE(static_cast<int>(c.kind));
            CAPTURE(c.gain);
            Problem p(c);
            p.forward(ops);
            for (int64_t r = 0; r < c.rows; ++r) {
                const std::vector<double> expected = reference(p.row(r), p.spec);
                double most = 0;
                for (int64_t i = 0; i < c.width; ++i) {
                    const double n = expected[static_cast<size_t>(i)];
                    const double gain = c.gain ? p.gain[i] : 1.0, bias = c.bias ? p.bias[i] : 0.0;
                    const double bound = p.step() * (std::abs(n) + p.mean_weight(r));
                    most = std::max(most, std::abs(p.normalised.at(r, i) - n) / bound);
                    const double y = gain * n + bias;
                    const double y_bound = std::abs(gain) * bound + unit * (std::abs(gain * n) + std::abs(y));
                    most = std::max(most, std::abs(p.y.at(r, i) - y) / y_bound);
                }
                CHECK(most <= 1);
            }
            CHECK(p.y.guards_intact());
            CHECK(p.normalised.guards_intact());
        }
    });
}

TEST_CASE("norm writes y and normalised once where they are the same array, and y may be x") {
    for_each_isa([](Ops& ops) {
        Problem p({7, 100, NormKind::rms, false, false});
        p.forward(ops);
        Floats both(7, 100);
        ops.norm(both.tensor(), both.tensor(), p.inverse.vector(), p.x.tensor(), Tensor(), Tensor(), p.spec);
        CHECK(same_bits(both, p.normalised));
        Floats in_place = p.x, saved(7, 100);
        ops.norm(in_place.tensor(), saved.tensor(), p.inverse.vector(), in_place.tensor(), Tensor(), Tensor(),
                 p.spec);
        CHECK(same_bits(in_place, both));
        CHECK(same_bits(saved, both));
    });
}

TEST_CASE("the gradient of norm agrees with complex steps") {
    for_each_isa([](Ops& ops) {
        for (const Case& c : cases()) {
            if (c.rows > 10) continue;
            CAPTURE(c.rows);
            CAPTURE(c.width);
            CAPTURE(static_cast<int>(c.kind));
            CAPTURE(c.gain);
            Problem p(c);
            p.forward(ops);
            Floats dx(c.rows, c.width, c.width + 1), added = normal(c.rows, c.width, 5);
            const Floats before = added;
            ops.norm_backward(dx.tensor(), Tensor(), Tensor(), p.dy.tensor(), p.normalised.tensor(),
                              p.inverse.vector(), p.gain_or_none(), p.spec, Write::set);
            ops.norm_backward(added.tensor(), Tensor(), Tensor(), p.dy.tensor(), p.normalised.tensor(),
                              p.inverse.vector(), p.gain_or_none(), p.spec, Write::add);
            const int64_t stride = c.width > 300 ? 37 : 1;  // a sample of the elements of wide rows
            for (int64_t r = 0; r < c.rows; ++r) {
                std::vector<Complex> x;
                for (double v : p.row(r)) x.push_back(v);
                const double weight = p.mean_weight(r), inverse = p.inverse[r];
                double mean_g = 0, mean_gn = 0;
                for (int64_t i = 0; i < c.width; ++i) {
                    const double g = std::abs(p.dy.at(r, i) * (c.gain ? double{p.gain[i]} : 1.0));
                    mean_g += g / static_cast<double>(c.width);
                    mean_gn +=
                        g * (std::abs(double{p.normalised.at(r, i)}) + weight) / static_cast<double>(c.width);
                }
                for (int64_t i = 0; i < c.width; i += stride) {
                    const double h = 1e-30;
                    x[static_cast<size_t>(i)] += Complex(0, h);
                    const std::vector<Complex> y = reference(x, p.spec);
                    x[static_cast<size_t>(i)] -= Complex(0, h);
                    double expected = 0;
                    for (int64_t k = 0; k < c.width; ++k)
                        expected += p.dy.at(r, k) * (c.gain ? double{p.gain[k]} : 1.0) *
                                    y[static_cast<size_t>(k)].imag() / h;
                    // dx = r (g - mean(g) - n mean(g n)): the saved n and r carry one step of error each, the
                    // means another, and n enters its term twice.
                    const double g = std::abs(p.dy.at(r, i) * (c.gain ? double{p.gain[i]} : 1.0));
                    const double bound =
                        3 * p.step() * inverse *
                        (g + mean_g + (std::abs(double{p.normalised.at(r, i)}) + weight) * mean_gn);
                    REQUIRE(std::abs(dx.at(r, i) - expected) <= bound);
                    const double sum = before.at(r, i) + expected;
                    REQUIRE(std::abs(added.at(r, i) - sum) <= bound + unit * std::abs(sum) * 2);
                }
            }
            CHECK(dx.guards_intact());
        }
    });
}

TEST_CASE("norm_backward may overwrite dy") {
    for_each_isa([](Ops& ops) {
        Problem p({7, 100, NormKind::layer, true, true});
        p.forward(ops);
        Floats dx(7, 100), in_place = p.dy;
        for (Floats* to : {&dx, &in_place})
            ops.norm_backward(to->tensor(), Tensor(), Tensor(), to == &dx ? p.dy.tensor() : to->tensor(),
                              p.normalised.tensor(), p.inverse.vector(), p.gain.vector(), p.spec, Write::set);
        CHECK(same_bits(dx, in_place));
    });
}

TEST_CASE("gradients of gain and bias accumulate sums over the rows") {
    for_each_isa([](Ops& ops) {
        for (int64_t rows : {1, 7, 300}) {
            CAPTURE(rows);
            Problem p({rows, 33, NormKind::layer, true, true});
            p.forward(ops);
            Floats dx(rows, 33), dgain = normal(1, 33, 6), dbias = normal(1, 33, 7);
            const Floats gain_before = dgain, bias_before = dbias;
            ops.norm_backward(dx.tensor(), dgain.vector(), dbias.vector(), p.dy.tensor(),
                              p.normalised.tensor(), p.inverse.vector(), p.gain.vector(), p.spec, Write::set);
            const auto sums = [&](int64_t c, bool weighted, bool absolute) {
                double sum = 0;
                for (int64_t r = 0; r < rows; ++r) {
                    const double term = p.dy.at(r, c) * (weighted ? double{p.normalised.at(r, c)} : 1.0);
                    sum += absolute ? std::abs(term) : term;
                }
                return sum;
            };
            // rows additions, the product and the final sum: each a rounding of at most
            // the sum of magnitudes.
            const double step = static_cast<double>(rows + 4) * unit;
            CHECK(worst(
                      dgain, [&](int64_t c) { return gain_before[c] + sums(c, true, false); },
                      [&](int64_t c) { return step * (std::abs(gain_before[c]) + sums(c, true, true)); }) <=
                  1);
            CHECK(worst(
                      dbias, [&](int64_t c) { return bias_before[c] + sums(c, false, false); },
                      [&](int64_t c) { return step * (std::abs(bias_before[c]) + sums(c, false, true)); }) <=
                  1);
            CHECK(dgain.guards_intact());
        }
    });
}

TEST_CASE("norm and its gradient do not depend on the number of threads") {
    // 300 rows of 257: above the size from which ops run in parallel.
    const auto run = [](Ops& ops, auto pick) {
        Problem p({300, 257, NormKind::layer, true, true});
        p.forward(ops);
        Floats dx(300, 257), dgain(1, 257), dbias(1, 257);
        ops.norm_backward(dx.tensor(), dgain.vector(), dbias.vector(), p.dy.tensor(), p.normalised.tensor(),
                          p.inverse.vector(), p.gain.vector(), p.spec, Write::set);
        return pick(p.y, dx, dgain, dbias);
    };
    check_thread_independence([&](Ops& ops) { return run(ops, [](Floats& y, auto&...) { return y; }); });
    check_thread_independence(
        [&](Ops& ops) { return run(ops, [](Floats&, Floats& dx, auto&...) { return dx; }); });
    check_thread_independence(
        [&](Ops& ops) { return run(ops, [](Floats&, Floats&, Floats& g, Floats&) { return g; }); });
    check_thread_independence(
        [&](Ops& ops) { return run(ops, [](Floats&, Floats&, Floats&, Floats& b) { return b; }); });
}
