// Matrix products of kernels/cuda/gemm.cpp on the harness's stand-in for cuBLASLt, against loops in double
// precision; the stand-in itself against wrong calls.
#include <cublasLt.h>
#include <cuda_runtime.h>

#include <cstring>

#include "kernels/cuda/gemm.h"
#include "kernels/support.h"
#include "simt/cublaslt.h"
#include "simt/simt.h"

using namespace longreach;
using namespace longreach::test;
using cuda::MatrixProducts;
using cuda::Product;

namespace {

// Relative error of a value rounded to bf16, which has 8 significant bits.
constexpr double unit_bf16 = 0x1p-8;

uint16_t bf16_of(float x) {
    uint32_t word;
    std::memcpy(&word, &x, 4);
    return static_cast<uint16_t>((word + 0x7fffu + (word >> 16 & 1)) >> 16);
}
float float_of(uint16_t bits) {
    const uint32_t word = static_cast<uint32_t>(bits) << 16;
    float x;
    std::memcpy(&x, &word, 4);
    return x;
}

// `batch` matrices in device memory, each [rows, cols] with its rows `stride` apart and `step`
// elements between their beginnings, `offset` elements after the beginning of the allocation.
// Whatever lies between is 7.
class Matrices {
  public:
    Matrices(DType type, int64_t rows, int64_t cols, uint32_t stream, int64_t stride = 0, int64_t offset = 0,
             int64_t batch = 1)
        : type_(type),
          rows_(rows),
          cols_(cols),
          stride_(stride ? stride : cols),
          offset_(offset),
          batch_(batch),
          host_(static_cast<size_t>(offset + batch * step() + 3), filling),
          memory_(simt::device_malloc(host_.size() * static_cast<size_t>(size_of(type)))) {
        const Floats values = normal(batch * rows, cols, stream);
        for (int64_t i = 0; i < batch; ++i)
            for (int64_t r = 0; r < rows; ++r)
                for (int64_t c = 0; c < cols; ++c)
                    host_[place(i, r, c)] = rounded(values.at(i * rows + r, c));
        upload();
    }
    Matrices(const Matrices&) = delete;
    Matrices& operator=(const Matrices&) = delete;
    ~Matrices() { simt::device_free(memory_); }

    Tensor tensor() const {
        Tensor t(static_cast<std::byte*>(memory_) + offset_ * size_of(type_), type_, {rows_, cols_});
        t.row_stride = stride_;
        return t;
    }
    int64_t step() const { return rows_ * stride_ + 5; }
    DType type() const { return type_; }
    // As put there, or as downloaded.
    double at(int64_t i, int64_t r, int64_t c) const { return host_[place(i, r, c)]; }
    void fill(float value) {
        for (int64_t i = 0; i < batch_; ++i)
            for (int64_t r = 0; r < rows_; ++r)
                for (int64_t c = 0; c < cols_; ++c) host_[place(i, r, c)] = value;
        upload();
    }
    void download() {
        std::vector<uint16_t> halves(host_.size());
        if (type_ == DType::f32) {
            simt::copy_to_host(host_.data(), memory_, host_.size() * 4);
            return;
        }
        simt::copy_to_host(halves.data(), memory_, host_.size() * 2);
        for (size_t i = 0; i < host_.size(); ++i) host_[i] = float_of(halves[i]);
    }
    bool rest_untouched() const {
        std::vector<float> others = host_;
        for (int64_t i = 0; i < batch_; ++i)
            for (int64_t r = 0; r < rows_; ++r)
                for (int64_t c = 0; c < cols_; ++c) others[place(i, r, c)] = filling;
        for (float x : others)
            if (x != filling) return false;
        return true;
    }

  private:
    static constexpr float filling = 7.0f;
    size_t place(int64_t i, int64_t r, int64_t c) const {
        return static_cast<size_t>(offset_ + i * step() + r * stride_ + c);
    }
    float rounded(float x) const { return type_ == DType::f32 ? x : float_of(bf16_of(x)); }
    void upload() {
        if (type_ == DType::f32) {
            simt::copy_to_device(memory_, host_.data(), host_.size() * 4);
            return;
        }
        std::vector<uint16_t> halves;
        for (float x : host_) halves.push_back(bf16_of(x));
        simt::copy_to_device(memory_, halves.data(), halves.size() * 2);
    }

