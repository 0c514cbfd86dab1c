// Stands in for the toolkit's <cuda_runtime.h> in programs of the harness: the declarations are the
// toolkit's, the functions behind them those of runtime_api.cpp (the device, memory, copies, streams, events,
// graphs, errors; whoever calls another one fails to link).
#pragma once

#include <cuda_runtime_api.h>

template <class T>
cudaError_t cudaMalloc(T** memory, size_t bytes) {
    return cudaMalloc(reinterpret_cast<void**>(memory), bytes);
}
template <class T>
cudaError_t cudaMallocHost(T** memory, size_t bytes, unsigned flags = 0) {
    return cudaHostAlloc(reinterpret_cast<void**>(memory), bytes, flags);
}
template <class T>
cudaError_t cudaHostAlloc(T** memory, size_t bytes, unsigned flags) {
    return cudaHostAlloc(reinterpret_cast<void**>(memory), bytes, flags);
}
template <class T>
cudaError_t cudaFuncSetAttribute(T* kernel, cudaFuncAttribute attribute, int value) {
    return cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel), attribute, value);
}
