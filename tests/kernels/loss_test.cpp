// cross_entropy against double precision; the gradient by complex steps where the vocabulary is small.
#include <complex>
#include <limits>

#include "kernels/support.h"

using namespace longreach;
using namespace longreach::test;

namespace {

using Complex = std::complex<double>;

const LossSpec plain{.gradient_scale = 0.25f};
const LossSpec with_z{.z_loss = 1e-2f, .gradient_scale = 1.0f};
const LossSpec tanh_cap{.softcap = Softcap::tanh, .cap = 15, .z_loss = 1e-3f, .gradient_scale = 0.5f};
const LossSpec sigmoid_cap{.softcap = Softcap::sigmoid,
                           .cap = 23,
                           .shift = 5,
                           .temperature = 7.5f,
                           .z_loss = 1e-3f,
                           .gradient_scale = 0.5f};
const std::vector<LossSpec> specs = {plain, with_z, tanh_cap, sigmoid_cap};

// 0.75, 1.5, 0 and again.
float weight_of(int64_t row) {
    return 0.75f * static_cast<float>((row + 1) % 3);
}

template <class T>
T capped(T x, const LossSpec& spec) {
    const double cap = spec.cap;
    if (spec.softcap == Softcap::tanh) return cap * std::tanh(x / cap);
    if (spec.softcap == Softcap::sigmoid)
        return cap / (1.0 + std::exp(-(x + double{spec.shift}) / double{spec.temperature}));
    return x;
}

struct Row {
    double loss, lse, top;
    std::vector<double> y;
};
Row reference(const std::vector<double>& x, int64_t target, const LossSpec& spec) {
    Row row{0, 0, -1e300, {}};
    for (double v : x) {
        row.y.push_back(capped(v, spec));
        row.top = std::max(row.top, row.y.back());
    }
    double sum = 0;
    for (double y : row.y) sum += std::exp(y - row.top);
    row.lse = row.top + std::log(sum);
    row.loss = row.lse - row.y[static_cast<size_t>(target)] + spec.z_loss * row.lse * row.lse;
    return row;
}
// dloss/dx_v from the definition alone.
double gradient(const std::vector<double>& x, int64_t target, int64_t v, const LossSpec& spec, double top) {
    const double h = 1e-30;
    Complex sum = 0, hit = 0;
    for (size_t k = 0; k < x.size(); ++k) {
        const Complex y = capped(Complex(x[k], static_cast<int64_t>(k) == v ? h : 0), spec);
        sum += std::exp(y - top);
        if (static_cast<int64_t>(k) == target) hit = y;
    }
    const Complex lse = top + std::log(sum);
    return (lse - hit + double{spec.z_loss} * lse * lse).imag() / h;
}

// Absolute error of a capped logit: tanh and the logistic function err by 4e-7 of their value, plus the
// rounding of the argument and of the factor cap; slopes are below 1.
double cap_error(const LossSpec& spec) {
    return spec.softcap == Softcap::none ? 0 : spec.cap * 6e-7;
}
// Of log sum exp: capped logits, the exponential (2e-7), its argument (three roundings of y - top; the mean
// of top - y under the softmax is at most log V), and a sum of 1024 logits in at most 70 dependent additions.
double lse_error(size_t vocabulary, const LossSpec& spec) {
    return cap_error(spec) + 2e-7 + 3 * unit * std::log(static_cast<double>(vocabulary)) + 70 * unit;
}
double loss_bound(const Row& row, const LossSpec& spec) {
    return (1 + 2 * spec.z_loss * std::abs(row.lse)) * lse_error(row.y.size(), spec) + cap_error(spec) +
           2 * unit * std::abs(row.loss);
}
double gradient_bound(const Row& row, int64_t target, int64_t v, const LossSpec& spec) {
    const double y = row.y[static_cast<size_t>(v)], grow = 1 + 2 * spec.z_loss * row.lse;
    const double p = std::exp(y - row.lse);
    const double p_error =
        p * (cap_error(spec) + lse_error(row.y.size(), spec) + 2e-7 + 3 * unit * (row.top - y) + 4 * unit);
    double slope = 1, slope_error = 0;
    if (spec.softcap == Softcap::tanh) {
        slope = (1 - y / spec.cap) * (1 + y / spec.cap);
        slope_error = 2 * cap_error(spec) / spec.cap + 4 * unit;
    }
    if (spec.softcap == Softcap::sigmoid) {
        slope = y * (1 - y / spec.cap) / spec.temperature;
        slope_error = (cap_error(spec) + 4 * unit * y) / spec.temperature;
    }
    const double inner = grow * p - (v == target ? 1 : 0);
    return spec.gradient_scale *
               (grow * p_error * slope + std::abs(inner) * (slope_error + 4 * unit * slope)) +
           1e-37;
}

std::vector<double> row_of(const Floats& x, int64_t r) {
    std::vector<double> row;
    for (int64_t v = 0; v < x.cols(); ++v) row.push_back(x.at(r, v));
    return row;
}

// weighted: with a weight for every row.
void check_rows(Ops& ops, int64_t rows, int64_t vocabulary, LossSpec spec, bool weighted) {
    CAPTURE(vocabulary);
    CAPTURE(static_cast<int>(spec.softcap));
    CAPTURE(weighted);
    Floats x = normal(rows, vocabulary, 1, 5.0, 0.5, vocabulary + 3), loss(1, rows), dx = x, same = x;
    Floats weights(1, rows);
    for (int64_t r = 0; r < rows; ++r) weights[r] = weighted ? weight_of(r) : 1;
    if (weighted) spec.weights = weights.vector();
    Ints targets = integers(1, rows, 2, vocabulary);
    ops.cross_entropy(loss.vector(), same.tensor(), targets.vector(), spec, false);
    CHECK(same_bits(same, x));
    Floats loss_again(1, rows);
    ops.cross_entropy(loss_again.vector(), dx.tensor(), targets.vector(), spec, true);
    CHECK(same_bits(loss, loss_again));
    for (int64_t r = 0; r < rows; ++r) {
        const std::vector<double> logits = row_of(x, r);
        const Row row = reference(logits, targets[r], spec);
        CHECK(std::abs(loss[r] - row.loss) <= loss_bound(row, spec));
        double most = 0;
        for (int64_t v = 0; v < vocabulary; ++v) {
            const double expected =
                double{weights[r]} * spec.gradient_scale * gradient(logits, targets[r], v, spec, row.top);
            // The product of weight and scale is rounded.
            const double bound =
                weights[r] * gradient_bound(row, targets[r], v, spec) + unit * std::abs(expected) + 1e-37;
            most = std::max(most, std::abs(dx.at(r, v) - expected) / bound);
        }
        CHECK(most <= 1);
    }
    CHECK(dx.guards_intact());
}

}  // namespace

