// Activations and mixing against double precision. Gradients: central differences of the definition.
#include "kernels/support.h"

using namespace longreach;
using namespace longreach::test;

namespace {

// Relative error of the vector exponential at an argument that itself carries `roundings` roundings:
// 2e-7 for the polynomial and its rounding, then |x| units per rounding of x, one of them the factor log2(e).
double exp_error(double x, double roundings) {
    return 2e-7 + std::abs(x) * (roundings + 2) * unit;
}

double gelu(double a) {
    return 0.5 * a * std::erfc(-a / std::sqrt(2.0));
}
double tanh_argument(double a) {
    return 2 * std::sqrt(2 / M_PI) * (a + 0.044715 * a * a * a);
}
double logistic(double x) {
    return 1 / (1 + std::exp(-x));
}
double gelu_tanh(double a) {
    return a * logistic(tanh_argument(a));
}
double silu(double a) {
    return a * logistic(a);
}

template <class F>
double slope(F f, double a) {
    const double h = 1e-5;  // error: h^2/6 * |f'''| < 1e-10 and rounding of f below 13 * 2^-53 / h < 2e-10
    return (f(a + h) - f(a - h)) / (2 * h);
}
constexpr double difference_error = 1e-9;

// |error| of the lower tail P(Z < x): bell times a polynomial (5e-7 with rounding), or one minus that.
double below_error(double a) {
    const double tail = 0.5 * std::erfc(std::abs(a) / std::sqrt(2.0));
    return tail * (5e-7 + exp_error(a * a / 2, 1)) + (a > 0 ? unit : 0) + 1e-38;
}
double gelu_bound(double a) {
    return std::abs(a) * below_error(a) + 2 * unit * std::abs(gelu(a)) + 1e-37;
}
double gelu_slope_bound(double a) {
    const double bell = std::abs(a) * std::exp(-a * a / 2) * 0.4;
    return below_error(a) + bell * (exp_error(a * a / 2, 1) + 4 * unit) + 2 * unit + difference_error;
}

// s(w), 1 - s(w): the exponential's error weighs with 1 - s in s and with s in 1 - s;
// then three roundings each.
double logistic_error(double w, double roundings) {
    return exp_error(w, roundings) + 4 * unit;
}
double gelu_tanh_bound(double a) {
    const double w = tanh_argument(a), s = logistic(w);
    // The kernel's s stops falling at e^-87 < 2e-38.
    return std::abs(a) * (s * ((1 - s) * exp_error(w, 5) + 4 * unit) + 2e-38);
}
double gelu_tanh_slope_bound(double a) {
    const double w = tanh_argument(a), s = logistic(w);
    const double tail = std::abs(a * slope(tanh_argument, a)) * s * (1 - s);
    return s * ((1 - s) * exp_error(w, 5) + 4 * unit) + tail * (2 * logistic_error(w, 5) + 6 * unit) +
           2 * unit + difference_error;
}

// Values from the far tails to the centre, then random ones.
Floats arguments(int64_t rows, int64_t cols, int64_t stride = 0) {
    Floats a = normal(rows, cols, 1, 2.0, 0, stride);
    const std::vector<float> special = {0.0f,  -0.0f, 1e-30f, -1e-5f, 0.5f,  -0.75f, 3.0f,
                                        -3.5f, 5.5f,  -6.0f,  9.0f,   -9.4f, 13.0f,  -13.0f};
    for (size_t i = 0; i < special.size() && static_cast<int64_t>(i) < a.count(); ++i)
        a[static_cast<int64_t>(i)] = special[i];
    return a;
}

const std::vector<std::pair<int64_t, int64_t>> shapes = {{1, 24}, {7, 100}, {3, 257}, {50, 512}};

}  // namespace

TEST_CASE("gelu and gelu_tanh agree with their definitions") {
    for_each_isa([](Ops& ops) {
        for (auto [rows, cols] : shapes) {
            for (int64_t padding : {0, 5}) {
                Floats a = arguments(rows, cols, cols + padding), h(rows, cols, cols + padding);
                ops.activation(h.tensor(), a.tensor(), Activation::gelu);
                CHECK(worst(
                          h, [&](int64_t i) { return gelu(a[i]); },
                          [&](int64_t i) { return gelu_bound(a[i]); }) <= 1);
                ops.activation(h.tensor(), a.tensor(), Activation::gelu_tanh);
                CHECK(worst(
                          h, [&](int64_t i) { return gelu_tanh(a[i]); },
                          [&](int64_t i) { return gelu_tanh_bound(a[i]); }) <= 1);
                CHECK(h.guards_intact());
            }
        }
    });
}

