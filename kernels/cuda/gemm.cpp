// Matrix products by cuBLASLt.
//
//   c = alpha op(a) op(b) + beta (c or an addend);  op(a) [m, k], op(b) [k, n], c [m, n], row-major
//
// 2 m n k FLOPs. a, b and c move once at least, c twice where it is added to: (m k + k n) e + m n f bytes, or
// + 2 m n f, e and f those of their elements. Backward of y = x w^T needs x and w: dx = dy w, dw += dy^T x.
//
// The library is column-major: a row-major [rows, cols] matrix with rows `stride` apart is to it a [cols,
// rows] matrix with leading dimension `stride`. So c = op(a) op(b) is asked for as c^T = op(b)^T op(a)^T, and
// what this file calls a is the library's B.
//
// A plan holds all that one kind of product needs: descriptors and the first algorithm of the library's
// heuristics that fits the workspace. Sums split over k may only be joined from f32 partial sums in the
// workspace, by a second step: the other schemes round to the output's type in between.
#include "kernels/cuda/gemm.h"

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <utility>

#include "base/error.h"
#include "kernels/cuda/library.h"

namespace longreach::cuda {
namespace {

// The harness in tests/simt opens and closes all device memory around every launch, page by page.
#if defined(LONGREACH_SIMT)
constexpr int64_t workspace_size = int64_t{1} << 20;
#else
constexpr int64_t workspace_size = int64_t{32} << 20;
#endif
constexpr int candidates = 8;  // asked of the heuristics; the first usable one is taken

// One matrix as it lies in memory, before any transposition.
struct Operand {
    int64_t rows, cols, stride, step;
    DType type;
    int64_t alignment;  // bytes, of every matrix of the batch
    auto operator<=>(const Operand&) const = default;
};
// The largest power of two, up to 256, that divides the address and the distance between matrices.
int64_t alignment_of(const Tensor& t, int64_t batch, int64_t step) {
    auto bits = static_cast<uint64_t>(reinterpret_cast<uintptr_t>(t.data())) | 256u;
    if (batch > 1) bits |= static_cast<uint64_t>(step * size_of(t.dtype));
    return static_cast<int64_t>(bits & (~bits + 1));
}
Operand operand(const Tensor& t, int64_t batch, int64_t step) {
    // The stride of a single row has no meaning and may have any value.
    const int64_t stride = t.rows() > 1 ? t.row_stride : t.cols();
    return {t.rows(), t.cols(), stride, batch > 1 ? step : 0, t.dtype, alignment_of(t, batch, step)};
}

// Everything that decides the algorithm. Only whether beta is 0 matters.
struct Kind {
    Operand c, addend, a, b;
    bool a_transposed, b_transposed, accumulates;
    int64_t batch;
    auto operator<=>(const Kind&) const = default;
};

std::string name_of(const Operand& o) {
    return fmt::format("{} [{}, {}] rows {} apart, matrices {} apart, on {} bytes",
                       longreach::name_of(o.type), o.rows, o.cols, o.stride, o.step, o.alignment);
}
std::string name_of(const Kind& k) {
    return fmt::format("{} products c = {}a {}b{}: c {}; a {}; b {}; added {}", k.batch,
                       k.a_transposed ? "transposed " : "", k.b_transposed ? "transposed " : "",
                       k.accumulates ? " + beta c" : "", name_of(k.c), name_of(k.a), name_of(k.b),
                       name_of(k.addend));
}

void demand(cublasStatus_t status, const char* what, const Kind* kind = nullptr) {
    if (status == CUBLAS_STATUS_SUCCESS) return;
    fail(ExitCode::device, "cuBLASLt: {}: {}{}{}", what, cublaslt().status_string(status),
         kind ? ", for " : "", kind ? name_of(*kind) : "");
}

// A descriptor that is destroyed with its owner.
template <class Handle, cublasStatus_t (*const CublasLt::*destroy)(Handle)>
struct Owned {
    Handle handle = nullptr;
    Owned() = default;
    Owned(Owned&& other) noexcept : handle(std::exchange(other.handle, nullptr)) {}
    Owned& operator=(Owned&&) = delete;
    ~Owned() {
        if (handle) (cublaslt().*destroy)(handle);
    }
};
using Layout = Owned<cublasLtMatrixLayout_t, &CublasLt::layout_destroy>;
using Operation = Owned<cublasLtMatmulDesc_t, &CublasLt::operation_destroy>;
using Preference = Owned<cublasLtMatmulPreference_t, &CublasLt::preference_destroy>;

cudaDataType_t type_of(DType type) {
    return type == DType::f32 ? CUDA_R_32F : CUDA_R_16BF;
}

Layout layout_of(const Operand& o, const Kind& kind) {
    Layout layout;
    demand(cublaslt().layout_create(&layout.handle, type_of(o.type), static_cast<uint64_t>(o.cols),
                                    static_cast<uint64_t>(o.rows), o.stride),
           "creating a layout", &kind);
    const auto batch = static_cast<int32_t>(kind.batch);
    demand(cublaslt().layout_set(layout.handle, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &batch, sizeof batch),
           "setting the batch of a layout", &kind);
    demand(cublaslt().layout_set(layout.handle, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &o.step,
                                 sizeof o.step),
           "setting the step of a layout", &kind);
    return layout;
}

struct Plan {
    Operation operation;
    Layout c, addend, a, b;
    cublasLtMatmulAlgo_t algorithm{};

