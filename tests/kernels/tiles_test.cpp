// Products of bf16 in the tiles of AMX, whose instructions are simulated (simulated_tiles.h): gemm.cpp, few_rows.cpp and the sources of
// attention, compiled with them, against double and against the same sources in vectors. This program says that its CPU has
// AMX, so that the cases that it also has, of gemm_test.cpp, delta_test.cpp, optimizer_test.cpp, attention_variants_test.cpp
// and stick_breaking_test.cpp, take tiles too.
#include "kernels/amx.h"
#include "kernels/cpu_device.h"
#include "kernels/simulated_tiles.h"
#include "kernels/support.h"

namespace longreach {

bool request_amx() {
    return true;
}

namespace isa_avx512 {
#include "kernels/cpu/gemm.h"
std::unique_ptr<Ops> create(int threads, Precision precision, Tiles tiles);
bool tiles_agree();
}  // namespace isa_avx512

}  // namespace longreach

using namespace longreach;
using namespace longreach::test;
using isa_avx512::Finish;
using isa_avx512::MatrixProduct;
using isa_avx512::Products;

namespace {

bool has_bf16_vectors() {
    return bf16_ops(1) != nullptr;
}

// [rows, cols], and in the next row and column what no product may read.
Floats surrounded(int64_t rows, int64_t cols, uint32_t stream) {
    Floats x = normal(rows + 1, cols + 1, stream, 1, 0, cols + 4);
    for (int64_t r = 0; r <= rows; ++r) x.at(r, cols) = std::numeric_limits<float>::quiet_NaN();
    for (int64_t c = 0; c <= cols; ++c) x.at(rows, c) = std::numeric_limits<float>::quiet_NaN();
    return x;
}

// All inputs of one product.
struct Sides {
    Floats a, b, c, h;
    MatrixProduct product;

    Sides(int64_t m, int64_t n, int64_t k, bool a_transposed, bool b_transposed)
        : a(surrounded(a_transposed ? k : m, a_transposed ? m : k, 1)),
          b(surrounded(b_transposed ? n : k, b_transposed ? k : n, 2)),
          c(normal(m, n, 3, 1, 0, n + 1)),
          h(normal(m, n, 4, 1, 2, n + 2)),
          product{.a = {a.data(), a.tensor().row_stride, a_transposed},
                  .b = {b.data(), b.tensor().row_stride, b_transposed},
                  .m = m,
                  .n = n,
                  .k = k,
                  .h = h.data(),
                  .h_stride = n + 2} {
        for (int64_t i = 0; i < h.count(); ++i) h[i] = std::abs(h[i]);
    }
    double left(int64_t r, int64_t i) const {
        return bf16_rounded(product.a.transposed ? a.at(i, r) : a.at(r, i));
    }
    double right(int64_t i, int64_t col) const {
        return bf16_rounded(product.b.transposed ? b.at(col, i) : b.at(i, col));
    }
    // c as the product leaves it; the memory it works in holds no number before.
    Floats result(Products products) const {
        Floats to = c, scratch(1, isa_avx512::gemm_serial_scratch);
        for (int64_t i = 0; i < scratch.count(); ++i) scratch[i] = std::numeric_limits<float>::quiet_NaN();
        MatrixProduct p = product;
        p.c = to.data();
        p.c_stride = c.cols() + 1;
        isa_avx512::gemm_serial(p, scratch.data(), products);
        CHECK(to.guards_intact());
        CHECK(scratch.guards_intact());
        return to;
    }
};

// |error| of a sum s of k products and its finish, by micro_gemm.h: e = gamma(k + 1) of the magnitude, and a rounding each
// for alpha, beta and their sum.
void check_against_double(const Sides& s) {
    const MatrixProduct& p = s.product;
    const Floats tiles = s.result(Products::bf16_tiles), vectors = s.result(Products::bf16);
    double most = 0, apart = 0;
    for (int64_t r = 0; r < p.m; ++r)
        for (int64_t col = 0; col < p.n; ++col) {
            double sum = 0, magnitude = 0;
            for (int64_t i = 0; i < p.k; ++i) {
                const double product = s.left(r, i) * s.right(i, col);
                sum += product;
                magnitude += std::abs(product);
            }
            const double old = p.beta * s.c.at(r, col), alpha = p.alpha;
            const double blocks = 1 + static_cast<double>(p.k) / 512, k = static_cast<double>(p.k);
            double value = alpha * sum + old;
            double bound = (k + 1 + 2 * blocks) * unit * std::abs(alpha) * magnitude * 1.001 +
                           2 * (blocks + 1) * unit * (std::abs(old) + std::abs(alpha) * magnitude) + 1e-37;
            if (p.finish == Finish::relu2) {
                const double size = std::abs(value);
                bound = 2 * size * bound + bound * bound + 2 * unit * size * size;
                value = value > 0 ? value * value : 0;
            } else if (p.finish == Finish::relu2_backward) {
                const double slope = 2 * std::sqrt(double{s.h.at(r, col)});
                bound = bound * slope * 1.001 + 4 * unit * std::abs(value) * slope;
                value *= slope;
            }
            most = std::max(most, std::abs(double{tiles.at(r, col)} - value) / bound);
            apart = std::max(apart,
                             std::abs(double{tiles.at(r, col)} - double{vectors.at(r, col)}) / (2 * bound));
            if (std::isnan(tiles.at(r, col))) most = 1e30;
        }
    CHECK(most <= 1);
    CHECK(apart <= 1);
}

}  // namespace

