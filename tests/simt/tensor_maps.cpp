// The driver's function that encodes tensor maps, and how the runtime hands it out.
#include "simt/tensor_maps.h"

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstring>
#include <string>

#include "simt/machine.h"
#include "simt/memory.h"
#include "simt/streams.h"

namespace longreach::simt {

namespace {

constexpr uint64_t signature = 0x70616d726f736e74;

uint32_t element_bytes(CUtensorMapDataType type) {
    switch (type) {
        case CU_TENSOR_MAP_DATA_TYPE_UINT8:
            return 1;
        case CU_TENSOR_MAP_DATA_TYPE_UINT16:
        case CU_TENSOR_MAP_DATA_TYPE_FLOAT16:
        case CU_TENSOR_MAP_DATA_TYPE_BFLOAT16:
            return 2;
        case CU_TENSOR_MAP_DATA_TYPE_UINT32:
        case CU_TENSOR_MAP_DATA_TYPE_INT32:
        case CU_TENSOR_MAP_DATA_TYPE_FLOAT32:
            return 4;
        default:
            return 0;
    }
}

// What is wrong with the map, the driver's rules first, then what the harness does not know; empty: nothing.
std::string fault_of(const TensorMap& map, uint32_t rank, const cuuint32_t* element_strides,
                     CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                     CUtensorMapFloatOOBfill fill) {
    if (map.element == 0) return "a data type that the harness does not know";
    if (rank != 3) return "rank " + std::to_string(rank) + ", the harness knows 3";
    if (map.base % 16 != 0 || map.base == 0) return "a base that is no multiple of 16 bytes";
    if (!device_memory().contains(map.base)) return "a base that is no device memory";
    for (size_t i = 0; i < 3; ++i) {
        std::string of = " of dimension " + std::to_string(i);
        if (map.size[i] == 0 || map.size[i] > uint64_t{1} << 32)
            return "size " + std::to_string(map.size[i]) + of + "; 1 to 2^32 are allowed";
        if (map.box[i] == 0 || map.box[i] > 256)
            return "a box of " + std::to_string(map.box[i]) + of + "; 1 to 256 are allowed";
        if (element_strides[i] != 1) return "an element stride other than 1" + of;
        if (i > 0 && (map.stride[i] % 16 != 0 || map.stride[i] == 0 || map.stride[i] >= uint64_t{1} << 40))
            return "a stride of " + std::to_string(map.stride[i]) + " bytes" + of +
                   "; multiples of 16 below 2^40 are allowed";
    }
    if (map.row_bytes() % 16 != 0) return "a box whose rows are no multiple of 16 bytes";
    if (interleave != CU_TENSOR_MAP_INTERLEAVE_NONE) return "interleaved, which the harness does not know";
    if (swizzle != CU_TENSOR_MAP_SWIZZLE_NONE && swizzle != CU_TENSOR_MAP_SWIZZLE_128B)
        return "a swizzle other than that of 128 bytes, which the harness does not know";
    if (map.swizzled && map.row_bytes() > 128)
        return "rows of " + std::to_string(map.row_bytes()) +
               " bytes in the box; a 128-byte swizzle allows 128";
    if (fill != CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) return "a fill of NaN, which the harness does not know";
    return "";
}

CUresult encode(CUtensorMap* to, CUtensorMapDataType type, cuuint32_t rank, void* base,
                const cuuint64_t* sizes, const cuuint64_t* strides, const cuuint32_t* box,
                const cuuint32_t* element_strides, CUtensorMapInterleave interleave,
                CUtensorMapSwizzle swizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill fill) {
    TensorMap map;
    map.signature = signature;
    map.base = reinterpret_cast<uintptr_t>(base);
    map.element = element_bytes(type);
    map.swizzled = swizzle == CU_TENSOR_MAP_SWIZZLE_128B;
    map.stride[0] = map.element;
    for (size_t i = 0; i < 3 && rank == 3; ++i) {
        map.size[i] = sizes[i];
        map.box[i] = box[i];
        if (i > 0) map.stride[i] = strides[i - 1];
    }
    std::string fault = fault_of(map, rank, element_strides, interleave, swizzle, fill);
    if (reinterpret_cast<uintptr_t>(to) % 64 != 0) fault = "a map that is not aligned to 64 bytes";
    if (!fault.empty()) {
        report({Kind::tensor_map, "cuTensorMapEncodeTiled: " + fault});
        return CUDA_ERROR_INVALID_VALUE;
    }
    std::memset(to, 0, sizeof *to);
    std::memcpy(static_cast<void*>(to), &map, sizeof map);
    return CUDA_SUCCESS;
}

cudaError_t entry_point(const char* symbol, void** function, cudaDriverEntryPointQueryResult* result) {
    bool known = std::string(symbol) == "cuTensorMapEncodeTiled";
    *function = known ? reinterpret_cast<void*>(&encode) : nullptr;
    if (result != nullptr) *result = known ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
    return cudaSuccess;
}

}  // namespace

const TensorMap* opened(const void* map) {
    const auto* inside = static_cast<const TensorMap*>(map);
    return reinterpret_cast<uintptr_t>(map) % 64 == 0 && inside->signature == signature ? inside : nullptr;
}

}  // namespace longreach::simt

using namespace longreach::simt;

extern "C" {

cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** function, unsigned,
                                             unsigned long long, cudaDriverEntryPointQueryResult* result) {
    ENTER();
    return entry_point(symbol, function, result);
}
cudaError_t cudaGetDriverEntryPoint(const char* symbol, void** function, unsigned long long,
                                    cudaDriverEntryPointQueryResult* result) {
    ENTER();
    return entry_point(symbol, function, result);
}

}  // extern "C"
