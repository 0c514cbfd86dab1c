// Stands in for cuBLASLt in programs of the harness: the functions kernels/cuda/library.h names, by the
// library's documentation, for real products of fp32 and bf16 with fp32 sums. Whoever sets an attribute that
// is not here gets CUBLAS_STATUS_NOT_SUPPORTED.
//
// A call that the library would refuse, or answer with garbage, is refused with its status and leaves a
// finding that says why. An algorithm is good for the problem and the alignments it was asked for and for
// nothing else, and may want workspace. The first one offered is always unusable.
//
// Products run as work of the stream, on the host: sums in the order of k without fused multiply-adds, so
// that every machine gets the same bits; one rounding (to nearest even) at the end.
#include "simt/cublaslt.h"

#include <cublasLt.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "simt/kernel_calls.h"
#include "simt/machine.h"
#include "simt/memory.h"

namespace longreach::simt {
namespace {

MatmulCounts counts;
bool f32_partials_missing = false;

struct Layout {
    int64_t type = 0, rows = 0, cols = 0, ld = 0, order = CUBLASLT_ORDER_COL, batch = 1, step = 0;
    int64_t element() const { return type == CUDA_R_32F ? 4 : 2; }
    // Distance in elements between neighbours in a column and in a row.
    int64_t down() const { return order == CUBLASLT_ORDER_COL ? 1 : ld; }
    int64_t across() const { return order == CUBLASLT_ORDER_COL ? ld : 1; }
    int64_t span() const { return ((rows - 1) * down() + (cols - 1) * across() + 1) * element(); }  // bytes
    std::string text() const {
        return std::to_string(rows) + "x" + std::to_string(cols) + " ld " + std::to_string(ld);
    }
};
struct Operation {
    int64_t compute = 0, scale = 0, transpose_a = CUBLAS_OP_N, transpose_b = CUBLAS_OP_N;
};
struct Preference {
    uint64_t workspace = 0;
    uint32_t schemes = CUBLASLT_REDUCTION_SCHEME_MASK;
    std::array<uint32_t, 4> alignments = {256, 256, 256, 256};  // of A, B, C, D
};
struct Library {};

// What a handle stands for; a handle that was destroyed, or never was one, stands for nothing.
template <class Opaque, class Value>
class Handles {
  public:
    Opaque* add(const Value& value) {
        auto opaque = std::make_unique<Opaque>();
        Opaque* handle = opaque.get();
        living_.emplace(handle, std::pair{std::move(opaque), value});
        return handle;
    }
    Value* find(const Opaque* handle) {
        auto at = living_.find(handle);
        return at == living_.end() ? nullptr : &at->second.second;
    }
    bool remove(const Opaque* handle) { return living_.erase(handle) == 1; }

