// Short convolutions and smear against double precision: the forward by its definition, gradients by
// transposing the definition (a convolution is linear in x and in w) and by complex steps.
#include <complex>

#include "kernels/support.h"

using namespace longreach;
using namespace longreach::test;

namespace {

using Complex = std::complex<double>;

struct Case {
    int64_t batch, length, width;
    bool documents;
};

// Documents of 1, 2, 3, ... positions from the start of every sequence on.
Ints document_starts(const Case& c) {
    Ints starts(c.batch, c.length);
    for (int64_t b = 0; b < c.batch; ++b) {
        int64_t start = 0, size = 1 + b;
        for (int64_t t = 0; t < c.length; ++t) {
            if (t == start + size) {
                start = t;
                ++size;
            }
            starts.at(b, t) = static_cast<int32_t>(start);
        }
    }
    return starts;
}

// x and dy are ranges of columns of wider matrices; y and dx lie in matrices with guards.
struct Problem {
    static constexpr int64_t before = 3;
    Case c;
    int64_t rows;
    Ints starts;
    Floats x_wide, dy_wide, y, dx;

    explicit Problem(const Case& which)
        : c(which),
          rows(c.batch * c.length),
          starts(document_starts(c)),
          x_wide(normal(rows, before + c.width + 2, 1)),
          dy_wide(normal(rows, before + c.width + 4, 2, 1.0, 0.1)),
          y(rows, c.width, c.width + 5),
          dx(rows, c.width, c.width + 1) {}

    Tensor documents() { return c.documents ? starts.tensor() : Tensor(); }
    Tensor input() { return x_wide.tensor().col_range(before, c.width); }
    Tensor gradient() { return dy_wide.tensor().col_range(before, c.width); }
    double x(int64_t r, int64_t i) const { return x_wide.at(r, before + i); }
    double dy(int64_t r, int64_t i) const { return dy_wide.at(r, before + i); }
    // Whether row r may look m positions back.
    bool sees(int64_t r, int64_t m) const {
        const int64_t start = c.documents ? starts[r] : 0;
        return r % c.length - m >= start;
    }
};

std::vector<Case> cases() {
    // In the last two a block holds several rows: some, then all, of which the gradient takes in groups.
    return {{2, 9, 24, false},  {3, 11, 37, true},  {1, 1, 5, false},    {2, 30, 300, true},
            {1, 40, 16, false}, {2, 700, 19, true}, {1, 2100, 18, false}};
}

struct Conv : Problem {
    int64_t taps;
    Floats w, dw, dw_before;
    Conv(const Case& which, int64_t k)
        : Problem(which),
          taps(k),
          w(normal(k, which.width, 3, 0.7, 0.2, which.width + 2)),
          dw(normal(k, which.width, 4, 1.0, 0.0, which.width + 3)),
          dw_before(dw) {}
    void forward(Ops& ops) { ops.short_conv(y.tensor(), input(), w.tensor(), documents(), c.length); }
    void backward(Ops& ops) {
        ops.short_conv_backward(dx.tensor(), dw.tensor(), gradient(), input(), w.tensor(), documents(),
                                c.length);
    }
};

}  // namespace

TEST_CASE("a short convolution agrees with its definition") {
    for_each_isa([](Ops& ops) {
        for (const Case& c : cases())
            for (int64_t taps : {1, 2, 3, 4, 7}) {
                CAPTURE(c.width);
                CAPTURE(taps);
                Conv p(c, taps);
                p.forward(ops);
                const auto sum = [&](int64_t i, bool absolute) {
                    const int64_t r = i / c.width, k = i % c.width;
                    double total = 0;
                    for (int64_t m = 0; m < taps; ++m)
                        if (p.sees(r, m)) {
                            const double term = p.w.at(m, k) * p.x(r - m, k);
                            total += absolute ? std::abs(term) : term;
                        }
                    return total;
                };
                // Every product is rounded once and goes through at most `taps` additions.
                CHECK(worst(
                          p.y, [&](int64_t i) { return sum(i, false); },
                          [&](int64_t i) { return static_cast<double>(taps + 1) * unit * sum(i, true); }) <=
                      1);
                CHECK(p.y.guards_intact());
            }
    });
}

