// What the emulated runtime tells of its one device, and the names of errors.
#include <cuda_runtime_api.h>

#include <cstdio>

#include "simt/kernel_calls.h"
#include "simt/simt.h"
#include "simt/streams.h"

namespace longreach::simt {

namespace {

template <class Properties>
void set_clocks(Properties& p) {
    if constexpr (requires { p.memoryClockRate; }) {  // gone from version 13 on
        p.clockRate = 1'500'000;
        p.memoryClockRate = 1'000'000;
    }
}

int multiprocessors() {  // of A100, RTX 3090, RTX 4090, H100
    switch (options().architecture) {
        case 80:
            return 108;
        case 86:
            return 82;
        case 89:
            return 128;
        default:
            return 1;
    }
}

}  // namespace

}  // namespace longreach::simt

using namespace longreach::simt;

extern "C" {

cudaError_t cudaGetDeviceCount(int* count) {
    ENTER();
    *count = 1;
    return cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
    ENTER();
    *device = 0;
    return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
    ENTER();
    return set_last_error(device == 0 ? cudaSuccess : cudaErrorInvalidDevice);
}
cudaError_t cudaDriverGetVersion(int* version) {
    ENTER();
    *version = CUDART_VERSION;
    return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int* version) {
    ENTER();
    *version = CUDART_VERSION;
    return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
    ENTER();
    if (device != 0) return set_last_error(cudaErrorInvalidDevice);
    cudaDeviceProp p{};
    std::snprintf(p.name, sizeof p.name, "SIMT harness");
    p.major = options().architecture / 10;
    p.minor = options().architecture % 10;
    p.totalGlobalMem = options().device_bytes;
    p.sharedMemPerBlock = shared_memory_unasked;
    p.sharedMemPerBlockOptin = shared_memory_of(options().architecture);
    p.sharedMemPerMultiprocessor = p.sharedMemPerBlockOptin + 1024;
    p.reservedSharedMemPerBlock = 1024;
    p.regsPerBlock = p.regsPerMultiprocessor = 65536;
    p.warpSize = 32;
    p.maxThreadsPerBlock = 1024;
    p.maxThreadsPerMultiProcessor = 2048;
    p.maxThreadsDim[0] = p.maxThreadsDim[1] = 1024;
    p.maxThreadsDim[2] = 64;
    p.maxGridSize[0] = 0x7fffffff;
    p.maxGridSize[1] = p.maxGridSize[2] = 65535;
    p.multiProcessorCount = multiprocessors();
    p.memoryBusWidth = 5120;
    p.l2CacheSize = 50 << 20;
    p.asyncEngineCount = 2;
    p.concurrentKernels = p.unifiedAddressing = 1;
    set_clocks(p);
    *properties = p;
    return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
    ENTER();
    if (device != 0) return set_last_error(cudaErrorInvalidDevice);
    switch (attribute) {
        case cudaDevAttrComputeCapabilityMajor:
            *value = options().architecture / 10;
            break;
        case cudaDevAttrComputeCapabilityMinor:
            *value = options().architecture % 10;
            break;
        case cudaDevAttrMultiProcessorCount:
            *value = multiprocessors();
            break;
        case cudaDevAttrMaxSharedMemoryPerBlock:
            *value = static_cast<int>(shared_memory_unasked);
            break;
        case cudaDevAttrMaxSharedMemoryPerBlockOptin:
            *value = static_cast<int>(shared_memory_of(options().architecture));
            break;
        case cudaDevAttrMaxSharedMemoryPerMultiprocessor:
            *value = static_cast<int>(shared_memory_of(options().architecture) + 1024);
            break;
        case cudaDevAttrMaxThreadsPerBlock:
            *value = 1024;
            break;
        case cudaDevAttrMaxThreadsPerMultiProcessor:
            *value = 2048;
            break;
        case cudaDevAttrMaxRegistersPerBlock:
        case cudaDevAttrMaxRegistersPerMultiprocessor:
            *value = 65536;
            break;
        case cudaDevAttrWarpSize:
            *value = 32;
            break;
        case cudaDevAttrClockRate:  // kHz
            *value = 1'500'000;
            break;
        case cudaDevAttrMemoryClockRate:
            *value = 1'000'000;
            break;
        case cudaDevAttrGlobalMemoryBusWidth:
            *value = 5120;
            break;
        case cudaDevAttrL2CacheSize:
            *value = 50 << 20;
            break;
        case cudaDevAttrAsyncEngineCount:
            *value = 2;
            break;
        case cudaDevAttrConcurrentKernels:
        case cudaDevAttrUnifiedAddressing:
            *value = 1;
            break;
        case cudaDevAttrIntegrated:
        case cudaDevAttrEccEnabled:
        case cudaDevAttrMemoryPoolsSupported:
            *value = 0;
            break;
        default:
            return set_last_error(cudaErrorInvalidValue);
    }
    return cudaSuccess;
}
const char* cudaGetErrorName(cudaError_t error) {
    switch (error) {
        case cudaSuccess:
            return "cudaSuccess";
#define NAME(name)        \
    case cudaError##name: \
        return "cudaError" #name;
            NAME(InvalidValue)
            NAME(MemoryAllocation)
            NAME(InvalidPitchValue)
            NAME(InvalidMemcpyDirection)
            NAME(InvalidDevice)
            NAME(InvalidResourceHandle)
            NAME(IllegalState)
            NAME(NotReady)
            NAME(StreamCaptureUnsupported)
            NAME(StreamCaptureInvalidated)
            NAME(StreamCaptureUnmatched)
            NAME(StreamCaptureUnjoined)
            NAME(StreamCaptureIsolation)
            NAME(StreamCaptureImplicit)
            NAME(CapturedEvent)
            NAME(Unknown)
#undef NAME
        default:
            return "an error of the emulated runtime";
    }
}
const char* cudaGetErrorString(cudaError_t error) {
    return error == cudaSuccess ? "no error" : cudaGetErrorName(error);
}

}  // extern "C"
