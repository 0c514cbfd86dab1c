// gate, exclude_own_value and their gradients against double precision, the gradients by complex steps.
#include <complex>

#include "kernels/support.h"

using namespace longreach;
using namespace longreach::test;

namespace {

using Complex = std::complex<double>;

template <class T>
T sigmoid(T u) {
    return 1.0 / (1.0 + std::exp(-u));
}
// Relative error of the sigmoid and of one minus it, as simd_math.h states it: that of the
// exponential and three roundings.
double sigmoid_error(double u) {
    return 2e-7 + std::abs(u) * 6e-8 + 3 * unit;
}

struct Case {
    int64_t rows, heads, d;
    bool per_channel;
    float factor;
    bool times_input = false;
    GateSpec spec() const { return {factor, times_input}; }
    template <class T>
    T gate(T u) const {
        return times_input ? u * sigmoid(u) : sigmoid(u);
    }
    // The derivative of the gate, and the sum of the sizes of its two terms.
    double slope(double u) const { return gate(Complex(u, 1e-30)).imag() / 1e-30; }
    double slope_size(double u) const {
        const double s = sigmoid(u), curve = sigmoid(Complex(u, 1e-30)).imag() / 1e-30;
        return times_input ? s + std::abs(u) * curve : curve;
    }
};
std::vector<Case> cases() {
    std::vector<Case> all;
    for (bool per_channel : {false, true})
        for (bool times_input : {false, true})
            for (float factor : {1.0f, 2.0f}) {
                all.push_back({5, 3, 24, per_channel, factor, times_input});
                all.push_back({4, 20, 6, per_channel, factor, times_input});  // more heads than lanes
                all.push_back({1, 1, 7, per_channel, factor, times_input});
                // Above the size from which ops run in parallel.
                all.push_back({70, 4, 64, per_channel, factor, times_input});
            }
    return all;
}

// u and o are ranges of columns of wider matrices.
struct Problem {
    Case c;
    int64_t width, gates;
    Floats u, o, dy, y, dout, du;

    explicit Problem(const Case& which)
        : c(which),
          width(c.heads * c.d),
          gates(c.per_channel ? width : c.heads),
          u(normal(c.rows, gates + 3, 1, 3.0)),
          o(normal(c.rows, width + 4, 2)),
          dy(normal(c.rows, width, 3, 1.0, 0.2)),
          y(c.rows, width, width + 2),
          dout(c.rows, width, width + 1),
          du(c.rows, gates, gates + 5) {
        u[1] = 30;
        u[2] = -30;
    }
    Tensor gate() { return u.tensor().col_range(1, gates); }
    Tensor from() { return o.tensor().col_range(2, width); }
    double logit(int64_t r, int64_t i) const { return u.at(r, 1 + (c.per_channel ? i : i / c.d)); }
    double input(int64_t r, int64_t i) const { return o.at(r, 2 + i); }
};

}  // namespace

TEST_CASE("a gate agrees with its definition") {
    for_each_isa([](Ops& ops) {
        for (const Case& c : cases()) {
            CAPTURE(c.heads);
            CAPTURE(c.per_channel);
            Problem p(c);
            ops.gate(p.y.tensor(), p.gate(), p.from(), c.spec());
            const auto expected = [&](int64_t i) {
                const int64_t r = i / p.width, k = i % p.width;
                return double{c.factor} * c.gate(p.logit(r, k)) * p.input(r, k);
            };
            // The sigmoid and at most three products.
            CHECK(worst(p.y, expected, [&](int64_t i) {
                      const double u = p.logit(i / p.width, i % p.width);
                      return (sigmoid_error(u) + 3 * unit) * std::abs(expected(i));
                  }) <= 1);
            CHECK(p.y.guards_intact());
        }
    });
}

