#include "kernels/cuda/tensor_map.h"

#include <cuda_runtime_api.h>

#include "base/error.h"
#include "kernels/cuda/runtime.h"

namespace longreach::cuda {
namespace {

// The driver's function, through the runtime: nothing is linked against the driver.
auto driver_encode() {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult found{};
#if CUDART_VERSION >= 12050
    require_success(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000,
                                                     cudaEnableDefault, &found),
                    "cudaGetDriverEntryPointByVersion");
#else
    require_success(cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", &function, cudaEnableDefault, &found),
                    "cudaGetDriverEntryPoint");
#endif
    require(function && found == cudaDriverEntryPointSuccess, ExitCode::device,
            "this driver has no cuTensorMapEncodeTiled");
    return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(function);
}

}  // namespace

bool has_tensor_map(const Tensor& matrix) {
    return matrix.dtype == DType::bf16 && reinterpret_cast<uintptr_t>(matrix.data()) % 16 == 0 &&
           matrix.row_stride % 8 == 0;
}

CUtensorMap tensor_map(const Tensor& matrix, int64_t sequences, int64_t length, int rows) {
    static const auto encode = driver_encode();
    check(matrix.dtype == DType::bf16 && matrix.rows() == sequences * length, "a map of {}x{} for {} x {}",
          matrix.rows(), matrix.cols(), sequences, length);
    const auto row_bytes = static_cast<cuuint64_t>(matrix.row_stride * 2);
    const cuuint64_t sizes[] = {static_cast<cuuint64_t>(matrix.cols()), static_cast<cuuint64_t>(length),
                                static_cast<cuuint64_t>(sequences)};
    const cuuint64_t distances[] = {row_bytes, row_bytes * static_cast<cuuint64_t>(length)};
    const cuuint32_t box[] = {64, static_cast<cuuint32_t>(rows), 1}, step[] = {1, 1, 1};
    CUtensorMap map;
    const CUresult result =
        encode(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 3, const_cast<void*>(matrix.data()), sizes, distances,
               box, step, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
               CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    require(result == CUDA_SUCCESS, ExitCode::device, "cuTensorMapEncodeTiled of {}x{} bf16: error {}",
            matrix.rows(), matrix.cols(), static_cast<int>(result));
    return map;
}

}  // namespace longreach::cuda