    DType type_;
    int64_t rows_, cols_, stride_, offset_, batch_;
    std::vector<float> host_;
    void* memory_;
};

struct Case {
    int64_t m, n, k;
    bool a_transposed, b_transposed;
    DType in = DType::f32, out = DType::f32;
    float alpha = 1.0f, beta = 0.0f;
    int64_t gap = 0;     // elements between the rows of every matrix
    int64_t offset = 0;  // of every matrix from an aligned address
    int64_t batch = 1;
    bool addend = false;
};

// Runs a product and compares every element. The error of a sum of k products in f32 is at most
// k units of the sum of their absolute values; three more for alpha, beta and the sum of both;
// then the rounding to the type of c.
void check_product(MatrixProducts& products, const Case& t) {
    CAPTURE(t.m);
    CAPTURE(t.n);
    CAPTURE(t.k);
    CAPTURE(t.a_transposed);
    CAPTURE(t.b_transposed);
    const std::string in = name_of(t.in), out = name_of(t.out);
    CAPTURE(in);
    CAPTURE(out);
    CAPTURE(t.beta);
    CAPTURE(t.batch);
    const int64_t a_rows = t.a_transposed ? t.k : t.m, a_cols = t.a_transposed ? t.m : t.k;
    const int64_t b_rows = t.b_transposed ? t.n : t.k, b_cols = t.b_transposed ? t.k : t.n;
    Matrices a(t.in, a_rows, a_cols, 1, a_cols + t.gap, t.offset, t.batch);
    Matrices b(t.in, b_rows, b_cols, 2, b_cols + 2 * t.gap, t.offset, t.batch);
    Matrices c(t.out, t.m, t.n, 3, t.n + 3 * t.gap, t.offset, t.batch);
    const Matrices before(t.out, t.m, t.n, t.addend ? 4 : 3, t.n + 4 * t.gap, 0, t.batch);
    if (t.beta == 0.0f) c.fill(std::numeric_limits<float>::quiet_NaN());  // must not be read
    Product p{.c = c.tensor(), .a = a.tensor(), .b = b.tensor()};
    p.a_transposed = t.a_transposed;
    p.b_transposed = t.b_transposed;
    p.alpha = t.alpha;
    p.beta = t.beta;
    p.batch = t.batch;
    p.a_step = a.step();
    p.b_step = b.step();
    p.c_step = c.step();
    if (t.addend) {
        p.addend = before.tensor();
        p.addend_step = before.step();
    }
    products.run(p);
    cudaDeviceSynchronize();
    c.download();
    double worst = 0;
    for (int64_t i = 0; i < t.batch; ++i)
        for (int64_t r = 0; r < t.m; ++r)
            for (int64_t col = 0; col < t.n; ++col) {
                double sum = 0, size = 0;
                for (int64_t k = 0; k < t.k; ++k) {
                    const double x = t.a_transposed ? a.at(i, k, r) : a.at(i, r, k);
                    const double y = t.b_transposed ? b.at(i, col, k) : b.at(i, k, col);
                    sum += x * y;
                    size += std::abs(x * y);
                }
                const double added = t.beta == 0.0f ? 0.0 : t.beta * before.at(i, r, col);
                const double expected = t.alpha * sum + added;
                double bound =
                    static_cast<double>(t.k + 3) * unit * (std::abs(t.alpha) * size + std::abs(added));
                if (t.out == DType::bf16) bound += unit_bf16 * (std::abs(expected) + bound);
                const double ratio = std::abs(c.at(i, r, col) - expected) / bound;
                if (!(ratio <= worst)) worst = ratio;
            }
    CHECK(worst <= 1);
    CHECK(c.rest_untouched());
}

// Clears the findings of calls that were wrong on purpose.
struct Expected {
    Expected() { simt::clear_findings(); }
    ~Expected() { simt::clear_findings(); }
    bool found(const std::string& part) const {
        for (const simt::Finding& f : simt::findings())
            if (f.message.find(part) != std::string::npos) return true;
        return false;
    }
};

const std::vector<std::pair<DType, DType>> types = {
    {DType::f32, DType::f32}, {DType::bf16, DType::bf16}, {DType::bf16, DType::f32}};

}  // namespace