TEST_CASE("cross_entropy and its gradient agree with the definition, with weights and without") {
    for_each_isa([](Ops& ops) {
        for (auto [rows, vocabulary] : {std::pair<int64_t, int64_t>{1, 257}, {7, 100}, {3, 1029}, {2, 1}})
            for (const LossSpec& spec : specs)
                for (const bool weighted : {false, true}) check_rows(ops, rows, vocabulary, spec, weighted);
    });
}

TEST_CASE("weights of another number of rows are refused") {
    for_each_isa([](Ops& ops) {
        Floats x(2, 10), loss(1, 2), weights(1, 3);
        Ints targets(1, 2);
        LossSpec spec = plain;
        spec.weights = weights.vector();
        CHECK_THROWS_AS(ops.cross_entropy(loss.vector(), x.tensor(), targets.vector(), spec, true), Error);
    });
}

TEST_CASE("cross_entropy over the full vocabulary") {
    for_each_isa([](Ops& ops) {
        const int64_t vocabulary = 50304;
        for (const LossSpec& spec : specs) {
            Floats x = normal(2, vocabulary, 1, 3.0), loss(1, 2), dx = x;
            Ints targets = integers(1, 2, 2, vocabulary);
            ops.cross_entropy(loss.vector(), dx.tensor(), targets.vector(), spec, true);
            for (int64_t r = 0; r < 2; ++r) {
                const Row row = reference(row_of(x, r), targets[r], spec);
                CHECK(std::abs(loss[r] - row.loss) <= loss_bound(row, spec));
                double most = 0;
                for (int64_t v = 0; v < vocabulary; ++v) {
                    const double y = row.y[static_cast<size_t>(v)], part = spec.cap > 0 ? y / spec.cap : 0;
                    const double slope = spec.softcap == Softcap::tanh ? 1 - part * part
                                         : spec.softcap == Softcap::sigmoid
                                             ? y * (1 - part) / spec.temperature
                                             : 1;
                    const double p = (1 + 2 * spec.z_loss * row.lse) * std::exp(y - row.lse);
                    const double expected = spec.gradient_scale * (p - (v == targets[r] ? 1 : 0)) * slope;
                    most = std::max(
                        most, std::abs(dx.at(r, v) - expected) / gradient_bound(row, targets[r], v, spec));
                }
                CHECK(most <= 1);
            }
        }
    });
}

TEST_CASE("a row without a target has neither loss nor gradient") {
    for_each_isa([](Ops& ops) {
        Floats x = normal(3, 257, 1), loss(1, 3);
        Ints targets(1, 3);
        targets[1] = -1;
        ops.cross_entropy(loss.vector(), x.tensor(), targets.vector(), plain, true);
        CHECK(loss[0] > 0);
        CHECK(loss[1] == 0);
        for (int64_t v = 0; v < 257; ++v) CHECK(x.at(1, v) == 0);
        CHECK(x.at(2, 0) != 0);
    });
}