TEST_CASE("gradients of gelu and gelu_tanh agree with central differences") {
    for_each_isa([](Ops& ops) {
        for (auto [rows, cols] : shapes) {
            for (int64_t padding : {0, 5}) {
                Floats a = arguments(rows, cols, cols + padding), dh = normal(rows, cols, 2),
                       da(rows, cols, cols + padding);
                ops.activation_backward(da.tensor(), dh.tensor(), a.tensor(), Activation::gelu);
                CHECK(worst(
                          da, [&](int64_t i) { return dh[i] * slope(gelu, a[i]); },
                          [&](int64_t i) { return std::abs(dh[i]) * gelu_slope_bound(a[i]); }) <= 1);
                ops.activation_backward(da.tensor(), dh.tensor(), a.tensor(), Activation::gelu_tanh);
                CHECK(worst(
                          da, [&](int64_t i) { return dh[i] * slope(gelu_tanh, a[i]); },
                          [&](int64_t i) { return std::abs(dh[i]) * gelu_tanh_slope_bound(a[i]); }) <= 1);
                CHECK(da.guards_intact());
            }
        }
    });
}

TEST_CASE("silu and its gradient agree with the definition; both may overwrite what they read") {
    for_each_isa([](Ops& ops) {
        for (auto [rows, cols] : shapes) {
            const Floats a = arguments(rows, cols, cols + 5), dh = normal(rows, cols, 2, 1, 0, cols + 5);
            Floats h = a, da = dh, at = a;
            ops.activation(h.tensor(), h.tensor(), Activation::silu);
            ops.activation_backward(da.tensor(), da.tensor(), at.tensor(), Activation::silu);
            CHECK(worst(
                      h, [&](int64_t i) { return silu(a[i]); },
                      [&](int64_t i) {
                          return std::abs(silu(a[i])) * (logistic_error(a[i], 0) + 3 * unit) + 1e-37;
                      }) <= 1);
            CHECK(worst(
                      da, [&](int64_t i) { return dh[i] * slope(silu, a[i]); },
                      [&](int64_t i) {
                          const double s = logistic(a[i]), terms = s * (1 + std::abs(a[i]) * (1 - s));
                          return std::abs(dh[i]) *
                                     (terms * (2 * logistic_error(a[i], 0) + 6 * unit) + difference_error) +
                                 1e-37;
                      }) <= 1);
            CHECK(h.guards_intact());
            CHECK(da.guards_intact());
        }
    });
}

TEST_CASE("swiglu and its gradient agree with the definition") {
    for_each_isa([](Ops& ops) {
        for (auto [rows, cols] : shapes) {
            Floats a = arguments(rows, 2 * cols, 2 * cols + 3), h(rows, cols), dh = normal(rows, cols, 2),
                   da(rows, 2 * cols, 2 * cols + 7);
            ops.activation(h.tensor(), a.tensor(), Activation::swiglu);
            ops.activation_backward(da.tensor(), dh.tensor(), a.tensor(), Activation::swiglu);
            double most = 0;
            for (int64_t r = 0; r < rows; ++r) {
                for (int64_t c = 0; c < cols; ++c) {
                    const double gate = a.at(r, c), up = a.at(r, c + cols), d = dh.at(r, c),
                                 s = logistic(gate);
                    const double error = logistic_error(gate, 0);
                    const double h_bound = std::abs(silu(gate) * up) * (error + 3 * unit) + 1e-37;
                    most = std::max(most, std::abs(h.at(r, c) - silu(gate) * up) / h_bound);
                    const double up_bound = std::abs(silu(gate) * d) * (error + 3 * unit) + 1e-37;
                    most = std::max(most, std::abs(da.at(r, c + cols) - d * silu(gate)) / up_bound);
                    // s (1 + gate (1 - s)): the bracket may cancel, its terms carry two relative errors each.
                    const double gate_bound =
                        std::abs(d * up) *
                        (s * (1 + std::abs(gate) * (1 - s)) * (2 * error + 6 * unit) + difference_error);
                    most = std::max(
                        most, std::abs(da.at(r, c) - d * up * slope(silu, gate)) / (gate_bound + 1e-37));
                }
            }
            CHECK(most <= 1);
            CHECK(da.guards_intact());
        }
    });
}

