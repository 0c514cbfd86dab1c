// The MLP's products with relu^2 in bf16, at the sizes of a training run, against float64 at sampled rows, twice with the
// same bits. On a Hopper these are its own kernels or, with LONGREACH_HOPPER=0, the library's products and a pass after
// each, as on other GPUs. The harness runs a small size; relu2_products_test.cpp of tests/simt has more.
//
// Bounds: with s the sum and S that of its absolute terms, a sum of K products errs by e = (K + 1) 2^-23 S, tensor cores
// cutting off where they do not round, and by 2^-8 s where it is stored before the square. Then h errs by 2 |s| e + e^2 and
// its rounding, da = dh 2 sqrt(h) by 2 sqrt(h) e and its rounding.
#include <cuda_runtime.h>

#include "cuda/device_matrix.h"
#include "kernels/cuda_device.h"

using namespace longreach;
using namespace longreach::test;

namespace {

struct Size {
    int64_t tokens, width, hidden;
};

Floats rounded(Floats x) {
    for (int64_t i = 0; i < x.count(); ++i) x[i] = static_cast<float>(static_cast<bf16>(x[i]));
    return x;
}

// The largest error of sampled rows and columns in units of its bound.
// term(r, c, k): of a sum; value(s): of the result; slope(r, c, s): what its error grows by, and its square's share.
template <class Term, class Value, class Bound>
double largest_error(const Floats& got, const Size& size, Term term, Value value, Bound bound) {
    double most = 0;
    const int64_t rows = std::min<int64_t>(got.rows(), 24), cols = std::min<int64_t>(got.cols(), 200);
    for (int64_t i = 0; i < rows; ++i)
        for (int64_t j = 0; j < cols; ++j) {
            const int64_t r = i * (got.rows() - 1) / std::max<int64_t>(rows - 1, 1);
            const int64_t c = j * (got.cols() - 1) / std::max<int64_t>(cols - 1, 1);
            double s = 0, absolute = 0;
            for (int64_t k = 0; k < size.width; ++k) {
                s += term(r, c, k);
                absolute += std::abs(term(r, c, k));
            }
            const double e =
                static_cast<double>(size.width + 1) * 0x1p-23 * absolute + bf16_unit * std::abs(s);
            const double expected = value(r, c, s), of_sum = bound(r, c, s, e);
            const double allowed = of_sum + (bf16_unit + 8 * unit) * (std::abs(expected) + of_sum) + 1e-37;
            const double ratio = std::abs(got.at(r, c) - expected) / allowed;
            if (!(ratio <= most)) most = ratio;
        }
    return most;
}

void check_size(const Size& size) {
    CAPTURE(size.tokens);
    const auto ops = make_cuda_ops({.precision = Precision::bf16});
    const Floats x = rounded(normal(size.tokens, size.width, 1)),
                 dy = rounded(normal(size.tokens, size.width, 2));
    const Floats up = rounded(normal(size.hidden, size.width, 3)),
                 down = rounded(normal(size.width, size.hidden, 4));
    const auto on_device = [](const Floats& from) {
        auto matrix = std::make_unique<DeviceMatrix<bf16>>(from.rows(), from.cols(), 0);
        matrix->set(from);
        return matrix;
    };
    const auto of_x = on_device(x), of_dy = on_device(dy), of_up = on_device(up), of_down = on_device(down);
    DeviceMatrix<bf16> h(size.tokens, size.hidden, 0), da(size.tokens, size.hidden, 0);
    const auto run = [&] {
        h.erase();
        da.erase();
        ops->linear_relu2(h.tensor(), of_x->tensor(), of_up->tensor());
        ops->linear_relu2_backward(da.tensor(), of_dy->tensor(), of_down->tensor(), h.tensor());
        ops->synchronize();
    };
    run();
    const Floats of_h = h.get(), of_da = da.get();
    run();
    CHECK(same_bits(of_h, h.get()));
    CHECK(same_bits(of_da, da.get()));
    const double forward = largest_error(
        of_h, size, [&](int64_t r, int64_t c, int64_t k) { return double{x.at(r, k)} * up.at(c, k); },
        [](int64_t, int64_t, double s) { return s > 0 ? s * s : 0; },
        [](int64_t, int64_t, double s, double e) { return 2 * std::abs(s) * e + e * e; });
    const auto slope = [&](int64_t r, int64_t c) { return 2 * std::sqrt(double{of_h.at(r, c)}); };
    const double backward = largest_error(
        of_da, size, [&](int64_t r, int64_t c, int64_t k) { return double{dy.at(r, k)} * down.at(k, c); },
        [&](int64_t r, int64_t c, double s) { return s * slope(r, c); },
        [&](int64_t r, int64_t c, double, double e) { return e * slope(r, c); });
    CHECK(forward <= 1);
    CHECK(backward <= 1);
    MESSAGE(size.tokens, " tokens, relu^2 of ", size.width, " to ", size.hidden, ": ", forward, " and ",
            backward, " of the bound");
}

}  // namespace

TEST_CASE("bf16 products with relu^2 of 100 tokens against float64, twice with the same bits") {
    check_size({100, 72, 264});
}
TEST_CASE("bf16 products with relu^2 of 16384 tokens against float64, twice with the same bits") {
    if (!in_harness()) check_size({16384, 768, 3072});
}
