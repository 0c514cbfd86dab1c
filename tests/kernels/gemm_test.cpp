// Matrix products against double loops. Bounds: a sum of k products in f32, in whatever order,
// is off by at most gamma(k) * sum |a||b| with gamma(k) = k u / (1 - k u); two more roundings cover the
// addition to an old value.
#include "kernels/support.h"

using namespace longreach;
using namespace longreach::test;

namespace {

double gamma(double k) {
    return k * unit / (1 - k * unit);
}

struct Shape {
    int64_t m, n, k;
};
// Register tiles, panels and k blocks of every instruction set, just below and above their edges.
const std::vector<Shape> shapes = {{1, 1, 1},        {1, 33, 7},     {5, 31, 300},  {12, 32, 256},
                                   {13, 8, 257},     {16, 65, 16},   {64, 40, 513}, {77, 130, 90},
                                   {200, 100, 1030}, {397, 390, 270}};

// value[i] and sum of magnitudes of row r, column c of op(a) op(b).
struct Exact {
    std::vector<double> value, magnitude;
    template <class A, class B>
    Exact(const Shape& s, A a, B b)
        : value(static_cast<size_t>(s.m * s.n)), magnitude(static_cast<size_t>(s.m * s.n)) {
        for (int64_t r = 0; r < s.m; ++r)
            for (int64_t c = 0; c < s.n; ++c)
                for (int64_t i = 0; i < s.k; ++i) {
                    const double product = double{a(r, i)} * double{b(i, c)};
                    value[static_cast<size_t>(r * s.n + c)] += product;
                    magnitude[static_cast<size_t>(r * s.n + c)] += std::abs(product);
                }
    }
    double bound(int64_t i, int64_t k) const {
        return gamma(k + 2) * magnitude[static_cast<size_t>(i)] + 1e-37;
    }
};

Floats rounded(const Floats& x) {
    Floats y(x.rows(), x.cols());
    for (int64_t i = 0; i < x.count(); ++i) y[i] = bf16_rounded(x[i]);
    return y;
}

// The inputs of one product, with rows padded by `gap` elements. x [m, k], w [n, k] and its transpose.
struct Inputs {
    Floats x, w, x_transposed, w_transposed;
    Inputs(const Shape& s, int64_t gap)
        : x(normal(s.m, s.k, 1, 1, 0, s.k + gap)),
          w(normal(s.n, s.k, 2, 1, 0, s.k + gap)),
          x_transposed(s.k, s.m, s.m + gap),
          w_transposed(s.k, s.n, s.n + gap) {
        for (int64_t i = 0; i < s.k; ++i) {
            for (int64_t r = 0; r < s.m; ++r) x_transposed.at(i, r) = x.at(r, i);
            for (int64_t c = 0; c < s.n; ++c) w_transposed.at(i, c) = w.at(c, i);
        }
    }
    Exact exact(const Shape& s) const {
        return {s, [&](int64_t r, int64_t i) { return x.at(r, i); },
                [&](int64_t i, int64_t c) { return w.at(c, i); }};
    }
};

}  // namespace

TEST_CASE("linear, its two gradients: every form against double") {
    for (const Shape& s : shapes)
        for (int64_t gap : {0, 5}) {
            CAPTURE(s.m);
            CAPTURE(s.n);
            CAPTURE(s.k);
            CAPTURE(gap);
            Inputs in(s, gap);
            const Exact exact = in.exact(s);
            const Floats old = normal(s.m, s.n, 3, 1, 0, s.n + gap);
            const auto check_result = [&](const Floats& y, bool added) {
                CHECK(y.guards_intact());
                CHECK(worst(
                          y,
                          [&](int64_t i) {
                              return exact.value[static_cast<size_t>(i)] + (added ? old[i] : 0.0f);
                          },
                          [&](int64_t i) {
                              return exact.bound(i, s.k) + (added ? 2 * unit * std::abs(old[i]) : 0);
                          }) <= 1);
            };
            for_each_isa([&](Ops& ops) {
                for (Write write : {Write::set, Write::add}) {
                    Floats y = old, dx = old;
                    ops.linear(y.tensor(), in.x.tensor(), in.w.tensor(), write);
                    check_result(y, write == Write::add);
                    ops.linear_backward_input(dx.tensor(), in.x.tensor(), in.w_transposed.tensor(), write);
                    check_result(dx, write == Write::add);
                    Floats dw = old;
                    ops.linear_backward_weight(dw.tensor(), in.x_transposed.tensor(),
                                               in.w_transposed.tensor(), write);
                    check_result(dw, write == Write::add);
                }
            });
        }
}