    Plan(cublasLtHandle_t library, const Kind& kind)
        : c(layout_of(kind.c, kind)),
          addend(layout_of(kind.addend, kind)),
          a(layout_of(kind.a, kind)),
          b(layout_of(kind.b, kind)) {
        demand(cublaslt().operation_create(&operation.handle, CUBLAS_COMPUTE_32F, CUDA_R_32F),
               "creating an operation", &kind);
        const auto set = [&](cublasLtMatmulDescAttributes_t attribute, bool transposed) {
            const int32_t value = transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
            demand(cublaslt().operation_set(operation.handle, attribute, &value, sizeof value),
                   "setting a transposition", &kind);
        };
        set(CUBLASLT_MATMUL_DESC_TRANSA, kind.b_transposed);
        set(CUBLASLT_MATMUL_DESC_TRANSB, kind.a_transposed);
        choose(library, kind);
    }

  private:
    void choose(cublasLtHandle_t library, const Kind& kind) {
        Preference preference;
        demand(cublaslt().preference_create(&preference.handle), "creating a preference", &kind);
        const auto set = [&](cublasLtMatmulPreferenceAttributes_t attribute, auto value) {
            demand(cublaslt().preference_set(preference.handle, attribute, &value, sizeof value),
                   "setting a preference", &kind);
        };
        set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<uint64_t>(workspace_size));
        set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
            uint32_t{CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE | CUBLASLT_REDUCTION_SCHEME_NONE});
        set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, static_cast<uint32_t>(kind.b.alignment));
        set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, static_cast<uint32_t>(kind.a.alignment));
        set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, static_cast<uint32_t>(kind.addend.alignment));
        set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, static_cast<uint32_t>(kind.c.alignment));
        if (find_algorithm(library, kind, preference)) return;
        // Better a product whose partial sums are rounded to the output's type than none.
        set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, uint32_t{CUBLASLT_REDUCTION_SCHEME_MASK});
        if (find_algorithm(library, kind, preference)) {
            fmt::print(stderr, "warning: cuBLASLt has no algorithm with f32 partial sums for {}\n",
                       name_of(kind));
            return;
        }
        demand(CUBLAS_STATUS_NOT_SUPPORTED, "choosing an algorithm", &kind);
    }
    // The first of the heuristics' proposals that fits the workspace. The library answers an unknown combination either
    // with none or with an error.
    bool find_algorithm(cublasLtHandle_t library, const Kind& kind, const Preference& preference) {
        std::array<cublasLtMatmulHeuristicResult_t, candidates> found{};
        int count = 0;
        const cublasStatus_t status =
            cublaslt().heuristic(library, operation.handle, b.handle, a.handle, addend.handle, c.handle,
                                 preference.handle, candidates, found.data(), &count);
        if (status == CUBLAS_STATUS_NOT_SUPPORTED) return false;
        demand(status, "choosing an algorithm", &kind);
        for (int i = 0; i < count; ++i) {
            const cublasLtMatmulHeuristicResult_t& one = found[static_cast<size_t>(i)];
            if (one.state != CUBLAS_STATUS_SUCCESS || one.workspaceSize > size_t{workspace_size}) continue;
            algorithm = one.algo;
            return true;
        }
        return false;
    }
};

void demand_types(const Product& p, const Tensor& addend) {
    const bool inputs = p.a.dtype == p.b.dtype && (p.a.dtype == DType::f32 || p.a.dtype == DType::bf16);
    check(inputs && (p.c.dtype == DType::f32 || p.c.dtype == p.a.dtype) && addend.dtype == p.c.dtype,
          "product of {} and {} into {} with {} added", longreach::name_of(p.a.dtype),
          longreach::name_of(p.b.dtype), longreach::name_of(p.c.dtype), longreach::name_of(addend.dtype));
}

}  // namespace

