// The runtime's functions that host code around the kernels calls. Streams are one queue in order, run at
// once or, with Options::lazy_streams, when somebody waits.
#include <cuda_runtime_api.h>

#include <cstring>

#include "simt/machine.h"
#include "simt/memory.h"

namespace {

using namespace longreach::simt;

cudaError_t last_error = cudaSuccess;

cudaError_t fail(cudaError_t error) {
    last_error = error;
    return error;
}

void copy(void* to, const void* from, size_t bytes) {
    bool to_device = device_memory().contains(reinterpret_cast<uintptr_t>(to));
    bool from_device = device_memory().contains(reinterpret_cast<uintptr_t>(from));
    if (to_device && from_device)
        copy_on_device(to, from, bytes);
    else if (to_device)
        copy_to_device(to, from, bytes);
    else if (from_device)
        copy_to_host(to, from, bytes);
    else
        std::memcpy(to, from, bytes);
}

// The direction the caller names against the one the pointers have.
bool agrees(void* to, const void* from, cudaMemcpyKind kind) {
    bool to_device = device_memory().contains(reinterpret_cast<uintptr_t>(to));
    bool from_device = device_memory().contains(reinterpret_cast<uintptr_t>(from));
    if (kind == cudaMemcpyDefault) return true;
    return to_device == (kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice) &&
           from_device == (kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice);
}

}  // namespace

extern "C" {

cudaError_t cudaMalloc(void** memory, size_t bytes) {
    *memory = device_malloc(bytes);
    return cudaSuccess;
}

cudaError_t cudaFree(void* memory) {
    synchronise();
    return device_memory().free(memory) ? cudaSuccess : fail(cudaErrorInvalidValue);
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t) {
    if (!agrees(to, from, kind)) return fail(cudaErrorInvalidMemcpyDirection);
    submit([=] { copy(to, from, bytes); });
    return cudaSuccess;
}

cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
    if (!agrees(to, from, kind)) return fail(cudaErrorInvalidMemcpyDirection);
    synchronise();
    copy(to, from, bytes);
    return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t) {
    submit([=] { set_device(to, value, bytes); });
    return cudaSuccess;
}

cudaError_t cudaMemset(void* to, int value, size_t bytes) {
    synchronise();
    set_device(to, value, bytes);
    return cudaSuccess;
}

// Any address that is not null will do for the handles.
cudaError_t cudaStreamCreate(cudaStream_t* stream) {
    *stream = reinterpret_cast<cudaStream_t>(&last_error);
    return cudaSuccess;
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
    return cudaStreamCreate(stream);
}
cudaError_t cudaStreamDestroy(cudaStream_t) {
    synchronise();
    return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t) {
    synchronise();
    return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned) {
    return cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t* event) {
    *event = reinterpret_cast<cudaEvent_t>(&last_error);
    return cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
    return cudaEventCreate(event);
}
cudaError_t cudaEventDestroy(cudaEvent_t) {
    return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t, cudaStream_t) {
    return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t) {
    synchronise();
    return cudaSuccess;
}
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t, cudaEvent_t) {
    *milliseconds = 0;
    return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize() {
    synchronise();
    return cudaSuccess;
}
cudaError_t cudaGetLastError() {
    cudaError_t error = last_error;
    last_error = cudaSuccess;
    return error;
}
cudaError_t cudaPeekAtLastError() {
    return last_error;
}
const char* cudaGetErrorString(cudaError_t error) {
    return error == cudaSuccess ? "no error" : "an error of the emulated runtime";
}

}  // extern "C"