TEST_CASE("geglu_tanh is gelu_tanh of the gate times the other half, and so is its gradient") {
    for_each_isa([](Ops& ops) {
        for (auto [rows, cols] : shapes) {
            Floats a = arguments(rows, 2 * cols, 2 * cols + 3), h(rows, cols), dh = normal(rows, cols, 2),
                   da(rows, 2 * cols, 2 * cols + 7);
            ops.activation(h.tensor(), a.tensor(), Activation::geglu_tanh);
            ops.activation_backward(da.tensor(), dh.tensor(), a.tensor(), Activation::geglu_tanh);
            double most = 0;
            for (int64_t r = 0; r < rows; ++r)
                for (int64_t c = 0; c < cols; ++c) {
                    const double gate = a.at(r, c), up = a.at(r, c + cols), d = dh.at(r, c);
                    // Two products follow the function, one in the gradient of `up`.
                    const double value = gelu_tanh_bound(gate) + 3 * unit * std::abs(gelu_tanh(gate));
                    const auto compare = [&](double got, double wanted, double factor, double bound) {
                        most = std::max(most, std::abs(got - wanted) / (std::abs(factor) * bound + 1e-37));
                    };
                    compare(h.at(r, c), gelu_tanh(gate) * up, up, value);
                    compare(da.at(r, c + cols), d * gelu_tanh(gate), d, value);
                    const double slope_at = slope(gelu_tanh, gate);
                    compare(da.at(r, c), d * up * slope_at, d * up,
                            gelu_tanh_slope_bound(gate) + 3 * unit * std::abs(slope_at));
                }
            CHECK(most <= 1);
            CHECK(da.guards_intact());
        }
    });
}

TEST_CASE("activations of huge arguments stay finite, NaN stays NaN") {
    for_each_isa([](Ops& ops) {
        for (Activation kind : {Activation::gelu, Activation::gelu_tanh}) {
            Floats a(1, 40), h(1, 40), da(1, 40), dh(1, 40);
            for (int64_t i = 0; i < 40; ++i) {
                dh[i] = 1;
                a[i] = (i % 2 ? -1.0f : 1.0f) * std::pow(10.0f, static_cast<float>(i) / 2);
            }
            a[7] = std::nanf("");
            ops.activation(h.tensor(), a.tensor(), kind);
            ops.activation_backward(da.tensor(), dh.tensor(), a.tensor(), kind);
            for (int64_t i = 0; i < 40; ++i) {
                CHECK(std::isnan(h[i]) == (i == 7));
                CHECK(std::isnan(da[i]) == (i == 7));
                if (i != 7 && std::abs(a[i]) > 14) CHECK(std::abs(h[i] - (a[i] > 0 ? a[i] : 0.0f)) < 1e-6f);
            }
        }
    });
}

TEST_CASE("mix adds scaled streams, also in place") {
    for_each_isa([](Ops& ops) {
        Floats param = normal(1, 2, 9);
        const Coefficient a{Tensor(param.data(), DType::f32, {1}), 0.5f, 1.0f}, b{Tensor(), 0.0f, -0.25f};
        const double va = 1.0 + 0.5 * param[0], vb = -0.25;
        for (auto [rows, cols] : shapes) {
            for (int64_t padding : {0, 3}) {
                Floats x = normal(rows, cols, 1, 1, 0, cols + padding), y = normal(rows, cols, 2),
                       out(rows, cols);
                ops.mix(out.tensor(), a, x.tensor(), b, y.tensor());
                // The coefficient (two roundings), two products and a sum.
                CHECK(worst(
                          out, [&](int64_t i) { return va * x[i] + vb * y[i]; },
                          [&](int64_t i) {
                              return 5 * unit *
                                     ((1 + std::abs(0.5 * param[0])) * std::abs(x[i]) + std::abs(vb * y[i]));
                          }) <= 1);
                Floats in_place = x;
                ops.mix(in_place.tensor(), a, in_place.tensor(), b, y.tensor());
                CHECK(same_bits(in_place, out));
                CHECK(in_place.guards_intact());
            }
        }
    });
}