TEST_CASE("simulated tiles: a product by hand, and what the manual forbids") {
    if (!has_bf16_vectors()) return;  // the simulation is compiled for AVX-512
    struct alignas(64) Shapes {
        uint8_t palette = 1, zeros[15] = {};
        uint16_t row_bytes[16] = {8, 8, 8};  // sums 2 x 2, left 2 x 2 pairs, right 2 pairs x 2
        uint8_t rows[16] = {2, 2, 2};
    } shapes;
    CHECK_THROWS_AS(tiles::zero(0), std::logic_error);
    tiles::load_config(&shapes);
    const auto bf16 = [](float x) {
        uint32_t bits;
        std::memcpy(&bits, &x, 4);
        return static_cast<uint16_t>(bits >> 16);
    };
    uint16_t left[2][4], right[2][4];
    const float a[2][4] = {{1, 2, 3, 4}, {0x1p-130f, -1, 0, 2}};  // the first of the second row is denormal
    const float b[2][4] = {{5, 6, 0.5f, -2}, {7, 8, 1, 0}};       // pairs of column 0, of column 1
    for (int r = 0; r < 2; ++r)
        for (int i = 0; i < 4; ++i) left[r][i] = bf16(a[r][i]), right[r][i] = bf16(b[r][i]);
    const float start[2][2] = {{100, 0}, {0, -1}};
    float sums[2][2];
    tiles::load(0, start, 8);
    tiles::load(1, left, 8);
    tiles::load(2, right, 8);
    tiles::multiply(0, 1, 2);
    tiles::store(0, sums, 8);
    CHECK(sums[0][0] == 100 + 5 + 12 + 21 + 32);
    CHECK(sums[0][1] == 0.5f - 4 + 3);
    CHECK(sums[1][0] == -6 + 16);
    CHECK(sums[1][1] == -1 + 2);
    CHECK_THROWS_AS(tiles::zero(3), std::logic_error);
    CHECK_THROWS_AS(tiles::multiply(0, 1, 1), std::logic_error);
    tiles::release();
    shapes.row_bytes[2] = 12;  // three columns, but sums of two
    tiles::load_config(&shapes);
    CHECK_THROWS_AS(tiles::multiply(0, 1, 2), std::logic_error);
    tiles::release();
    CHECK_THROWS_AS(tiles::load(0, start, 8), std::logic_error);
    shapes.rows[8] = 1;
    CHECK_THROWS_AS(tiles::load_config(&shapes), std::logic_error);
}