TEST_CASE("gradients of a gate agree with complex steps") {
    for_each_isa([](Ops& ops) {
        for (const Case& c : cases()) {
            CAPTURE(c.heads);
            CAPTURE(c.per_channel);
            Problem p(c);
            ops.gate_backward(p.dout.tensor(), p.du.tensor(), p.dy.tensor(), p.gate(), p.from(), c.spec());
            const double factor = c.factor;
            const auto of_output = [&](int64_t i) {  // linear in o: the factor itself
                const int64_t r = i / p.width, k = i % p.width;
                return factor * c.gate(p.logit(r, k)) * p.dy.at(r, k);
            };
            CHECK(worst(p.dout, of_output, [&](int64_t i) {
                      const double u = p.logit(i / p.width, i % p.width);
                      return (sigmoid_error(u) + 3 * unit) * std::abs(of_output(i));
                  }) <= 1);
            // Channels that share the gate i.
            const int64_t sharing = p.width / p.gates;
            const auto of_gate = [&](int64_t i, bool absolute) {
                const int64_t r = i / p.gates;
                double sum = 0;
                for (int64_t k = i % p.gates * sharing; k < (i % p.gates + 1) * sharing; ++k) {
                    const double u = p.logit(r, k), slope = absolute ? c.slope_size(u) : c.slope(u);
                    const double term = factor * slope * p.input(r, k) * p.dy.at(r, k);
                    sum += absolute ? std::abs(term) : term;
                }
                return sum;
            };
            // s and 1 - s err once each; the products and the sum over the channels.
            CHECK(worst(
                      p.du, [&](int64_t i) { return of_gate(i, false); },
                      [&](int64_t i) {
                          const double u = p.logit(i / p.gates, i % p.gates * sharing);
                          return (2 * sigmoid_error(u) + static_cast<double>(sharing + 7) * unit) *
                                 of_gate(i, true);
                      }) <= 1);
            CHECK(p.dout.guards_intact());
            CHECK(p.du.guards_intact());
        }
    });
}

TEST_CASE("the gradient at the output of attention may overwrite the gradient after the gate") {
    for_each_isa([](Ops& ops) {
        for (const Case& c : cases()) {
            Problem p(c);
            ops.gate_backward(p.dout.tensor(), p.du.tensor(), p.dy.tensor(), p.gate(), p.from(), c.spec());
            const Floats du = p.du;
            ops.gate_backward(p.dy.tensor(), p.du.tensor(), p.dy.tensor(), p.gate(), p.from(), c.spec());
            CHECK(same_bits(p.dy, p.dout));
            CHECK(same_bits(p.du, du));
        }
    });
}

TEST_CASE("a doubled gate of zero changes nothing") {
    for_each_isa([](Ops& ops) {
        for (bool per_channel : {false, true}) {
            Problem p({4, 3, 24, per_channel, 2.0f});
            for (int64_t i = 0; i < p.u.count(); ++i) p.u[i] = 0;
            ops.gate(p.y.tensor(), p.gate(), p.from(), 2.0f);
            CHECK(worst(
                      p.y, [&](int64_t i) { return p.input(i / p.width, i % p.width); },
                      [](int64_t) { return 0.0; }) == 0);
        }
    });
}

TEST_CASE("a gate and its gradients do not depend on the number of threads") {
    for (bool per_channel : {false, true})
        check_thread_independence([&](Ops& ops) {
            Problem p({90, 4, 64, per_channel, 2.0f});
            ops.gate(p.y.tensor(), p.gate(), p.from(), p.c.spec());
            ops.gate_backward(p.dout.tensor(), p.du.tensor(), p.dy.tensor(), p.gate(), p.from(), p.c.spec());
            return joined({&p.y, &p.dout, &p.du});
        });
}

namespace {

// The output of attention without the token's own value: o of `heads` heads, v of `kv_heads`.
struct OwnValue {
    int64_t rows, heads, kv_heads, d;
    Floats o, v, dy, y, dout, dv;

    OwnValue(int64_t n, int64_t h, int64_t g, int64_t channels)
        : rows(n),
          heads(h),
          kv_heads(g),
          d(channels),
          o(normal(n, h * d, 1, 1, 0, h * d + 4)),
          v(normal(n, g * d + 3, 2, 1, 0.3)),
          dy(normal(n, h * d, 3, 1, 0.2)),
          y(n, h * d, h * d + 2),
          dout(n, h * d, h * d + 1),
          dv(n, g * d, g * d + 5) {}
    Tensor values() { return v.tensor().col_range(2, kv_heads * d); }
    double value(int64_t r, int64_t h, int64_t i) const {
        return v.at(r, 2 + h / (heads / kv_heads) * d + i);
    }
    void forward(Ops& ops) { ops.exclude_own_value(y.tensor(), o.tensor(), values(), d); }
    void backward(Ops& ops, Floats& to) {
        ops.exclude_own_value_backward(to.tensor(), dv.tensor(), dy.tensor(), o.tensor(), values(), d);
    }