TEST_CASE("products agree with loops in double precision in every layout and type") {
    simt::clear_findings();
    MatrixProducts products(nullptr);
    for (auto [in, out] : types)
        for (bool a_transposed : {false, true})
            for (bool b_transposed : {false, true})
                for (auto [m, n, k] : {std::array<int64_t, 3>{1, 1, 1},
                                       {5, 3, 7},
                                       {33, 17, 65},
                                       {1, 40, 9},
                                       {40, 1, 9},
                                       {64, 48, 128}})
                    check_product(products, {m, n, k, a_transposed, b_transposed, in, out});
    CHECK(simt::findings().empty());
}

TEST_CASE("products of slices leave what lies between the rows alone, at any alignment") {
    simt::clear_findings();
    MatrixProducts products(nullptr);
    for (auto [in, out] : types)
        for (bool a_transposed : {false, true})
            for (bool b_transposed : {false, true})
                for (int64_t offset : {0, 1, 2, 4})
                    check_product(products, {.m = 12,
                                             .n = 10,
                                             .k = 70,
                                             .a_transposed = a_transposed,
                                             .b_transposed = b_transposed,
                                             .in = in,
                                             .out = out,
                                             .gap = 3,
                                             .offset = offset});
    CHECK(simt::findings().empty());
}

TEST_CASE("products are added to c, or to another matrix, and come in batches") {
    simt::clear_findings();
    MatrixProducts products(nullptr);
    for (auto [in, out] : types)
        for (bool addend : {false, true})
            for (int64_t batch : {1, 3})
                for (float beta : {0.0f, 1.0f, -4.775f}) {
                    Case t{.m = 9, .n = 20, .k = 33, .a_transposed = true, .b_transposed = false};
                    t.in = in;
                    t.out = out;
                    t.alpha = beta == 1.0f ? 1.0f : 2.0315f;
                    t.beta = beta;
                    t.gap = 1;
                    t.batch = batch;
                    t.addend = addend;
                    check_product(products, t);
                    t.a_transposed = false;
                    t.b_transposed = true;
                    check_product(products, t);
                }
    CHECK(simt::findings().empty());
}

TEST_CASE("empty products: nothing to write, or only what is added") {
    simt::clear_findings();
    MatrixProducts products(nullptr);
    const int64_t calls = simt::matmul_counts().calls;
    Matrices c(DType::f32, 4, 6, 1, 8);
    const Matrices other(DType::f32, 4, 6, 2), before(DType::f32, 4, 6, 1, 8);
    const auto empty = [](int64_t rows, int64_t cols) {
        Tensor t(nullptr, DType::f32, {rows, cols});
        return t;
    };
    products.run({.c = empty(0, 6), .a = empty(0, 3), .b = empty(3, 6)});
    products.run({.c = empty(4, 0), .a = empty(4, 3), .b = empty(3, 0)});
    products.run({.c = c.tensor(), .a = empty(4, 0), .b = empty(0, 6), .beta = 1.0f});
    cudaDeviceSynchronize();
    c.download();
    for (int64_t r = 0; r < 4; ++r)
        for (int64_t col = 0; col < 6; ++col) CHECK(c.at(0, r, col) == before.at(0, r, col));
    products.run(
        {.c = c.tensor(), .a = empty(4, 0), .b = empty(0, 6), .beta = 1.0f, .addend = other.tensor()});
    cudaDeviceSynchronize();
    c.download();
    for (int64_t r = 0; r < 4; ++r)
        for (int64_t col = 0; col < 6; ++col) CHECK(c.at(0, r, col) == other.at(0, r, col));
    products.run({.c = c.tensor(), .a = empty(4, 0), .b = empty(0, 6)});
    cudaDeviceSynchronize();
    c.download();
    for (int64_t r = 0; r < 4; ++r)
        for (int64_t col = 0; col < 6; ++col) CHECK(c.at(0, r, col) == 0);
    CHECK(c.rest_untouched());
    CHECK(simt::matmul_counts().calls == calls);
    CHECK(simt::findings().empty());
}

TEST_CASE("the heuristics are asked once per kind of product, and again for another alignment") {
    MatrixProducts products(nullptr);
    const auto asked = [&](const Case& t) {
        const int64_t before = simt::matmul_counts().heuristics;
        check_product(products, t);
        return simt::matmul_counts().heuristics - before;
    };
    Case t{.m = 8, .n = 8, .k = 8, .a_transposed = false, .b_transposed = true};
    CHECK(asked(t) == 1);
    CHECK(asked(t) == 0);
    t.alpha = 3.0f;
    CHECK(asked(t) == 0);
    t.offset = 1;
    CHECK(asked(t) == 1);
    CHECK(asked(t) == 0);
    t.b_transposed = false;
    CHECK(asked(t) == 1);
    t.beta = 1.0f;
    CHECK(asked(t) == 1);
}