struct MatrixProducts::State {
    explicit State(Stream on) : stream(on) {
        demand(cublaslt().create(&library), "starting the library");
        if (cudaMalloc(&workspace, workspace_size) == cudaSuccess) return;
        cudaGetLastError();  // cleared, so that a later call does not report it again
        cublaslt().destroy(library);
        throw Error(ExitCode::device,
                    fmt::format("no {} MiB of device memory for matrix products", workspace_size >> 20),
                    "a smaller micro-batch leaves more");
    }
    State(const State&) = delete;
    State& operator=(const State&) = delete;
    ~State() {
        plans.clear();
        cudaFree(workspace);
        cublaslt().destroy(library);
    }

    Stream stream;
    cublasLtHandle_t library = nullptr;
    void* workspace = nullptr;
    std::map<Kind, Plan> plans;
};

MatrixProducts::MatrixProducts(Stream stream) : state_(std::make_unique<State>(stream)) {}
MatrixProducts::~MatrixProducts() = default;

void MatrixProducts::run(const Product& p) {
    const Tensor& addend = p.addend ? p.addend : p.c;
    const int64_t addend_step = p.addend ? p.addend_step : p.c_step;
    const int64_t m = p.c.rows(), n = p.c.cols(), k = p.a_transposed ? p.a.rows() : p.a.cols();
    demand_types(p, addend);
    check((p.a_transposed ? p.a.cols() : p.a.rows()) == m &&
              (p.b_transposed ? p.b.cols() : p.b.rows()) == k &&
              (p.b_transposed ? p.b.rows() : p.b.cols()) == n && addend.rows() == m && addend.cols() == n,
          "product of [{}, {}]{} and [{}, {}]{} into [{}, {}] with [{}, {}] added", p.a.rows(), p.a.cols(),
          p.a_transposed ? "^T" : "", p.b.rows(), p.b.cols(), p.b_transposed ? "^T" : "", m, n, addend.rows(),
          addend.cols());
    check(std::max({m, n, k, p.batch}) <= std::numeric_limits<int32_t>::max() && p.batch >= 0,
          "{} products [{}, {}] with inner length {}", p.batch, m, n, k);
    if (m == 0 || n == 0 || p.batch == 0) return;
    if (k == 0) return without_terms(p, addend, addend_step);
    const Kind kind{.c = operand(p.c, p.batch, p.c_step),
                    .addend = operand(addend, p.batch, addend_step),
                    .a = operand(p.a, p.batch, p.a_step),
                    .b = operand(p.b, p.batch, p.b_step),
                    .a_transposed = p.a_transposed,
                    .b_transposed = p.b_transposed,
                    .accumulates = p.beta != 0.0f,
                    .batch = p.batch};
    auto at = state_->plans.find(kind);
    if (at == state_->plans.end()) at = state_->plans.emplace(kind, Plan(state_->library, kind)).first;
    const Plan& plan = at->second;
    demand(cublaslt().matmul(state_->library, plan.operation.handle, &p.alpha, p.b.data(), plan.b.handle,
                             p.a.data(), plan.a.handle, &p.beta, addend.data(), plan.addend.handle,
                             p.c.data(), plan.c.handle, &plan.algorithm, state_->workspace,
                             size_t{workspace_size}, state_->stream),
           "a product", &kind);
}

// c = beta * addend: the library refuses empty sums.
void MatrixProducts::without_terms(const Product& p, const Tensor& addend, int64_t addend_step) {
    check(p.beta == 0.0f || p.beta == 1.0f, "an empty product with {} times c", p.beta);
    for (int64_t i = 0; i < p.batch; ++i) {
        const auto matrix = [&](const Tensor& t, int64_t step) { return t.moved(i * step); };
        const Tensor c = matrix(p.c, p.c_step);
        if (p.beta == 1.0f) {
            if (p.addend) copy(c, matrix(addend, addend_step), state_->stream);
        } else if (c.contiguous()) {
            zero(c, state_->stream);
        } else {
            for (int64_t r = 0; r < c.rows(); ++r) zero(c.row_range(r, 1), state_->stream);
        }
    }
}

int64_t MatrixProducts::workspace_bytes() const {
    return workspace_size;
}

std::string MatrixProducts::version() {
    const size_t number = cublaslt().version();
    return fmt::format("cuBLASLt {}.{}.{}", number / 10000, number / 100 % 100, number % 100);
}

}  // namespace longreach::cuda
