// Libraries of the CUDA toolkit, opened when they are first needed: a program that can use them starts, and
// trains on a CPU, on machines without them.
#pragma once

#include <cublasLt.h>

namespace longreach::cuda {

// The functions of cuBLASLt that this program calls, with the types of the toolkit's header.
struct CublasLt {
    decltype(&cublasLtCreate) create;
    decltype(&cublasLtDestroy) destroy;
    decltype(&cublasLtGetVersion) version;
    decltype(&cublasLtGetStatusString) status_string;
    decltype(&cublasLtMatmulDescCreate) operation_create;
    decltype(&cublasLtMatmulDescDestroy) operation_destroy;
    decltype(&cublasLtMatmulDescSetAttribute) operation_set;
    decltype(&cublasLtMatrixLayoutCreate) layout_create;
    decltype(&cublasLtMatrixLayoutDestroy) layout_destroy;
    decltype(&cublasLtMatrixLayoutSetAttribute) layout_set;
    decltype(&cublasLtMatmulPreferenceCreate) preference_create;
    decltype(&cublasLtMatmulPreferenceDestroy) preference_destroy;
    decltype(&cublasLtMatmulPreferenceSetAttribute) preference_set;
    decltype(&cublasLtMatmulAlgoGetHeuristic) heuristic;
    decltype(&cublasLtMatmul) matmul;
};

// Opened by the first call and kept until the program ends. Throws ExitCode::device and names every place
// searched if there is no cuBLASLt of the major version this program was built for.
const CublasLt& cublaslt();

}  // namespace longreach::cuda