TEST_CASE("set does not read the old values") {
    for_each_isa([](Ops& ops) {
        const Shape s{20, 40, 300};
        Inputs in(s, 0);
        Floats y(s.m, s.n);
        for (int64_t i = 0; i < y.count(); ++i) y[i] = std::numeric_limits<float>::quiet_NaN();
        ops.linear(y.tensor(), in.x.tensor(), in.w.tensor(), Write::set);
        for (int64_t i = 0; i < y.count(); ++i) CHECK(std::isfinite(y[i]));
    });
}

TEST_CASE("a weight gradient that is set has the bits of one added to zeros") {
    for_each_isa([](Ops& ops) {
        // One block of k, several, and k cut into pieces for several tasks.
        for (const Shape& s : {Shape{20, 40, 30}, {150, 200, 700}, {400, 390, 600}, {24, 70, 5000}}) {
            Inputs in(s, 0);
            Floats added(s.m, s.n), set(s.m, s.n);
            for (int64_t i = 0; i < set.count(); ++i) set[i] = std::numeric_limits<float>::quiet_NaN();
            const Tensor dy = in.x_transposed.tensor(), x = in.w_transposed.tensor();
            ops.linear_backward_weight(added.tensor(), dy, x, Write::add);
            ops.linear_backward_weight(set.tensor(), dy, x, Write::set);
            CHECK(same_bits(set, added));
        }
    });
}

TEST_CASE("square of relu as an epilogue, forward and backward") {
    for (const Shape& s : shapes) {
        CAPTURE(s.m);
        CAPTURE(s.n);
        CAPTURE(s.k);
        Inputs in(s, 3);
        const Exact exact = in.exact(s);
        Floats h = normal(s.m, s.n, 4, 1, 0, s.n + 2);
        for (int64_t i = 0; i < h.count(); ++i) h[i] = h[i] > 0 ? h[i] * h[i] : 0.0f;
        for_each_isa([&](Ops& ops) {
            // |max(0, s + e)^2 - max(0, s)^2| <= 2|s||e| + e^2, and one rounding.
            Floats y(s.m, s.n, s.n + 1);
            ops.linear_relu2(y.tensor(), in.x.tensor(), in.w.tensor());
            CHECK(y.guards_intact());
            CHECK(worst(
                      y,
                      [&](int64_t i) {
                          const double value = exact.value[static_cast<size_t>(i)];
                          return value > 0 ? value * value : 0;
                      },
                      [&](int64_t i) {
                          const double value = std::abs(exact.value[static_cast<size_t>(i)]),
                                       e = exact.bound(i, s.k);
                          return 2 * value * e + e * e + 2 * unit * value * value;
                      }) <= 1);
            // Square root and two products: three more roundings.
            Floats da(s.m, s.n);
            ops.linear_relu2_backward(da.tensor(), in.x.tensor(), in.w_transposed.tensor(), h.tensor());
            CHECK(worst(
                      da,
                      [&](int64_t i) {
                          return exact.value[static_cast<size_t>(i)] * 2 * std::sqrt(double{h[i]});
                      },
                      [&](int64_t i) {
                          const double slope = 2 * std::sqrt(double{h[i]});
                          return exact.bound(i, s.k) * slope * (1 + 1e-6) +
                                 4 * unit * std::abs(exact.value[static_cast<size_t>(i)]) * slope + 1e-37;
                      }) <= 1);
        });
    }
}

TEST_CASE("a NaN passes through the square of relu") {
    for_each_isa([](Ops& ops) {
        const Shape s{4, 40, 8};
        Inputs in(s, 0);
        in.x.at(2, 3) = std::numeric_limits<float>::quiet_NaN();
        Floats y(s.m, s.n);
        ops.linear_relu2(y.tensor(), in.x.tensor(), in.w.tensor());
        for (int64_t r = 0; r < s.m; ++r)
            for (int64_t c = 0; c < s.n; ++c) CHECK(std::isnan(y.at(r, c)) == (r == 2));
    });
}

