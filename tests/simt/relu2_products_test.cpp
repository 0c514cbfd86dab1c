// The MLP's products with relu^2 in their epilogues, for Hopper, against float64 and against the library's product with
// a pass after it: ragged edges, several tiles per block, rings that wrap, rows with gaps, several schedules.
//
// With s the sum in float64 and S that of its absolute terms, an f32 sum of K products errs by e = (K + 1) 2^-24 S.
//   h = max(0, a)^2 rounded once:         2 |s| e + e^2, then (2^-8 + 2^-23) h
//   da = dh 2 sqrt(h) rounded once:       2 sqrt(h) e, then (2^-8 + 2^-21) |da|; the root may be approximate by 2^-23
// The pass in place reads a (dh) rounded to bf16, 2^-8 of itself: 2^-7 + 2^-16 of h (2^-8 of da) more.
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "kernels/cuda/gemm.h"
#include "kernels/cuda/relu2_hopper.h"
#include "kernels/support.h"
#include "simt/simt.h"

using namespace longreach;
using namespace longreach::test;

namespace {

using bf16 = __nv_bfloat16;
constexpr double bf16_unit = 0x1p-8;
constexpr float gap_value = 7.0f;

// A bf16 matrix in device memory, its rows `gap` elements further apart than they are long.
class Matrix {
  public:
    Matrix(int64_t rows, int64_t cols, int64_t gap, uint32_t stream, bool squares = false)
        : rows_(rows),
          cols_(cols),
          stride_(cols + gap),
          host_(static_cast<size_t>(rows * stride_), bf16(gap_value)),
          memory_(host_.size()) {
        const Floats values = normal(rows, cols, stream);
        for (int64_t r = 0; r < rows; ++r)
            for (int64_t c = 0; c < cols; ++c) {
                const float x = values.at(r, c);
                host_[place(r, c)] = bf16(squares ? (x < 0 ? 0.0f : x * x) : x);
            }
        memory_.set(host_);
    }
    Tensor tensor() const {
        Tensor t(memory_.data(), DType::bf16, {rows_, cols_});
        t.row_stride = stride_;
        return t;
    }
    double at(int64_t r, int64_t c) const { return double{static_cast<float>(host_[place(r, c)])}; }
    void put(int64_t r, int64_t c, float x) {
        host_[place(r, c)] = bf16(x);
        memory_.set(host_);
    }
    void forget() { memory_.set(std::vector<bf16>(host_.size(), bf16(gap_value))); }
    void download() { host_ = memory_.get(); }
    simt::Output output() const { return memory_.output(); }
    bool gaps_untouched() const {
        for (int64_t r = 0; r < rows_; ++r)
            for (int64_t c = cols_; c < stride_; ++c)
                if (static_cast<float>(host_[place(r, c)]) != gap_value) return false;
        return true;
    }
    int64_t rows() const { return rows_; }
    int64_t cols() const { return cols_; }