  private:
    std::map<const Opaque*, std::pair<std::unique_ptr<Opaque>, Value>> living_;
};
struct LibraryOpaque {};
Handles<LibraryOpaque, Library> libraries;
Handles<cublasLtMatrixLayoutOpaque_t, Layout> layouts;
Handles<cublasLtMatmulDescOpaque_t, Operation> operations;
Handles<cublasLtMatmulPreferenceOpaque_t, Preference> preferences;
LibraryOpaque* opaque(cublasLtHandle_t handle) {
    return reinterpret_cast<LibraryOpaque*>(handle);
}

cublasStatus_t refuse(cublasStatus_t status, const std::string& why) {
    report({Kind::api, "cuBLASLt: " + why});
    return status;
}

// An attribute of exactly this type.
template <class Stored, class T>
cublasStatus_t store(T& to, const void* value, size_t bytes) {
    if (value == nullptr || bytes != sizeof(Stored))
        return refuse(CUBLAS_STATUS_INVALID_VALUE, "an attribute of " + std::to_string(bytes) +
                                                       " bytes instead of " + std::to_string(sizeof(Stored)));
    Stored read;
    std::memcpy(&read, value, sizeof read);
    to = static_cast<T>(read);
    return CUBLAS_STATUS_SUCCESS;
}

// --- one product

struct Problem {
    Operation operation;
    Layout a, b, c, d;
    int64_t m() const { return d.rows; }
    int64_t n() const { return d.cols; }
    int64_t k() const { return operation.transpose_a == CUBLAS_OP_N ? a.cols : a.rows; }
    std::string text() const {
        return "a product with A " + a.text() + (operation.transpose_a == CUBLAS_OP_N ? "" : " transposed") +
               ", B " + b.text() + (operation.transpose_b == CUBLAS_OP_N ? "" : " transposed") + ", C " +
               c.text() + ", D " + d.text() + ", batch " + std::to_string(d.batch);
    }
    uint64_t fingerprint() const {
        uint64_t hash = 1469598103934665603u;
        const auto add = [&](int64_t v) { hash = (hash ^ static_cast<uint64_t>(v)) * 1099511628211u; };
        for (int64_t v : {operation.compute, operation.scale, operation.transpose_a, operation.transpose_b})
            add(v);
        for (const Layout* l : {&a, &b, &c, &d})
            for (int64_t v : {l->type, l->rows, l->cols, l->ld, l->order, l->batch, l->step}) add(v);
        return hash;
    }
};

// Success, or a finding and the status the library answers with.
cublasStatus_t validate(const Problem& p) {
    const auto invalid = [&](const char* why) {
        return refuse(CUBLAS_STATUS_INVALID_VALUE, p.text() + ": " + why);
    };
    const auto unsupported = [&](const char* why) {
        return refuse(CUBLAS_STATUS_NOT_SUPPORTED, p.text() + ": " + why);
    };
    for (const Layout* l : {&p.a, &p.b, &p.c, &p.d}) {
        if (l->rows <= 0 || l->cols <= 0) return invalid("an empty matrix");
        if (l->order != CUBLASLT_ORDER_COL && l->order != CUBLASLT_ORDER_ROW) return unsupported("the order");
        if (l->ld < (l->order == CUBLASLT_ORDER_COL ? l->rows : l->cols))
            return invalid("a leading dimension shorter than the matrix");
        if (l->batch < 1 || l->batch != p.d.batch) return invalid("batches of different sizes");
    }
    if (p.d.batch > 1 && p.d.step == 0) return invalid("all results of the batch in one place");
    const bool turn_a = p.operation.transpose_a != CUBLAS_OP_N,
               turn_b = p.operation.transpose_b != CUBLAS_OP_N;
    if ((turn_a ? p.a.cols : p.a.rows) != p.m() || (turn_b ? p.b.cols : p.b.rows) != p.k() ||
        (turn_b ? p.b.rows : p.b.cols) != p.n() || p.c.rows != p.m() || p.c.cols != p.n())
        return invalid("shapes that do not fit");
    if (p.operation.compute != CUBLAS_COMPUTE_32F && p.operation.compute != CUBLAS_COMPUTE_32F_PEDANTIC)
        return unsupported("sums other than full fp32");
    if (p.operation.scale != CUDA_R_32F) return unsupported("alpha and beta other than fp32");
    const bool inputs = p.a.type == p.b.type && (p.a.type == CUDA_R_32F || p.a.type == CUDA_R_16BF);
    if (!inputs || p.c.type != p.d.type || (p.d.type != CUDA_R_32F && p.d.type != p.a.type))
        return unsupported("these types");
    return CUBLAS_STATUS_SUCCESS;
}

// What an algorithm remembers of the question it answers; lies in cublasLtMatmulAlgo_t.
struct Chosen {
    uint64_t mark = 0;
    uint64_t fingerprint = 0, workspace = 0;
    std::array<uint32_t, 4> alignments{};
    static constexpr uint64_t right = 0x6d61746d756c;
};
static_assert(sizeof(Chosen) <= sizeof(cublasLtMatmulAlgo_t));

float widen(uint16_t bits) {
    const uint32_t word = static_cast<uint32_t>(bits) << 16;
    float x;
    std::memcpy(&x, &word, 4);
    return x;
}
uint16_t narrow(float x) {
    uint32_t word;
    std::memcpy(&word, &x, 4);
    if ((word & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>(word >> 16 | 0x40);
    return static_cast<uint16_t>((word + 0x7fffu + (word >> 16 & 1)) >> 16);
}

[[noreturn]] void stop(const std::string& text) {
    throw Failure(text);
}

// Elements of device memory, which is open. Memory that nobody wrote holds a NaN of its own.
class Reader {
  public:
    Reader(const char* name, const Problem& problem) : name_(name), problem_(problem) {}
    float operator()(const void* base, int64_t i, int64_t type) {
        if (type == CUDA_R_32F) {
            uint32_t word;
            std::memcpy(&word, static_cast<const uint32_t*>(base) + i, 4);
            if (word == poison_device) unwritten(static_cast<const uint32_t*>(base) + i);
            float x;
            std::memcpy(&x, &word, 4);
            return x;
        }
        uint16_t bits;
        std::memcpy(&bits, static_cast<const uint16_t*>(base) + i, 2);
        if (bits == (poison_device & 0xffff)) unwritten(static_cast<const uint16_t*>(base) + i);
        return widen(bits);
    }

  private:
    void unwritten(const void* at) {
        if (seen_) return;
        seen_ = true;
        const std::string text = problem_.text() + " reads of " + name_ + " what nobody wrote: " +
                                 device_memory().name(reinterpret_cast<uintptr_t>(at));
        report({Kind::uninitialised_global, text});
        if (options().throw_on_finding) stop(text);
    }
    const char* name_;
    const Problem& problem_;
    bool seen_ = false;
};

constexpr int tall = 16, wide = 4;
typedef float Tile __attribute__((vector_size(4 * tall)));

// sums[j][i] over p of a[p][i] * b[p][j], in the order of p.
#if defined(__x86_64__)
__attribute__((target_clones("default", "arch=x86-64-v3", "arch=x86-64-v4")))
#endif
void multiply(float* sums, const float* a, const float* b, int64_t k) {
    Tile s0 = {}, s1 = {}, s2 = {}, s3 = {};
    for (int64_t p = 0; p < k; ++p) {
        Tile v;
        std::memcpy(&v, a + p * tall, sizeof v);
        s0 += v * b[p * wide];
        s1 += v * b[p * wide + 1];
        s2 += v * b[p * wide + 2];
        s3 += v * b[p * wide + 3];
    }
    std::memcpy(sums, &s0, sizeof s0);
    std::memcpy(sums + tall, &s1, sizeof s1);
    std::memcpy(sums + 2 * tall, &s2, sizeof s2);
    std::memcpy(sums + 3 * tall, &s3, sizeof s3);
}

// Panels of `width` rows (of op(A)) or columns (of op(B)), each [k][width], the last filled up with 0.
std::vector<float> packed(const void* base, int64_t type, int64_t count, int64_t k, int64_t step,
                          int64_t k_step, int width, Reader read) {
    std::vector<float> to(static_cast<size_t>((count + width - 1) / width * width * k));
    for (int64_t i = 0; i < count; ++i) {
        float* column = to.data() + i / width * width * k + i % width;
        for (int64_t p = 0; p < k; ++p) column[p * width] = read(base, i * step + p * k_step, type);
    }
    return to;
}

struct Call {
    Problem problem;
    float alpha, beta;
    const void *a, *b, *c, *workspace;
    void* d;
    uint64_t workspace_bytes;
};

template <class T>
T* moved(T* base, int64_t bytes) {
    using Byte = std::conditional_t<std::is_const_v<T>, const std::byte, std::byte>;
    return static_cast<Byte*>(base) + bytes;
}

void multiply_one(const Call& call, int64_t number) {
    const Problem& p = call.problem;
    const int64_t m = p.m(), n = p.n(), k = p.k();
    const void* a = moved(call.a, number * p.a.step * p.a.element());
    const void* b = moved(call.b, number * p.b.step * p.b.element());
    const void* c = call.beta == 0.0f ? nullptr : moved(call.c, number * p.c.step * p.c.element());
    void* d = moved(call.d, number * p.d.step * p.d.element());
    device_memory().checked(a, static_cast<size_t>(p.a.span()), "A of a matrix product");
    device_memory().checked(b, static_cast<size_t>(p.b.span()), "B of a matrix product");
    if (c) device_memory().checked(c, static_cast<size_t>(p.c.span()), "C of a matrix product");
    auto& result = device_memory().checked(d, static_cast<size_t>(p.d.span()), "D of a matrix product");

    const bool turn_a = p.operation.transpose_a != CUBLAS_OP_N,
               turn_b = p.operation.transpose_b != CUBLAS_OP_N;
    const auto left = packed(a, p.a.type, m, k, turn_a ? p.a.across() : p.a.down(),
                             turn_a ? p.a.down() : p.a.across(), tall, Reader("A", p));
    const auto right = packed(b, p.b.type, n, k, turn_b ? p.b.down() : p.b.across(),
                              turn_b ? p.b.across() : p.b.down(), wide, Reader("B", p));
    Reader read_c("C", p);
    std::array<float, tall * wide> sums;
    for (int64_t j = 0; j < n; j += wide)
        for (int64_t i = 0; i < m; i += tall) {
            multiply(sums.data(), left.data() + i * k, right.data() + j * k, k);
            for (int64_t y = 0; y < std::min<int64_t>(wide, n - j); ++y)
                for (int64_t x = 0; x < std::min<int64_t>(tall, m - i); ++x) {
                    float v = call.alpha * sums[static_cast<size_t>(y * tall + x)];
                    if (c)
                        v += call.beta * read_c(c, (i + x) * p.c.down() + (j + y) * p.c.across(), p.c.type);
                    const int64_t at = (i + x) * p.d.down() + (j + y) * p.d.across();
                    if (p.d.type == CUDA_R_32F)
                        static_cast<float*>(d)[at] = v;
                    else
                        static_cast<uint16_t*>(d)[at] = narrow(v);
                }
        }
    const bool columns = p.d.order == CUBLASLT_ORDER_COL;
    const int64_t runs = columns ? n : m, run = (columns ? m : n) * p.d.element();
    for (int64_t r = 0; r < runs; ++r)
        result.shadow->set_initialised(
            reinterpret_cast<uintptr_t>(d) + static_cast<uintptr_t>(r * p.d.ld * p.d.element()),
            static_cast<size_t>(run));
}

void perform(const Call& call) {
    DeviceMemory::Open open(device_memory());
    if (call.workspace_bytes > 0)
        device_memory().checked(call.workspace, call.workspace_bytes, "workspace of a matrix product");
    for (int64_t i = 0; i < call.problem.d.batch; ++i) multiply_one(call, i);
}

// Whether two matrices share an element, as far as their rows lie on one grid; else whether their ends cross.
bool overlap(const void* x, const Layout& of_x, const void* y, const Layout& of_y) {
    const auto bytes = [](const Layout& l) { return (l.batch - 1) * l.step * l.element() + l.span(); };
    const int64_t distance =
        static_cast<int64_t>(reinterpret_cast<uintptr_t>(y) - reinterpret_cast<uintptr_t>(x));
    if (distance >= bytes(of_x) || -distance >= bytes(of_y)) return false;
    const int64_t grid = of_x.ld * of_x.element();
    if (of_x.batch > 1 || grid != of_y.ld * of_y.element() || of_x.order != of_y.order) return true;
    const auto run = [](const Layout& l) {
        return (l.order == CUBLASLT_ORDER_COL ? l.rows : l.cols) * l.element();
    };
    const int64_t place = (distance % grid + grid) % grid;
    return place < run(of_x) || place + run(of_y) > grid;
}

bool find_problem(Problem& problem, cublasLtMatmulDesc_t operation, cublasLtMatrixLayout_t a,
                  cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d) {
    const Operation* o = operations.find(operation);
    const Layout *la = layouts.find(a), *lb = layouts.find(b), *lc = layouts.find(c), *ld = layouts.find(d);
    if (!o || !la || !lb || !lc || !ld) return false;
    problem = {*o, *la, *lb, *lc, *ld};
    return true;
}

}  // namespace

const MatmulCounts& matmul_counts() {
    return counts;
}
void without_f32_partial_sums(bool missing) {
    f32_partials_missing = missing;
}

}  // namespace longreach::simt

using namespace longreach::simt;

extern "C" {

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
    *handle = reinterpret_cast<cublasLtHandle_t>(libraries.add({}));
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
    if (libraries.remove(opaque(handle))) return CUBLAS_STATUS_SUCCESS;
    return refuse(CUBLAS_STATUS_NOT_INITIALIZED, "end of a library that was not started");
}
size_t cublasLtGetVersion() {
    return CUBLAS_VERSION;
}
const char* cublasLtGetStatusString(cublasStatus_t status) {
    switch (status) {
        case CUBLAS_STATUS_SUCCESS:
            return "the operation completed successfully";
        case CUBLAS_STATUS_NOT_INITIALIZED:
            return "the library was not initialized";
        case CUBLAS_STATUS_INVALID_VALUE:
            return "an unsupported value or parameter was passed to the function";
        case CUBLAS_STATUS_NOT_SUPPORTED:
            return "the functionality requested is not supported";
        default:
            return "the requested operation failed";
    }
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType type, uint64_t rows,
                                          uint64_t cols, int64_t ld) {
    *layout = layouts.add(
        {.type = type, .rows = static_cast<int64_t>(rows), .cols = static_cast<int64_t>(cols), .ld = ld});
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
    return layouts.remove(layout) ? CUBLAS_STATUS_SUCCESS
                                  : refuse(CUBLAS_STATUS_INVALID_VALUE, "end of a layout that is none");
}
cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t layout,
                                                cublasLtMatrixLayoutAttribute_t attribute, const void* value,
                                                size_t bytes) {
    Layout* l = layouts.find(layout);
    if (!l) return refuse(CUBLAS_STATUS_INVALID_VALUE, "an attribute of a layout that is none");
    switch (attribute) {
        case CUBLASLT_MATRIX_LAYOUT_TYPE:
            return store<uint32_t>(l->type, value, bytes);
        case CUBLASLT_MATRIX_LAYOUT_ORDER:
            return store<int32_t>(l->order, value, bytes);
        case CUBLASLT_MATRIX_LAYOUT_ROWS:
            return store<uint64_t>(l->rows, value, bytes);
        case CUBLASLT_MATRIX_LAYOUT_COLS:
            return store<uint64_t>(l->cols, value, bytes);
        case CUBLASLT_MATRIX_LAYOUT_LD:
            return store<int64_t>(l->ld, value, bytes);
        case CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT:
            return store<int32_t>(l->batch, value, bytes);
        case CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET:
            return store<int64_t>(l->step, value, bytes);
        default:
            return refuse(CUBLAS_STATUS_NOT_SUPPORTED, "this attribute of a layout");
    }
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* operation, cublasComputeType_t compute,
                                        cudaDataType_t scale) {
    *operation = operations.add({.compute = compute, .scale = scale});
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t operation) {
    return operations.remove(operation)
               ? CUBLAS_STATUS_SUCCESS
               : refuse(CUBLAS_STATUS_INVALID_VALUE, "end of an operation that is none");
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t operation,
                                              cublasLtMatmulDescAttributes_t attribute, const void* value,
                                              size_t bytes) {
    Operation* o = operations.find(operation);
    if (!o) return refuse(CUBLAS_STATUS_INVALID_VALUE, "an attribute of an operation that is none");
    switch (attribute) {
        case CUBLASLT_MATMUL_DESC_COMPUTE_TYPE:
            return store<int32_t>(o->compute, value, bytes);
        case CUBLASLT_MATMUL_DESC_SCALE_TYPE:
            return store<int32_t>(o->scale, value, bytes);
        case CUBLASLT_MATMUL_DESC_TRANSA:
            return store<int32_t>(o->transpose_a, value, bytes);
        case CUBLASLT_MATMUL_DESC_TRANSB:
            return store<int32_t>(o->transpose_b, value, bytes);
        default:
            return refuse(CUBLAS_STATUS_NOT_SUPPORTED, "this attribute of an operation");
    }
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference) {
    *preference = preferences.add({});
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
    return preferences.remove(preference)
               ? CUBLAS_STATUS_SUCCESS
               : refuse(CUBLAS_STATUS_INVALID_VALUE, "end of a preference that is none");
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute,
                                                    const void* value, size_t bytes) {
    Preference* p = preferences.find(preference);
    if (!p) return refuse(CUBLAS_STATUS_INVALID_VALUE, "an attribute of a preference that is none");
    switch (attribute) {
        case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES:
            return store<uint64_t>(p->workspace, value, bytes);
        case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK:
            return store<uint32_t>(p->schemes, value, bytes);
        case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES:
            return store<uint32_t>(p->alignments[0], value, bytes);
        case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES:
            return store<uint32_t>(p->alignments[1], value, bytes);
        case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES:
            return store<uint32_t>(p->alignments[2], value, bytes);
        case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES:
            return store<uint32_t>(p->alignments[3], value, bytes);
        default:
            return refuse(CUBLAS_STATUS_NOT_SUPPORTED, "this attribute of a preference");
    }
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t library, cublasLtMatmulDesc_t operation,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int requested,
                                              cublasLtMatmulHeuristicResult_t results[], int* returned) {
    ++counts.heuristics;
    if (!libraries.find(opaque(library)))
        return refuse(CUBLAS_STATUS_NOT_INITIALIZED, "a question to a library that was not started");
    Problem problem;
    const Preference* wish = preferences.find(preference);
    if (!find_problem(problem, operation, a, b, c, d) || !wish || requested < 1 || !results || !returned)
        return refuse(CUBLAS_STATUS_INVALID_VALUE, "a question for an algorithm without all its parts");
    if (const cublasStatus_t status = validate(problem); status != CUBLAS_STATUS_SUCCESS) return status;
    const bool only_f32 = (wish->schemes & ~uint32_t{CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE}) == 0;
    if (f32_partials_missing && only_f32) return CUBLAS_STATUS_NOT_SUPPORTED;
    if (!f32_partials_missing && !only_f32)
        return refuse(CUBLAS_STATUS_NOT_SUPPORTED, "partial sums may be joined in the type of the output");
    int count = 0;
    if (requested > 1) {
        results[count] = {};
        results[count++].state = CUBLAS_STATUS_NOT_SUPPORTED;
    }
    Chosen chosen{
        .mark = Chosen::right, .fingerprint = problem.fingerprint(), .alignments = wish->alignments};
    // Long sums are split in two where the partial sums find room.
    const auto partials = static_cast<uint64_t>(2 * 4 * problem.m() * problem.n());
    if (problem.k() >= 64 && partials <= wish->workspace) chosen.workspace = partials;
    cublasLtMatmulHeuristicResult_t& result = results[count++];
    result = {};
    std::memcpy(&result.algo, &chosen, sizeof chosen);
    result.workspaceSize = chosen.workspace;
    result.state = CUBLAS_STATUS_SUCCESS;
    result.wavesCount = 1.0f;
    *returned = count;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t library, cublasLtMatmulDesc_t operation, const void* alpha,
                              const void* a, cublasLtMatrixLayout_t layout_a, const void* b,
                              cublasLtMatrixLayout_t layout_b, const void* beta, const void* c,
                              cublasLtMatrixLayout_t layout_c, void* d, cublasLtMatrixLayout_t layout_d,
                              const cublasLtMatmulAlgo_t* algorithm, void* workspace, size_t workspace_bytes,
                              cudaStream_t stream) {
    if (!libraries.find(opaque(library)))
        return refuse(CUBLAS_STATUS_NOT_INITIALIZED, "a product of a library that was not started");
    Call call{};
    Problem& problem = call.problem;
    if (!find_problem(problem, operation, layout_a, layout_b, layout_c, layout_d) || !alpha || !beta ||
        !algorithm)
        return refuse(CUBLAS_STATUS_INVALID_VALUE, "a product without all its parts");
    if (const cublasStatus_t status = validate(problem); status != CUBLAS_STATUS_SUCCESS) return status;
    Chosen chosen;
    std::memcpy(static_cast<void*>(&chosen), algorithm, sizeof chosen);
    const auto invalid = [&](const std::string& why) {
        return refuse(CUBLAS_STATUS_INVALID_VALUE, problem.text() + ": " + why);
    };
    if (chosen.mark != Chosen::right) return invalid("an algorithm that was not chosen");
    if (chosen.fingerprint != problem.fingerprint()) return invalid("the algorithm of another product");
    std::memcpy(&call.alpha, alpha, 4);
    std::memcpy(&call.beta, beta, 4);
    const std::array<const void*, 4> pointers = {a, b, c, d};
    for (size_t i = 0; i < 4; ++i) {
        const std::string name(1, "ABCD"[i]);
        if (i == 2 && call.beta == 0.0f) continue;
        const auto address = reinterpret_cast<uintptr_t>(pointers[i]);
        if (!device_memory().contains(address)) return invalid(name + " is not in device memory");
        if (chosen.alignments[i] == 0 || address % chosen.alignments[i] != 0)
            return invalid(name + " is not aligned to the " + std::to_string(chosen.alignments[i]) +
                           " bytes its algorithm was chosen for");
    }
    if (chosen.workspace > workspace_bytes)
        return invalid("a workspace of " + std::to_string(workspace_bytes) + " bytes instead of " +
                       std::to_string(chosen.workspace));
    if (chosen.workspace > 0 && (!device_memory().contains(reinterpret_cast<uintptr_t>(workspace)) ||
                                 reinterpret_cast<uintptr_t>(workspace) % 256 != 0))
        return invalid("the workspace is not in device memory or not on 256 bytes");
    if (overlap(d, problem.d, a, problem.a) || overlap(d, problem.d, b, problem.b) ||
        (call.beta != 0.0f && c != d && overlap(d, problem.d, c, problem.c)))
        return invalid("the result overlaps an input");
    if (call.beta != 0.0f && c == d && (problem.c.ld != problem.d.ld || problem.c.step != problem.d.step))
        return invalid("C and D at one place in different layouts");
    call.a = a;
    call.b = b;
    call.c = c;
    call.d = d;
    call.workspace = workspace;
    call.workspace_bytes = chosen.workspace;
    ++counts.calls;
    counts.products += problem.d.batch;
    submit([call] { perform(call); }, stream);
    return CUBLAS_STATUS_SUCCESS;
}

}  // extern "C"