TEST_CASE("tiles are taken where products are bf16 and the CPU has them, unless another set is asked for") {
    if (!has_bf16_vectors()) return;
    const auto in_tiles = [](const CpuOptions& options) {
        const auto ops = make_cpu_ops(options);
        Floats x = normal(40, 70, 1), w = normal(50, 70, 2), y(40, 50);
        const int64_t before = tiles::products;
        ops->linear(y.tensor(), x.tensor(), w.tensor(), Write::set);
        CHECK(tiles::releases == tiles::configurations);
        CHECK((ops->describe().find("avx512_amx") != std::string::npos) == (tiles::products > before));
        return tiles::products > before;
    };
    CHECK(in_tiles({.threads = 2, .precision = Precision::bf16}));
    CHECK(in_tiles({.threads = 2, .precision = Precision::bf16, .isa = "avx512_amx"}));
    CHECK_FALSE(in_tiles({.threads = 2, .precision = Precision::bf16, .isa = "avx512"}));
    CHECK_FALSE(in_tiles({.threads = 2, .isa = "avx512_amx"}));
    CHECK_FALSE(in_tiles({.threads = 2}));
}

TEST_CASE("attention takes tiles, forward and backward, and gives them back") {
    if (!has_bf16_vectors()) return;
    const int64_t tokens = 70, heads = 2, d = 20;
    Floats q = normal(tokens, heads * d, 1), k = normal(tokens, heads * d, 2),
           v = normal(tokens, heads * d, 3);
    Floats dout = normal(tokens, heads * d, 4), o(tokens, heads * d), lse(heads, tokens);
    Floats dq(tokens, heads * d), dk(tokens, heads * d), dv(tokens, heads * d);
    for (const bool sticks : {false, true})
        for (const char* isa : {"avx512_amx", "avx512"}) {
            const auto ops = make_cpu_ops({.threads = 2, .precision = Precision::bf16, .isa = isa});
            AttentionSpec spec{
                .batch = 1, .length = tokens, .heads = heads, .kv_heads = heads, .head_dim = d};
            spec.normaliser = sticks ? Normaliser::stick_breaking : Normaliser::softmax;
            const int64_t start = tiles::products;
            ops->attention(o.tensor(), lse.tensor(), Tensor(), q.tensor(), k.tensor(), v.tensor(), spec);
            const int64_t forward = tiles::products;
            Floats workspace(1, ops->attention_workspace(spec, {}) / 4);
            ops->attention_backward(dq.tensor(), dk.tensor(), dv.tensor(), {}, workspace.tensor(),
                                    dout.tensor(), o.tensor(), lse.tensor(), q.tensor(), k.tensor(),
                                    v.tensor(), spec);
            CAPTURE(isa);
            CHECK((forward > start) == (std::string_view(isa) == "avx512_amx"));
            CHECK((tiles::products > forward) == (std::string_view(isa) == "avx512_amx"));
            CHECK(tiles::releases == tiles::configurations);
        }
}

TEST_CASE("tiles that multiply wrongly are found out and left alone") {
    if (!has_bf16_vectors()) return;
    CHECK(isa_avx512::tiles_agree());
    tiles::broken = true;
    CHECK_FALSE(isa_avx512::tiles_agree());
    tiles::broken = false;
    const auto ops = isa_avx512::create(1, Precision::bf16, Tiles::wrong);
    CHECK(ops->describe() == "cpu avx512, 1 thread, bf16 (without AMX, which failed its check)");
    CHECK(isa_avx512::create(1, Precision::fp32, Tiles::wrong)->describe() == "cpu avx512, 1 thread, fp32");
}