    // <x, v> / <v, v> of a head, x either o or dy, and how far f32 may be from it: a dot product errs by as many roundings
    // as it has terms and one each, of the sizes of the terms.
    struct Share {
        double value, error;
    };
    Share share(const Floats& x, int64_t r, int64_t h) const {
        double along = 0, sizes = 0, square = 0;
        for (int64_t i = 0; i < d; ++i) {
            const double own = value(r, h, i), term = own * x.at(r, h * d + i);
            along += term;
            sizes += std::abs(term);
            square += own * own;
        }
        square = std::max(square, double{own_value_floor});
        const double roundings = static_cast<double>(d + 2) * unit;
        return {along / square,
                roundings * (sizes + std::abs(along)) / square + 3 * unit * std::abs(along / square)};
    }
    // x - share(x) v at channel i of a row of heads, and its bound.
    Share without(const Floats& x, int64_t i) const {
        const int64_t r = i / (heads * d), h = i % (heads * d) / d;
        const Share s = share(x, r, h);
        const double own = value(r, h, i % d), from = x.at(r, i % (heads * d));
        const double result = from - s.value * own;
        return {result, s.error * std::abs(own) + 2 * unit * (std::abs(from) + std::abs(s.value * own))};
    }
    // The gradient at channel i of a row of values: the imaginary part of <dy, y> where that channel has a small one.
    double value_gradient(int64_t r, int64_t g, int64_t i) const {
        constexpr double step = 1e-30;
        Complex sum = 0;
        for (int64_t h = g * (heads / kv_heads); h < (g + 1) * (heads / kv_heads); ++h) {
            Complex along = 0, square = 0, dy_along = 0;
            for (int64_t c = 0; c < d; ++c) {
                const Complex own(value(r, h, c), c == i ? step : 0);
                along += own * double{o.at(r, h * d + c)};
                dy_along += own * double{dy.at(r, h * d + c)};
                square += own * own;
            }
            sum -= along / square * dy_along;
        }
        return sum.imag() / step;
    }
    double value_bound(int64_t r, int64_t g, int64_t i) const {
        const int64_t each = heads / kv_heads;
        double bound = 0;
        for (int64_t h = g * each; h < (g + 1) * each; ++h) {
            const Share a = share(o, r, h), b = share(dy, r, h);
            const double own = std::abs(value(r, h, i)), from = std::abs(o.at(r, h * d + i));
            const double gradient = std::abs(dy.at(r, h * d + i)), x = std::abs(a.value),
                         z = std::abs(b.value);
            bound += 2 * own * (a.error * z + b.error * x) + gradient * a.error + from * b.error +
                     static_cast<double>(5 + each) * unit * (2 * x * z * own + x * gradient + z * from);
        }
        return bound;
    }
};
// Fewer channels than a vector; a head for each value and shared values; enough to run in parallel.
std::vector<OwnValue> own_values() {
    return {{5, 3, 3, 24}, {4, 6, 2, 6}, {1, 1, 1, 7}, {3, 2, 1, 256}, {70, 4, 2, 64}};
}

}  // namespace

TEST_CASE("an output without its own value, and its gradients, agree with their definition") {
    for_each_isa([](Ops& ops) {
        for (OwnValue& p : own_values()) {
            CAPTURE(p.heads);
            CAPTURE(p.d);
            p.forward(ops);
            CHECK(worst(
                      p.y, [&](int64_t i) { return p.without(p.o, i).value; },
                      [&](int64_t i) { return p.without(p.o, i).error; }) <= 1);
            p.backward(ops, p.dout);
            CHECK(worst(
                      p.dout, [&](int64_t i) { return p.without(p.dy, i).value; },
                      [&](int64_t i) { return p.without(p.dy, i).error; }) <= 1);
            const int64_t width = p.kv_heads * p.d;
            CHECK(worst(
                      p.dv, [&](int64_t i) { return p.value_gradient(i / width, i % width / p.d, i % p.d); },
                      [&](int64_t i) { return p.value_bound(i / width, i % width / p.d, i % p.d); }) <= 1);
            CHECK(p.y.guards_intact());
            CHECK(p.dout.guards_intact());
            CHECK(p.dv.guards_intact());
            const Floats dv = p.dv;
            p.backward(ops, p.dy);
            CHECK(same_bits(p.dy, p.dout));
            CHECK(same_bits(p.dv, dv));
        }
    });
}

TEST_CASE("a value of zero takes nothing away") {
    for_each_isa([](Ops& ops) {
        OwnValue p(2, 4, 2, 16);
        for (int64_t i = 0; i < p.v.count(); ++i) p.v[i] = 0;
        p.forward(ops);
        p.backward(ops, p.dout);
        CHECK(same_bits(p.y, p.o));
        CHECK(same_bits(p.dout, p.dy));
        CHECK(worst(
                  p.dv, [](int64_t) { return 0.0; }, [](int64_t) { return 0.0; }) == 0);
    });
}

TEST_CASE("an output without its own value does not depend on the number of threads") {
    check_thread_independence([](Ops& ops) {
        OwnValue p(90, 4, 2, 64);
        p.forward(ops);
        p.backward(ops, p.dout);
        return joined({&p.y, &p.dout, &p.dv});
    });
}