TEST_CASE("bf16 products: inputs rounded to nearest even, sums in f32") {
    const auto ops = bf16_ops(2);
    if (!ops) return;
    for (const Shape& s : shapes) {
        CAPTURE(s.m);
        CAPTURE(s.n);
        CAPTURE(s.k);
        Inputs in(s, 1);
        const Floats x = rounded(in.x), w = rounded(in.w);
        const Exact exact(
            s, [&](int64_t r, int64_t i) { return x.at(r, i); },
            [&](int64_t i, int64_t c) { return w.at(c, i); });
        const Exact unrounded = in.exact(s);
        const auto check_result = [&](const Floats& y) {
            CHECK(worst(
                      y, [&](int64_t i) { return exact.value[static_cast<size_t>(i)]; },
                      [&](int64_t i) { return exact.bound(i, s.k); }) <= 1);
            // bf16 keeps 8 bits: each factor is off by at most 2^-8 of itself
            // (half a unit in the last place).
            CHECK(worst(
                      y, [&](int64_t i) { return unrounded.value[static_cast<size_t>(i)]; },
                      [&](int64_t i) {
                          return (0x1p-7 + 0x1p-16) * unrounded.magnitude[static_cast<size_t>(i)] +
                                 exact.bound(i, s.k);
                      }) <= 1);
        };
        Floats y(s.m, s.n), dx(s.m, s.n), dw(s.m, s.n);
        ops->linear(y.tensor(), in.x.tensor(), in.w.tensor(), Write::set);
        check_result(y);
        ops->linear_backward_input(dx.tensor(), in.x.tensor(), in.w_transposed.tensor(), Write::set);
        check_result(dx);
        ops->linear_backward_weight(dw.tensor(), in.x_transposed.tensor(), in.w_transposed.tensor(),
                                    Write::add);
        check_result(dw);
    }
}

TEST_CASE("products: the same bits at any number of threads") {
    const Shape s{150, 200, 700}, narrow{24, 70, 5000}, wide{400, 390, 600};
    Inputs in(s, 0), in_narrow(narrow, 0), in_wide(wide, 0);
    const auto compute = [&](Ops& ops) {
        Floats all(3 * s.m + wide.m, wide.n);
        const Tensor out = all.tensor().col_range(0, s.n);
        ops.linear(out.row_range(0, s.m), in.x.tensor(), in.w.tensor(), Write::set);
        ops.linear_backward_input(out.row_range(s.m, s.m), in.x.tensor(), in.w_transposed.tensor(),
                                  Write::set);
        ops.linear_relu2_backward(out.row_range(s.m, s.m), in.x.tensor(), in.w_transposed.tensor(),
                                  out.row_range(2 * s.m, s.m));
        ops.linear_relu2(out.row_range(2 * s.m, s.m), in.x.tensor(), in.w.tensor());
        ops.linear_backward_weight(out.row_range(0, narrow.m).col_range(0, narrow.n),
                                   in_narrow.x_transposed.tensor(), in_narrow.w_transposed.tensor(),
                                   Write::add);
        ops.linear_backward_weight(all.tensor().row_range(3 * s.m, wide.m), in_wide.x_transposed.tensor(),
                                   in_wide.w_transposed.tensor(), Write::set);
        return all;
    };
    check_thread_independence(compute);
    if (const auto one = bf16_ops(1)) {
        const Floats expected = compute(*one);
        for (int threads : thread_counts) CHECK(same_bits(compute(*bf16_ops(threads)), expected));
    }
}