TEST_CASE("products run when the stream does, with the scalars of the call") {
    simt::clear_findings();
    MatrixProducts products(nullptr);
    simt::options().lazy_streams = true;
    check_product(products, {.m = 8, .n = 12, .k = 16, .a_transposed = false, .b_transposed = true});
    Matrices a(DType::f32, 2, 2, 1), b(DType::f32, 2, 2, 2), c(DType::f32, 2, 2, 3);
    const double before = c.at(0, 0, 0);
    products.run({.c = c.tensor(), .a = a.tensor(), .b = b.tensor()});
    c.download();
    CHECK(c.at(0, 0, 0) == before);
    cudaDeviceSynchronize();
    c.download();
    CHECK(c.at(0, 0, 0) != before);
    simt::options().lazy_streams = false;
    CHECK(simt::findings().empty());
}

TEST_CASE("an input that nobody wrote is found, also a c that is added to") {
    MatrixProducts products(nullptr);
    const Matrices a(DType::f32, 4, 4, 1), b(DType::f32, 4, 4, 2);
    for (DType type : {DType::f32, DType::bf16}) {
        const Expected expected;
        simt::DeviceArray<float> fresh(16);
        const Tensor unwritten(fresh.data(), type, {4, 4});
        const Matrices same(type, 4, 4, 3), result(type, 4, 4, 4);
        CHECK_THROWS_AS(products.run({.c = result.tensor(), .a = unwritten, .b = same.tensor()}),
                        simt::Failure);
        CHECK(expected.found("reads of B what nobody wrote"));  // the library's B is our a
    }
    const Expected expected;
    simt::DeviceArray<float> fresh(16);
    const Tensor c(fresh.data(), DType::f32, {4, 4});
    CHECK_THROWS_AS(products.run({.c = c, .a = a.tensor(), .b = b.tensor(), .beta = 1.0f}), simt::Failure);
    CHECK(expected.found("reads of C what nobody wrote"));
    simt::clear_findings();
    products.run({.c = c, .a = a.tensor(), .b = b.tensor()});
    CHECK(simt::findings().empty());
}

TEST_CASE("where no algorithm has f32 partial sums, one with others is taken") {
    simt::without_f32_partial_sums(true);
    MatrixProducts products(nullptr);
    const int64_t before = simt::matmul_counts().heuristics;
    check_product(products, {.m = 8, .n = 8, .k = 8, .a_transposed = false, .b_transposed = true});
    CHECK(simt::matmul_counts().heuristics - before == 2);
    simt::without_f32_partial_sums(false);
}

TEST_CASE("a refused product is an error that names shapes, types, strides and the library's words") {
    const Expected expected;
    MatrixProducts products(nullptr);
    Matrices a(DType::bf16, 4, 6, 1), b(DType::bf16, 5, 6, 2), c(DType::f32, 4, 5, 3);
    Tensor narrow = a.tensor();
    narrow.row_stride = 3;  // rows overlap
    try {
        products.run({.c = c.tensor(), .a = narrow, .b = b.tensor(), .b_transposed = true});
        CHECK(false);
    } catch (const Error& error) {
        const std::string text = error.what();
        CHECK(error.code() == ExitCode::device);
        for (const char* part : {"choosing an algorithm", "bf16 [4, 6] rows 3 apart", "f32 [4, 5]",
                                 "transposed b", "unsupported value"}) {
            CAPTURE(text);
            CHECK(text.find(part) != std::string::npos);
        }
    }
    CHECK(expected.found("shorter than the matrix"));
    // Into its own input, and shapes or types that do not fit.
    const Matrices square(DType::f32, 4, 4, 1);
    CHECK_THROWS_AS(products.run({.c = square.tensor(), .a = square.tensor(), .b = square.tensor()}), Error);
    CHECK(expected.found("overlaps an input"));
    CHECK_THROWS_AS(products.run({.c = c.tensor(), .a = a.tensor(), .b = b.tensor()}), Error);
    const Matrices wide(DType::f32, 5, 6, 2);
    CHECK_THROWS_AS(
        products.run({.c = c.tensor(), .a = a.tensor(), .b = wide.tensor(), .b_transposed = true}), Error);
}