  private:
    size_t place(int64_t r, int64_t c) const { return static_cast<size_t>(r * stride_ + c); }
    int64_t rows_, cols_, stride_;
    std::vector<bf16> host_;
    simt::DeviceArray<bf16> memory_;
};

struct Case {
    int64_t tokens, width, hidden;
    int workers;
    int64_t gap = 0;
    int schedules = 2;
};

struct Sum {
    double value = 0, size = 0;
};
template <class Term>
Sum sum_of(int64_t count, Term term) {
    Sum sum;
    for (int64_t k = 0; k < count; ++k) {
        sum.value += term(k);
        sum.size += std::abs(term(k));
    }
    return sum;
}

// The largest error of a [N, F] matrix in units of its bound: expected(r, c) gives both.
template <class Expected>
double worst_of(const Matrix& got, Expected expected) {
    double worst = 0;
    for (int64_t r = 0; r < got.rows(); ++r)
        for (int64_t c = 0; c < got.cols(); ++c) {
            const auto [value, bound] = expected(r, c);
            const double error = std::abs(got.at(r, c) - value);
            if (!(error <= bound * worst)) worst = error == 0 ? worst : error / bound;
        }
    return worst;
}

struct ValueAndBound {
    double value, bound;
};
ValueAndBound forward_at(const Matrix& x, const Matrix& w, int64_t r, int64_t c, bool argument_rounded) {
    const Sum s = sum_of(x.cols(), [&](int64_t k) { return x.at(r, k) * w.at(c, k); });
    const double e = static_cast<double>(x.cols() + 1) * unit * s.size +
                     (argument_rounded ? bf16_unit * std::abs(s.value) : 0);
    const double h = s.value > 0 ? s.value * s.value : 0, of_sum = 2 * std::abs(s.value) * e + e * e;
    return {h, of_sum + (bf16_unit + 2 * unit) * (h + of_sum) + 1e-37};
}
ValueAndBound backward_at(const Matrix& dy, const Matrix& w, const Matrix& h, int64_t r, int64_t c,
                          bool argument_rounded) {
    const Sum s = sum_of(dy.cols(), [&](int64_t k) { return dy.at(r, k) * w.at(k, c); });
    const double e = static_cast<double>(dy.cols() + 1) * unit * s.size +
                     (argument_rounded ? bf16_unit * std::abs(s.value) : 0);
    const double slope = 2 * std::sqrt(h.at(r, c)), da = s.value * slope, of_sum = e * slope;
    return {da, of_sum + (bf16_unit + 8 * unit) * (std::abs(da) + of_sum) + 1e-37};
}

void check_case(const Case& t) {
    CAPTURE(t.tokens);
    CAPTURE(t.width);
    CAPTURE(t.hidden);
    CAPTURE(t.workers);
    CAPTURE(t.gap);
    const Matrix x(t.tokens, t.width, t.gap, 1), up(t.hidden, t.width, 2 * t.gap, 2);
    const Matrix dy(t.tokens, t.width, 3 * t.gap, 3), down(t.width, t.hidden, t.gap, 4);
    const Matrix h(t.tokens, t.hidden, t.gap, 5, true);
    Matrix out(t.tokens, t.hidden, 2 * t.gap, 6), da(t.tokens, t.hidden, t.gap, 7);
    REQUIRE(cuda::relu2_sm90_serves(out.tensor(), x.tensor(), up.tensor(), out.tensor()));
    REQUIRE(cuda::relu2_sm90_serves(da.tensor(), dy.tensor(), down.tensor(), h.tensor()));
    CHECK(simt::run_schedules(
              t.schedules, [&] { out.forget(); },
              [&] { cuda::linear_relu2_sm90(out.tensor(), x.tensor(), up.tensor(), t.workers, nullptr); },
              {out.output()}) == t.schedules);
    CHECK(simt::run_schedules(
              t.schedules, [&] { da.forget(); },
              [&] {
                  cuda::linear_relu2_backward_sm90(da.tensor(), dy.tensor(), down.tensor(), h.tensor(),
                                                   t.workers, nullptr);
              },
              {da.output()}) == t.schedules);
    out.download();
    da.download();
    CHECK(worst_of(out, [&](int64_t r, int64_t c) { return forward_at(x, up, r, c, false); }) <= 1);
    CHECK(worst_of(da, [&](int64_t r, int64_t c) { return backward_at(dy, down, h, r, c, false); }) <= 1);
    CHECK(out.gaps_untouched());
    CHECK(da.gaps_untouched());
}

}  // namespace

