// Stands in for the toolkit's <cuda_runtime.h> in programs of the harness: the declarations are the
// toolkit's, the functions behind them those of runtime_api.cpp (device memory, copies, streams, events,
// errors; whoever calls another one fails to link).
#pragma once

#include <cuda_runtime_api.h>

template <class T>
cudaError_t cudaMalloc(T** memory, size_t bytes) {
    return cudaMalloc(reinterpret_cast<void**>(memory), bytes);
}