// --- the stand-in, called directly

namespace {

// c = a b of 4x4 matrices in columns, every part of the call open to mistakes.
struct Direct {
    cublasLtHandle_t library = nullptr;
    cublasLtMatmulDesc_t operation = nullptr;
    cublasLtMatrixLayout_t a = nullptr, b = nullptr, c = nullptr;
    cublasLtMatmulPreference_t preference = nullptr;
    cublasLtMatmulHeuristicResult_t results[4] = {};
    int found = 0;
    uint64_t workspace_wish = 1 << 20;
    uint32_t schemes = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;

    Direct(cudaDataType input, cudaDataType output, cublasComputeType_t compute, int64_t k, int64_t ld) {
        cublasLtCreate(&library);
        cublasLtMatmulDescCreate(&operation, compute, CUDA_R_32F);
        cublasLtMatrixLayoutCreate(&a, input, 4, static_cast<uint64_t>(k), ld);
        cublasLtMatrixLayoutCreate(&b, input, static_cast<uint64_t>(k), 4, k);
        cublasLtMatrixLayoutCreate(&c, output, 4, 4, 4);
        cublasLtMatmulPreferenceCreate(&preference);
    }
    Direct(const Direct&) = delete;
    Direct& operator=(const Direct&) = delete;
    ~Direct() {
        cublasLtMatmulPreferenceDestroy(preference);
        for (cublasLtMatrixLayout_t l : {a, b, c}) cublasLtMatrixLayoutDestroy(l);
        cublasLtMatmulDescDestroy(operation);
        cublasLtDestroy(library);
    }
    cublasStatus_t ask() {
        cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                             &workspace_wish, sizeof workspace_wish);
        cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &schemes,
                                             sizeof schemes);
        return cublasLtMatmulAlgoGetHeuristic(library, operation, a, b, c, c, preference, 4, results, &found);
    }
    cublasStatus_t multiply(const void* x, const void* y, void* to, void* workspace, size_t bytes) {
        const float one = 1.0f, zero = 0.0f;
        return cublasLtMatmul(library, operation, &one, x, a, y, b, &zero, to, c, to, c, &results[1].algo,
                              workspace, bytes, nullptr);
    }
};

}  // namespace

TEST_CASE("the stand-in computes in columns unless it is told otherwise") {
    simt::clear_findings();
    Direct call(CUDA_R_32F, CUDA_R_32F, CUBLAS_COMPUTE_32F, 4, 4);
    std::vector<float> x(16), y(16), expected(16);
    for (size_t i = 0; i < 16; ++i) x[i] = static_cast<float>(i), y[i] = static_cast<float>(i * i % 7);
    const simt::DeviceArray<float> a(x), b(y);
    simt::DeviceArray<float> c(16);
    for (bool rows : {false, true}) {
        if (rows) {
            const int32_t order = CUBLASLT_ORDER_ROW;
            for (cublasLtMatrixLayout_t l : {call.a, call.b, call.c})
                cublasLtMatrixLayoutSetAttribute(l, CUBLASLT_MATRIX_LAYOUT_ORDER, &order, sizeof order);
        }
        REQUIRE(call.ask() == CUBLAS_STATUS_SUCCESS);
        REQUIRE(call.found == 2);
        CHECK(call.results[0].state != CUBLAS_STATUS_SUCCESS);
        CHECK(call.multiply(a.data(), b.data(), c.data(), nullptr, 0) == CUBLAS_STATUS_SUCCESS);
        const size_t down = rows ? 4 : 1, across = rows ? 1 : 4;
        for (size_t i = 0; i < 4; ++i)
            for (size_t j = 0; j < 4; ++j) {
                float& to = expected[i * down + j * across] = 0;
                for (size_t k = 0; k < 4; ++k) to += x[i * down + k * across] * y[k * down + j * across];
            }
        CHECK(c.get() == expected);
    }
    CHECK(simt::findings().empty());
}