TEST_CASE("products in tiles: every form and tail against double and against vectors") {
    if (!has_bf16_vectors()) return;
    struct Shape {
        int64_t m, n, k;
    };
    const std::vector<Shape> shapes = {{1, 1, 1},     {1, 33, 2},    {15, 31, 31},  {16, 32, 32},
                                       {17, 16, 33},  {32, 32, 64},  {33, 65, 63},  {48, 40, 511},
                                       {49, 1, 512},  {64, 64, 513}, {5, 7, 1040},  {97, 100, 30},
                                       {193, 40, 34}, {20, 257, 34}, {1, 300, 1537}};
    for (const Shape& shape : shapes)
        for (const bool a_transposed : {false, true})
            for (const bool b_transposed : {false, true}) {
                CAPTURE(shape.m);
                CAPTURE(shape.n);
                CAPTURE(shape.k);
                CAPTURE(a_transposed);
                CAPTURE(b_transposed);
                Sides s(shape.m, shape.n, shape.k, a_transposed, b_transposed);
                MatrixProduct& p = s.product;
                check_against_double(s);
                p.beta = 1;
                check_against_double(s);
                p.alpha = -0.75f;
                p.beta = 0.5f;
                check_against_double(s);
            }
}

TEST_CASE("products in tiles: the square of relu and its gradient, and numbers that are none") {
    const auto ops = bf16_ops(2);
    if (!ops) return;
    for (const int64_t k : {1, 31, 700}) {
        Floats x = normal(70, k, 1), w = normal(45, k, 2), h(70, 45), y(70, 45);
        ops->linear_relu2(h.tensor(), x.tensor(), w.tensor());
        ops->linear(y.tensor(), x.tensor(), w.tensor(), Write::set);
        int64_t wrong = 0;
        for (int64_t i = 0; i < y.count(); ++i) {
            const float positive = std::max(0.0f, y[i]);
            wrong += h[i] == positive * positive ? 0 : 1;
        }
        CHECK(wrong == 0);
        Floats wt(k, 45), da(70, 45);
        for (int64_t i = 0; i < k; ++i)
            for (int64_t c = 0; c < 45; ++c) wt.at(i, c) = w.at(c, i);
        ops->linear_relu2_backward(da.tensor(), x.tensor(), wt.tensor(), h.tensor());
        CHECK(worst(
                  da, [&](int64_t i) { return 2 * std::sqrt(double{h[i]}) * double{y[i]}; },
                  [&](int64_t i) {
                      return 4 * unit * 2 * std::sqrt(double{h[i]}) * std::abs(y[i]) + 1e-37;
                  }) <= 1);
    }
    // An infinite or undefined number reaches its own row or column alone, whatever else fills the tiles.
    Floats x = normal(35, 37, 1), w = normal(40, 37, 2), y(35, 40);
    x.at(33, 36) = std::numeric_limits<float>::quiet_NaN();
    w.at(39, 35) = std::numeric_limits<float>::infinity();
    ops->linear(y.tensor(), x.tensor(), w.tensor(), Write::set);
    for (int64_t r = 0; r < 35; ++r)
        for (int64_t c = 0; c < 40; ++c) CHECK(std::isfinite(y.at(r, c)) == (r != 33 && c != 39));
}

TEST_CASE("products in tiles: a row has the same bits whatever rows share its tiles") {
    if (!has_bf16_vectors()) return;
    for (const bool transposed : {false, true}) {
        const int64_t m = 75, n = 70, k = 1100;
        Sides all(m, n, k, transposed, false);
        const Floats whole = all.result(Products::bf16_tiles);
        for (const auto& [first, count] :
             {std::pair<int64_t, int64_t>{0, 1}, {1, 16}, {7, 17}, {31, 33}, {74, 1}}) {
            Sides part = all;
            part.product.m = count;
            part.product.a.data = part.a.data() + first * (transposed ? 1 : part.product.a.row_stride);
            part.product.b.data = part.b.data();
            const Floats some = part.result(Products::bf16_tiles);
            int64_t differ = 0;
            for (int64_t r = 0; r < count; ++r)
                for (int64_t c = 0; c < n; ++c) differ += some.at(r, c) == whole.at(first + r, c) ? 0 : 1;
            CHECK(differ == 0);
        }
    }
}
