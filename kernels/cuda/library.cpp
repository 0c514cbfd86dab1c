// Opening cuBLASLt. With LONGREACH_SIMT the functions are those of the harness in
// tests/simt, linked as usual.
#include "kernels/cuda/library.h"

#if !defined(LONGREACH_SIMT)
#include <string>

#include "base/error.h"
#include "kernels/toolkit_library.h"
#endif

namespace longreach::cuda {

#if defined(LONGREACH_SIMT)

const CublasLt& cublaslt() {
    static const CublasLt functions{
        .create = cublasLtCreate,
        .destroy = cublasLtDestroy,
        .version = cublasLtGetVersion,
        .status_string = cublasLtGetStatusString,
        .operation_create = cublasLtMatmulDescCreate,
        .operation_destroy = cublasLtMatmulDescDestroy,
        .operation_set = cublasLtMatmulDescSetAttribute,
        .layout_create = cublasLtMatrixLayoutCreate,
        .layout_destroy = cublasLtMatrixLayoutDestroy,
        .layout_set = cublasLtMatrixLayoutSetAttribute,
        .preference_create = cublasLtMatmulPreferenceCreate,
        .preference_destroy = cublasLtMatmulPreferenceDestroy,
        .preference_set = cublasLtMatmulPreferenceSetAttribute,
        .heuristic = cublasLtMatmulAlgoGetHeuristic,
        .matmul = cublasLtMatmul,
    };
    return functions;
}

#else

namespace {

// Only the header's version will do, because the types are the header's. 13.1.0 is 130100; before version 12
// the major number had another place, so those versions differ too.
std::string other_version(const ToolkitLibrary& library) {
    const auto version =
        reinterpret_cast<decltype(&cublasLtGetVersion)>(library.symbol("cublasLtGetVersion"));
    const size_t found = version ? version() : 0;
    return found / 10000 == CUBLAS_VER_MAJOR ? "" : fmt::format("version {}", found);
}

CublasLt load() {
    const std::string name = "libcublasLt.so";
    const ToolkitLibrary library({fmt::format("{}.{}", name, CUBLAS_VER_MAJOR), name},
                                 fmt::format("cuBLAS of CUDA {}", CUBLAS_VER_MAJOR), other_version);
    CublasLt f{};
    library.find(f.create, "cublasLtCreate");
    library.find(f.destroy, "cublasLtDestroy");
    library.find(f.version, "cublasLtGetVersion");
    library.find(f.status_string, "cublasLtGetStatusString");
    library.find(f.operation_create, "cublasLtMatmulDescCreate");
    library.find(f.operation_destroy, "cublasLtMatmulDescDestroy");
    library.find(f.operation_set, "cublasLtMatmulDescSetAttribute");
    library.find(f.layout_create, "cublasLtMatrixLayoutCreate");
    library.find(f.layout_destroy, "cublasLtMatrixLayoutDestroy");
    library.find(f.layout_set, "cublasLtMatrixLayoutSetAttribute");
    library.find(f.preference_create, "cublasLtMatmulPreferenceCreate");
    library.find(f.preference_destroy, "cublasLtMatmulPreferenceDestroy");
    library.find(f.preference_set, "cublasLtMatmulPreferenceSetAttribute");
    library.find(f.heuristic, "cublasLtMatmulAlgoGetHeuristic");
    library.find(f.matmul, "cublasLtMatmul");
    return f;
}

}  // namespace

const CublasLt& cublaslt() {
    static const CublasLt functions = load();
    return functions;
}

#endif

}  // namespace longreach::cuda