TEST_CASE("the stand-in refuses what the library would, and says why") {
    const simt::DeviceArray<float> a(std::vector<float>(1024, 1.0f)), b(std::vector<float>(1024, 1.0f));
    simt::DeviceArray<float> c(64), workspace(1024);
    const Expected expected;
    {
        Direct call(CUDA_R_32F, CUDA_R_32F, CUBLAS_COMPUTE_32F, 4, 3);
        CHECK(call.ask() == CUBLAS_STATUS_INVALID_VALUE);
        CHECK(expected.found("leading dimension shorter"));
    }
    {
        Direct call(CUDA_R_32F, CUDA_R_16BF, CUBLAS_COMPUTE_32F, 4, 4);
        CHECK(call.ask() == CUBLAS_STATUS_NOT_SUPPORTED);
        CHECK(expected.found("these types"));
    }
    {
        Direct call(CUDA_R_32F, CUDA_R_32F, CUBLAS_COMPUTE_32F_FAST_TF32, 4, 4);
        CHECK(call.ask() == CUBLAS_STATUS_NOT_SUPPORTED);
        CHECK(expected.found("full fp32"));
    }
    {
        Direct call(CUDA_R_32F, CUDA_R_32F, CUBLAS_COMPUTE_32F, 4, 4);
        call.schemes = CUBLASLT_REDUCTION_SCHEME_MASK;
        CHECK(call.ask() == CUBLAS_STATUS_NOT_SUPPORTED);
        CHECK(expected.found("type of the output"));
    }
    {
        Direct call(CUDA_R_32F, CUDA_R_32F, CUBLAS_COMPUTE_32F, 64, 4);
        REQUIRE(call.ask() == CUBLAS_STATUS_SUCCESS);
        REQUIRE(call.results[1].workspaceSize == 128);
        CHECK(call.multiply(a.data(), b.data(), c.data(), workspace.data(), 127) ==
              CUBLAS_STATUS_INVALID_VALUE);
        CHECK(expected.found("a workspace of 127 bytes instead of 128"));
        CHECK(call.multiply(a.data(), b.data(), c.data(), nullptr, 128) == CUBLAS_STATUS_INVALID_VALUE);
        CHECK(expected.found("the workspace is not in device memory"));
        CHECK(call.multiply(a.data() + 1, b.data(), c.data(), workspace.data(), 128) ==
              CUBLAS_STATUS_INVALID_VALUE);
        CHECK(expected.found("A is not aligned to the 256 bytes"));
        float host[16] = {};
        CHECK(call.multiply(a.data(), host, c.data(), workspace.data(), 128) == CUBLAS_STATUS_INVALID_VALUE);
        CHECK(expected.found("B is not in device memory"));
        CHECK(call.multiply(a.data(), b.data(), nullptr, workspace.data(), 128) ==
              CUBLAS_STATUS_INVALID_VALUE);
        CHECK(expected.found("D is not in device memory"));
        const int64_t ld = 5;
        cublasLtMatrixLayoutSetAttribute(call.a, CUBLASLT_MATRIX_LAYOUT_LD, &ld, sizeof ld);
        CHECK(call.multiply(a.data(), b.data(), c.data(), workspace.data(), 128) ==
              CUBLAS_STATUS_INVALID_VALUE);
        CHECK(expected.found("the algorithm of another product"));
        // Past the end of its memory: 300 columns of A are not there.
        const uint64_t many = 300;
        const int64_t tight = 4, long_ld = 300;
        cublasLtMatrixLayoutSetAttribute(call.a, CUBLASLT_MATRIX_LAYOUT_LD, &tight, sizeof tight);
        cublasLtMatrixLayoutSetAttribute(call.a, CUBLASLT_MATRIX_LAYOUT_COLS, &many, sizeof many);
        cublasLtMatrixLayoutSetAttribute(call.b, CUBLASLT_MATRIX_LAYOUT_ROWS, &many, sizeof many);
        cublasLtMatrixLayoutSetAttribute(call.b, CUBLASLT_MATRIX_LAYOUT_LD, &long_ld, sizeof long_ld);
        REQUIRE(call.ask() == CUBLAS_STATUS_SUCCESS);
        CHECK_THROWS_AS(call.multiply(a.data(), b.data(), c.data(), workspace.data(), 128), simt::Failure);
        const int64_t wrong_size = 2;
        CHECK(cublasLtMatrixLayoutSetAttribute(call.a, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &wrong_size,
                                               sizeof wrong_size) == CUBLAS_STATUS_INVALID_VALUE);
    }
}