TEST_CASE("gradients of a short convolution are its transposes") {
    for_each_isa([](Ops& ops) {
        for (const Case& c : cases())
            for (int64_t taps : {1, 2, 3, 4, 7}) {
                CAPTURE(c.width);
                CAPTURE(taps);
                Conv p(c, taps);
                p.backward(ops);
                Doubles dx(p.rows, c.width), dx_size(p.rows, c.width);
                Doubles dw(taps, c.width), dw_size(taps, c.width);
                for (int64_t r = 0; r < p.rows; ++r)
                    for (int64_t m = 0; m < taps; ++m)
                        for (int64_t k = 0; k < c.width && p.sees(r, m); ++k) {
                            const double of_x = p.w.at(m, k) * p.dy(r, k), of_w = p.x(r - m, k) * p.dy(r, k);
                            dx.at(r - m, k) += of_x;
                            dx_size.at(r - m, k) += std::abs(of_x);
                            dw.at(m, k) += of_w;
                            dw_size.at(m, k) += std::abs(of_w);
                        }
                CHECK(worst(
                          p.dx, [&](int64_t i) { return dx[i]; },
                          [&](int64_t i) { return static_cast<double>(taps + 1) * unit * dx_size[i]; }) <= 1);
                // At most one addition per row, the product and the addition to what was there.
                const double additions = static_cast<double>(p.rows + 2) * unit;
                CHECK(worst(
                          p.dw, [&](int64_t i) { return p.dw_before[i] + dw[i]; },
                          [&](int64_t i) { return additions * (std::abs(p.dw_before[i]) + dw_size[i]); }) <=
                      1);
                CHECK(p.dx.guards_intact());
                CHECK(p.dw.guards_intact());
            }
    });
}

TEST_CASE("a short convolution by (1, 0, ...) is the identity, and so is its gradient") {
    for_each_isa([](Ops& ops) {
        for (const Case& c : cases()) {
            Conv p(c, 4);
            for (int64_t i = 0; i < p.w.count(); ++i) p.w[i] = i < c.width ? 1.0f : 0.0f;
            p.forward(ops);
            p.backward(ops);
            bool same = true;
            for (int64_t r = 0; r < p.rows; ++r)
                for (int64_t i = 0; i < c.width; ++i)
                    same = same && p.y.at(r, i) == p.x(r, i) && p.dx.at(r, i) == p.dy(r, i);
            CHECK(same);
        }
    });
}

namespace {

struct Smear : Problem {
    int64_t channels;
    Floats w, lambda, dw, dlambda, dw_before, dlambda_before;
    Smear(const Case& which, int64_t count, float share)
        : Problem(which),
          channels(std::min(count, which.width)),
          w(normal(1, channels, 3, 0.5)),
          lambda(1, 1),
          dw(normal(1, channels, 4)),
          dlambda(normal(1, 1, 5)),
          dw_before(dw),
          dlambda_before(dlambda) {
        lambda[0] = share;
    }
    void forward(Ops& ops) {
        ops.smear(y.tensor(), input(), w.vector(), lambda.vector(), documents(), c.length);
    }
    void backward(Ops& ops) {
        ops.smear_backward(dx.tensor(), dw.vector(), dlambda.vector(), gradient(), input(), w.vector(),
                           lambda.vector(), documents(), c.length);
    }

    // Row r of the output, with one number moved by i * tiny.
    static constexpr double tiny = 1e-30;
    enum class Moved { nothing, x, w, lambda };
    double slope(int64_t r, Moved what, int64_t row, int64_t index) const {
        const auto in = [&](int64_t n, int64_t i) {
            return Complex(x(n, i), what == Moved::x && n == row && i == index ? tiny : 0.0);
        };
        double sum = 0;
        if (!sees(r, 1)) {
            if (what == Moved::x && row == r) sum = dy(r, index);
            return sum;
        }
        Complex logit = 0;
        for (int64_t k = 0; k < channels; ++k)
            logit += Complex(w[k], what == Moved::w && k == index ? tiny : 0.0) * in(r, k);
        const Complex share(lambda[0], what == Moved::lambda ? tiny : 0.0);
        const Complex take = share / (1.0 + std::exp(-logit));
        for (int64_t i = 0; i < c.width; ++i)
            sum += dy(r, i) * (in(r, i) + take * in(r - 1, i)).imag() / tiny;
        return sum;
    }

    // s of row r, 0 where it takes nothing, and its relative error: that of the sigmoid by simd_math.h, and
    // the logit's, which moves s and 1 - s by at most its own size.
    struct Gate {
        double value = 0, slope = 0, error = 0;
    };
    Gate gate(int64_t r) const {
        if (r >= rows || !sees(r, 1)) return {};
        double logit = 0, size = 0;
        for (int64_t k = 0; k < channels; ++k) {
            logit += w[k] * x(r, k);
            size += std::abs(w[k] * x(r, k));
        }
        const double s = 1 / (1 + std::exp(-logit));
        const double of_logit = static_cast<double>(channels + 2) * unit * size;
        return {s, s * (1 - s), of_logit + 2e-7 + std::abs(logit) * 6e-8 + 3 * unit};
    }
    // Sum of |dy_r x_(r-1)|.
    double along_size(int64_t r) const {
        double sum = 0;
        for (int64_t i = 0; i < c.width; ++i) sum += std::abs(dy(r, i) * x(r - 1, i));
        return sum;
    }
};

}  // namespace