TEST_CASE("mix_backward: streams, learned coefficients, aliases and absent parts") {
    for_each_isa([](Ops& ops) {
        Floats param = normal(1, 2, 9);
        const Coefficient a{Tensor(param.data(), DType::f32, {1}), 0.5f, 1.0f};
        const Coefficient b{Tensor(param.data() + 1, DType::f32, {1}), -2.0f, 0.0f};
        const double va = 1.0 + 0.5 * param[0], vb = -2.0 * param[1];
        for (auto [rows, cols] : shapes) {
            Floats x = normal(rows, cols, 1), y = normal(rows, cols, 2, 1, 0, cols + 1),
                   dout = normal(rows, cols, 3);
            Floats dx(rows, cols), dy = normal(rows, cols, 4), da(1, 1), db(1, 1);
            const Floats dy_before = dy;
            da[0] = 0.5f;
            ops.mix_backward(dx.tensor(), dy.tensor(), da.vector(), db.vector(), dout.tensor(), a, x.tensor(),
                             b, y.tensor());
            CHECK(worst(
                      dx, [&](int64_t i) { return va * dout[i]; },
                      [&](int64_t i) { return 4 * unit * (1 + std::abs(va)) * std::abs(dout[i]); }) <= 1);
            CHECK(worst(
                      dy, [&](int64_t i) { return dy_before[i] + vb * dout[i]; },
                      [&](int64_t i) {
                          return 5 * unit * (std::abs(dy_before[i]) + std::abs(vb * dout[i]));
                      }) <= 1);
            double along_x = 0, along_y = 0;
            for (int64_t i = 0; i < x.count(); ++i) {
                along_x += double{dout[i]} * x[i];
                along_y += double{dout[i]} * y[i];
            }
            // The dot products are f64; what remains is rounding the term and the sum to f32.
            CHECK(std::abs(da[0] - (0.5 + 0.5 * along_x)) <= 3 * unit * (0.5 + std::abs(0.5 * along_x)));
            CHECK(std::abs(db[0] + 2 * along_y) <= 3 * unit * std::abs(2 * along_y));

            // dx in the memory of dout; one parameter for both coefficients; contiguous,
            // so cut into other spans.
            Floats in_place = dout, both(1, 1);
            ops.mix_backward(in_place.tensor(), Tensor(), both.vector(), both.vector(), in_place.tensor(), a,
                             x.tensor(), b, x.tensor());
            CHECK(same_bits(in_place, dx));
            CHECK(std::abs(both[0] - (0.5 - 2) * along_x) <= 4 * unit * 2.5 * std::abs(along_x));

            // Without learned coefficients x and y are not looked at.
            Floats plain(rows, cols);
            ops.mix_backward(plain.tensor(), Tensor(), Tensor(), Tensor(), dout.tensor(), a, Tensor(), b,
                             Tensor());
            CHECK(same_bits(plain, dx));
        }
    });
}

TEST_CASE("activations and mixing do not depend on the number of threads") {
    for (Activation kind : {Activation::gelu, Activation::gelu_tanh, Activation::swiglu,
                            Activation::geglu_tanh, Activation::silu}) {
        check_thread_independence([kind](Ops& ops) {
            const int64_t cols = is_gated(kind) ? 600 : 300;
            Floats a = arguments(100, cols), dh = normal(100, 300, 2), da(100, cols);
            ops.activation_backward(da.tensor(), dh.tensor(), a.tensor(), kind);
            return da;
        });
        check_thread_independence([kind](Ops& ops) {
            Floats a = arguments(100, is_gated(kind) ? 600 : 300), h(100, 300);
            ops.activation(h.tensor(), a.tensor(), kind);
            return h;
        });
    }
    check_thread_independence([](Ops& ops) {
        Floats param(1, 1), x = normal(200, 300, 1), y = normal(200, 300, 2), dout = normal(200, 300, 3);
        Floats dx(200, 300), dy(200, 300), gradients(1, 2);
        const Coefficient c{param.vector(), 1.0f, 1.0f};
        ops.mix_backward(dx.tensor(), dy.tensor(), Tensor(gradients.data(), DType::f32, {1}),
                         Tensor(gradients.data() + 1, DType::f32, {1}), dout.tensor(), c, x.tensor(), c,
                         y.tensor());
        return gradients;
    });
}