TEST_CASE("relu^2 in the epilogue of a product: whole tiles and ragged edges, one tile per block and many") {
    simt::clear_findings();
    for (const Case& t : {Case{.tokens = 128, .width = 64, .hidden = 256, .workers = 4},
                          {.tokens = 64, .width = 8, .hidden = 8, .workers = 1},
                          {.tokens = 65, .width = 72, .hidden = 264, .workers = 1, .gap = 8},
                          {.tokens = 131, .width = 200, .hidden = 40, .workers = 1, .gap = 16},
                          {.tokens = 200, .width = 328, .hidden = 520, .workers = 2}})
        check_case(t);
    CHECK(simt::findings().empty());
}

TEST_CASE("relu^2 in the epilogue of a product gives the same bits under every schedule") {
    simt::clear_findings();
    check_case({.tokens = 140, .width = 264, .hidden = 300 / 8 * 8, .workers = 1, .schedules = 10});
    CHECK(simt::findings().empty());
}

TEST_CASE("a NaN stays one in relu^2 of a product, and infinities keep to their row and column") {
    Matrix x(64, 16, 0, 1);
    const Matrix up(32, 16, 0, 2);
    Matrix out(64, 32, 0, 3);
    x.put(5, 3, std::numeric_limits<float>::quiet_NaN());
    cuda::linear_relu2_sm90(out.tensor(), x.tensor(), up.tensor(), 1, nullptr);
    out.download();
    for (int64_t r = 0; r < 64; ++r)
        for (int64_t c = 0; c < 32; ++c) CHECK(std::isnan(out.at(r, c)) == (r == 5));
}

TEST_CASE("the library's product with a pass after it differs by one rounding more") {
    simt::clear_findings();
    const int64_t tokens = 96, width = 80, hidden = 136;
    const Matrix x(tokens, width, 0, 1), up(hidden, width, 0, 2), dy(tokens, width, 0, 3),
        down(width, hidden, 0, 4);
    const Matrix h(tokens, hidden, 0, 5, true);
    Matrix out(tokens, hidden, 0, 6), da(tokens, hidden, 0, 7);
    cuda::MatrixProducts products(nullptr);
    products.run({.c = out.tensor(), .a = x.tensor(), .b = up.tensor(), .b_transposed = true});
    cuda::relu2(out.tensor(), nullptr);
    products.run({.c = da.tensor(), .a = dy.tensor(), .b = down.tensor()});
    cuda::relu2_backward(da.tensor(), h.tensor(), nullptr);
    out.download();
    da.download();
    const auto forward = [&](bool rounded) {
        return worst_of(out, [&](int64_t r, int64_t c) { return forward_at(x, up, r, c, rounded); });
    };
    const auto backward = [&](bool rounded) {
        return worst_of(da, [&](int64_t r, int64_t c) { return backward_at(dy, down, h, r, c, rounded); });
    };
    CHECK(forward(true) <= 1);
    CHECK(backward(true) <= 1);
    // The bounds of one rounding do not hold for two.
    CHECK(forward(false) > 1);
    CHECK(backward(false) > 1);
    CHECK(simt::findings().empty());
}

TEST_CASE("what the copy engine cannot take is left to the library") {
    const auto matrix = [](DType type, int64_t rows, int64_t cols, int64_t stride) {
        Tensor t(reinterpret_cast<void*>(uintptr_t{4096}), type, {rows, cols});
        t.row_stride = stride;
        return t;
    };
    const Tensor right = matrix(DType::bf16, 64, 16, 16);
    CHECK(cuda::relu2_sm90_serves(right, right, right, right));
    for (const Tensor& wrong : {matrix(DType::f32, 64, 16, 16), matrix(DType::bf16, 64, 16, 20)}) {
        CHECK(!cuda::relu2_sm90_serves(wrong, right, right, right));
        CHECK(!cuda::relu2_sm90_serves(right, wrong, right, right));
        CHECK(!cuda::relu2_sm90_serves(right, right, wrong, right));
        CHECK(!cuda::relu2_sm90_serves(right, right, right, wrong));
    }
    CHECK(!cuda::relu2_sm90_serves(right, matrix(DType::bf16, 32, 16, 16), right, right));
}