TEST_CASE("a result larger than the caches has the bits of its rows computed in pieces") {
    const Shape s{1404, 408, 64};
    const int64_t aligned = 416, unaligned = 421, piece = 117;  // floats from row to row; rows
    Inputs in(s, 0);
    const auto products = [&](Ops& ops, const Tensor& out, int64_t first, int64_t rows) {
        const auto part = [&](int64_t which) { return out.row_range(which * s.m + first, rows); };
        const Tensor x = in.x.tensor().row_range(first, rows);
        ops.linear(part(0), x, in.w.tensor(), Write::set);
        ops.linear_backward_input(part(1), x, in.w_transposed.tensor(), Write::set);
        ops.linear_relu2(part(2), x, in.w.tensor());
        ops.linear_relu2_backward(part(3), x, in.w_transposed.tensor(), part(2));
    };
    const auto compare = [&](Ops& ops) {
        Floats expected(4 * s.m, s.n);
        for (int64_t first = 0; first < s.m; first += piece) products(ops, expected.tensor(), first, piece);
        for (int64_t stride : {aligned, unaligned}) {
            Floats whole(4 * s.m, s.n, stride);
            products(ops, whole.tensor(), 0, s.m);
            CHECK(whole.guards_intact());
            CHECK(same_bits(whole, expected));
        }
    };
    for_each_isa(compare, 3);
    if (const auto ops = bf16_ops(3)) compare(*ops);
}

TEST_CASE(
    "a row of a product has the same bits alone, with a few others and with many, of a held matrix too") {
    // Parts of a panel and of a vector along k, several blocks of k, more than one turn of a thread.
    for (const auto& [n, k] : {std::pair{1, 5}, {33, 77}, {70, 600}, {390, 1030}}) {
        CAPTURE(n);
        CAPTURE(k);
        const Shape s{20, n, k};
        Inputs in(s, 3);
        const Floats old = normal(s.m, s.n, 3, 1, 0, s.n + 5);
        const auto products = [&](Ops& ops, Floats& sums, Floats& squares, int64_t first, int64_t rows) {
            const Tensor x = in.x.tensor().row_range(first, rows);
            ops.linear(sums.tensor().row_range(first, rows), x, in.w.tensor(), Write::add);
            ops.linear_relu2(squares.tensor().row_range(first, rows), x, in.w.tensor());
        };
        const auto compare = [&](Ops& ops) {
            Floats sums = old, squares(s.m, s.n, s.n + 5);
            products(ops, sums, squares, 0, s.m);
            const int64_t floats = ops.held_floats(in.w.tensor());
            Floats panels(1, std::max<int64_t>(floats, 1));
            for (const bool held : {false, true}) {
                CAPTURE(held);
                if (held && floats == 0) continue;
                if (held) ops.fill_held(panels.vector(), in.w.tensor());
                if (held) ops.hold(in.w.tensor(), panels.vector());
                for (const int64_t together : {1, 2, 3, 4, 5, 8, 16}) {
                    CAPTURE(together);
                    Floats some_sums = old, some_squares(s.m, s.n, s.n + 5);
                    for (int64_t first = 0; first < s.m; first += together)
                        products(ops, some_sums, some_squares, first, std::min(together, s.m - first));
                    CHECK(some_sums.guards_intact());
                    CHECK(some_squares.guards_intact());
                    CHECK(same_bits(some_sums, sums));
                    CHECK(same_bits(some_squares, squares));
                }
            }
            CHECK(panels.guards_intact());
            // What is held is read, another matrix at the same place is not mistaken for it, and it can be let go.
            for (int64_t i = 0; i < floats; ++i) panels[i] = 0;
            const auto is_zero = [&](int64_t outputs) {
                Floats y(1, outputs);
                ops.linear(y.tensor(), in.x.tensor().row_range(0, 1), in.w.tensor().row_range(0, outputs),
                           Write::set);
                return y.at(0, 0) == 0;
            };
            CHECK(is_zero(n) == (floats > 0));
            if (n > 1) CHECK_FALSE(is_zero(n - 1));
            ops.hold(in.w.tensor(), Tensor());
            CHECK_FALSE(is_zero(n));
        };
        for_each_isa(compare, 3);
        for (const char* isa : bf16_sets()) compare(*bf16_ops(3, isa));
    }
}

TEST_CASE("a right side larger than the packing space goes in pieces") {
    const Shape s{17, 9000, 600};
    Inputs in(s, 0);
    const Exact exact = in.exact(s);
    for_each_isa([&](Ops& ops) {
        Floats y(s.m, s.n);
        ops.linear(y.tensor(), in.x.tensor(), in.w.tensor(), Write::set);
        CHECK(worst(
                  y, [&](int64_t i) { return exact.value[static_cast<size_t>(i)]; },
                  [&](int64_t i) { return exact.bound(i, s.k); }) <= 1);
    });
}