TEST_CASE("smear agrees with its definition") {
    for_each_isa([](Ops& ops) {
        for (const Case& c : cases())
            for (int64_t channels : {12, 1, 40}) {
                CAPTURE(c.width);
                CAPTURE(channels);
                Smear p(c, channels, 0.7f);
                p.forward(ops);
                double most = 0;
                for (int64_t r = 0; r < p.rows; ++r) {
                    const Smear::Gate gate = p.gate(r);
                    for (int64_t i = 0; i < c.width; ++i) {
                        const double taken =
                            p.sees(r, 1) ? double{p.lambda[0]} * gate.value * p.x(r - 1, i) : 0.0;
                        const double expected = p.x(r, i) + taken;
                        // The share of the neighbour: its gate's error and two products; then the sum.
                        const double bound =
                            (gate.error + 2 * unit) * std::abs(taken) + unit * std::abs(expected);
                        const double error = std::abs(p.y.at(r, i) - expected);
                        if (error > 0) most = std::max(most, error / bound);
                    }
                }
                CHECK(most <= 1);
                CHECK(p.y.guards_intact());
            }
    });
}

TEST_CASE("gradients of smear agree with complex steps") {
    for_each_isa([](Ops& ops) {
        for (const Case& c : cases()) {
            if (c.width > 100) continue;
            CAPTURE(c.width);
            Smear p(c, 12, -0.7f);
            p.backward(ops);
            const double share = std::abs(double{p.lambda[0]});
            const double sum_error = static_cast<double>(c.width + 6) * unit;
            using Moved = Smear::Moved;
            double most = 0;
            for (int64_t r = 0; r < p.rows; ++r) {
                const Smear::Gate here = p.gate(r), next = p.gate(r + 1);
                const double along = p.sees(r, 1) ? p.along_size(r) : 0;
                for (int64_t i = 0; i < c.width; ++i) {
                    double expected = p.slope(r, Moved::x, r, i);
                    double bound = 3 * unit * std::abs(p.dy(r, i));
                    if (r + 1 < p.rows) {
                        expected += p.slope(r + 1, Moved::x, r, i);
                        bound += (next.error + 5 * unit) * share * next.value * std::abs(p.dy(r + 1, i));
                    }
                    // Through the gate: s and 1 - s err once each, the sum over the row, then products.
                    if (i < p.channels)
                        bound += (2 * here.error + sum_error) * share * here.slope * along *
                                 std::abs(double{p.w[i]});
                    most = std::max(most, std::abs(p.dx.at(r, i) - expected) / bound);
                }
            }
            CHECK(most <= 1);
            // Sums over rows are f64; what is left is each term's error and two roundings of the result.
            for (int64_t k = -1; k < p.channels; ++k) {
                CAPTURE(k);
                const double start = k < 0 ? p.dlambda_before[0] : p.dw_before[k];
                double sum = 0, bound = 0;
                for (int64_t r = 0; r < p.rows; ++r) {
                    if (!p.sees(r, 1)) continue;
                    const Smear::Gate here = p.gate(r);
                    sum += p.slope(r, k < 0 ? Moved::lambda : Moved::w, -1, k);
                    bound += k < 0 ? (here.error + sum_error) * here.value * p.along_size(r)
                                   : (2 * here.error + sum_error) * share * here.slope * p.along_size(r) *
                                         std::abs(p.x(r, k));
                }
                bound += 2 * unit * (std::abs(start) + std::abs(sum));
                const double actual = k < 0 ? p.dlambda[0] : p.dw[k];
                CHECK(std::abs(actual - (start + sum)) <= bound);
            }
            CHECK(p.dx.guards_intact());
            CHECK(p.dw.guards_intact());
            CHECK(p.dlambda.guards_intact());
        }
    });
}

TEST_CASE("smear with lambda 0 is the identity and still has a gradient for lambda") {
    for_each_isa([](Ops& ops) {
        for (const Case& c : cases()) {
            Smear p(c, 12, 0.0f);
            p.forward(ops);
            p.backward(ops);
            bool same = true, taken = false;
            for (int64_t r = 0; r < p.rows; ++r) {
                taken = taken || p.sees(r, 1);
                for (int64_t i = 0; i < c.width; ++i)
                    same = same && p.y.at(r, i) == p.x(r, i) && p.dx.at(r, i) == p.dy(r, i);
            }
            CHECK(same);
            CHECK((p.dlambda[0] != p.dlambda_before[0]) == taken);
            CHECK(same_bits(p.dw, p.dw_before));
        }
    });
}

TEST_CASE("convolutions, smear and their gradients do not depend on the number of threads") {
    // 150 rows of 256 and more: above the size from which ops run in parallel.
    for (int64_t taps : {4, 6})
        check_thread_independence([&](Ops& ops) {
            Conv p({3, 50, 300, true}, taps);
            p.forward(ops);
            p.backward(ops);
            return joined({&p.y, &p.dx, &p.dw});
        });
    // One long document, so that rows are taken in groups.
    check_thread_independence([&](Ops& ops) {
        Conv p({1, 2000, 40, false}, 4);
        p.forward(ops);
        p.backward(ops);
        return joined({&p.y, &p.dx, &p.dw});
    });
    check_thread_independence([&](Ops& ops) {
        Smear p({3, 50, 300, true}, 12, 0.4f);
        p.forward(ops);
        p.backward(ops);
        return joined({&p.y, &p.dx, &p.dw, &p.dlambda});
    });
}