TEST_CASE("30 sigmoid(x / 7.5) and 15 tanh(x / 15) give the same loss and gradient without z-loss") {
    // Equal functions up to the constant 15, which cancels; so both lie within their bounds
    // of the same value.
    const LossSpec sigmoid{.softcap = Softcap::sigmoid, .cap = 30, .temperature = 7.5f, .gradient_scale = 1};
    const LossSpec tangent{.softcap = Softcap::tanh, .cap = 15, .gradient_scale = 1};
    for_each_isa([&](Ops& ops) {
        Floats a = normal(5, 300, 1, 10.0), b = a, loss_a(1, 5), loss_b(1, 5);
        const Floats x = a;
        Ints targets = integers(1, 5, 2, 300);
        ops.cross_entropy(loss_a.vector(), a.tensor(), targets.vector(), sigmoid, true);
        ops.cross_entropy(loss_b.vector(), b.tensor(), targets.vector(), tangent, true);
        for (int64_t r = 0; r < 5; ++r) {
            const Row ra = reference(row_of(x, r), targets[r], sigmoid),
                      rb = reference(row_of(x, r), targets[r], tangent);
            CHECK(std::abs(loss_a[r] - loss_b[r]) <= loss_bound(ra, sigmoid) + loss_bound(rb, tangent));
            for (int64_t v = 0; v < 300; ++v)
                REQUIRE(std::abs(a.at(r, v) - b.at(r, v)) <= gradient_bound(ra, targets[r], v, sigmoid) +
                                                                 gradient_bound(rb, targets[r], v, tangent));
        }
    });
}

TEST_CASE("huge logits do not overflow; a NaN logit makes the loss NaN") {
    for_each_isa([](Ops& ops) {
        Floats x(3, 1500), loss(1, 3);
        Ints targets(1, 3);
        for (int64_t v = 0; v < 1500; ++v) {
            x.at(0, v) = v == 1400 ? 3e38f : -3e38f;
            x.at(1, v) = -1e30f;
        }
        targets[0] = 1400;
        x.at(2, 1200) = std::nanf("");
        ops.cross_entropy(loss.vector(), x.tensor(), targets.vector(), plain, true);
        CHECK(loss[0] == 0);
        CHECK(std::abs(loss[1]) <= std::abs(1e30 * unit));  // log V is lost next to 1e30
        CHECK(std::isnan(loss[2]));
        CHECK(std::isnan(x.at(2, 0)));
    });
}

TEST_CASE("cross_entropy does not depend on the number of threads") {
    for (const LossSpec& spec : specs) {
        check_thread_independence([&](Ops& ops) {
            Floats x = normal(70, 300, 1, 4.0), loss(1, 70);
            Ints targets = integers(1, 70, 2, 300);
            ops.cross_entropy(loss.vector(), x.tensor(), targets.vector(), spec, true);
            return x;
        });
    }
}

TEST_CASE("a target outside the vocabulary is refused") {
    for_each_isa([](Ops& ops) {
        Floats x(2, 10), loss(1, 2);
        for (int32_t bad : {-2, 10}) {
            Ints targets(1, 2);
            targets[1] = bad;
            CHECK_THROWS_AS(ops.cross_entropy(loss.vector(), x.tensor(), targets.vector(), plain, true),
                            Error);
        }
    });
}

TEST_CASE("top1 is the first column of the largest logit, a NaN never, and -1 where all are NaN") {
    const float nan = std::nanf(""), low = -std::numeric_limits<float>::infinity();
    for_each_isa([&](Ops& ops) {
        // Less than a vector, vectors with a rest, several blocks of the CPU's.
        for (const int64_t width : {1, 5, 16, 37, 1024, 2500}) {
            CAPTURE(width);
            const int64_t rows = 70;
            Floats x = normal(rows, width, 3, 4.0);
            // Few different values: ties everywhere.
            for (int64_t r = 0; r < 20; ++r)
                for (int64_t c = 0; c < width; ++c) x.at(r, c) = std::round(x.at(r, c) / 8);
            for (int64_t r = 20; r < 40; ++r)
                for (int64_t c = r % 3; c < width; c += 3) x.at(r, c) = r < 30 ? nan : low;
            for (int64_t c = 0; c < width; ++c) {
                x.at(40, c) = low;
                x.at(41, c) = nan;
                x.at(42, c) = c + 1 < width ? nan : low;  // the only number
            }
            Ints best(1, rows);
            ops.top1(best.vector(), x.tensor());
            for (int64_t r = 0; r < rows; ++r) {
                int32_t expected = -1;
                for (int64_t c = width - 1; c >= 0; --c)
                    if (!std::isnan(x.at(r, c)) && (expected < 0 || x.at(r, c) >= x.at(r, expected)))
                        expected = static_cast<int32_t>(c);
                CAPTURE(r);
                CHECK(best[r] == expected);
            }
        }
    });
}
