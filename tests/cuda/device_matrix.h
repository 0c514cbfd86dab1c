// Matrices of a device for tests of whole operations in bf16, on a GPU or in the harness.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "kernels/cuda/runtime.h"
#include "kernels/support.h"

namespace longreach::test {

using bf16 = __nv_bfloat16;
inline constexpr double bf16_unit = 0x1p-8;  // half an ulp of 1

// Memory of the device, given back with the object.
template <class T>
class DeviceMemory {
  public:
    explicit DeviceMemory(int64_t count) : count_(count) {
        cuda::require_success(cudaMalloc(&memory_, bytes()), "cudaMalloc");
    }
    DeviceMemory(const DeviceMemory&) = delete;
    DeviceMemory& operator=(const DeviceMemory&) = delete;
    ~DeviceMemory() { cudaFree(memory_); }
    void* data() const { return memory_; }
    void set(const std::vector<T>& values) {
        cuda::require_success(cudaMemcpy(memory_, values.data(), bytes(), cudaMemcpyHostToDevice), "copy");
        cuda::require_success(cudaDeviceSynchronize(), "copy");
    }
    std::vector<T> get() const {
        std::vector<T> values(static_cast<size_t>(count_));
        cuda::require_success(cudaDeviceSynchronize(), "kernels");
        cuda::require_success(cudaMemcpy(values.data(), memory_, bytes(), cudaMemcpyDeviceToHost), "copy");
        return values;
    }

  private:
    size_t bytes() const { return static_cast<size_t>(count_) * sizeof(T); }
    int64_t count_;
    void* memory_ = nullptr;
};

// A matrix on the device with rows `stride` elements apart. What nobody writes stays NaN.
template <class T>
struct DeviceMatrix {
    int64_t rows, cols, stride;
    DeviceMemory<T> memory;

    DeviceMatrix(int64_t rows_, int64_t cols_, int64_t gap)
        : rows(rows_), cols(cols_), stride(cols_ + gap), memory(rows_ * stride) {
        erase();
    }
    void erase() {
        memory.set(std::vector<T>(static_cast<size_t>(rows * stride),
                                  static_cast<T>(std::numeric_limits<float>::quiet_NaN())));
    }
    void set(const Floats& from) {
        std::vector<T> all = memory.get();
        for (int64_t i = 0; i < from.count(); ++i)
            all[static_cast<size_t>(i / cols * stride + i % cols)] = static_cast<T>(from[i]);
        memory.set(all);
    }
    Floats get() const {
        const std::vector<T> all = memory.get();
        Floats to(rows, cols);
        for (int64_t i = 0; i < to.count(); ++i)
            to[i] = static_cast<float>(all[static_cast<size_t>(i / cols * stride + i % cols)]);
        return to;
    }
    Tensor tensor() const {
        Tensor t(memory.data(), std::is_same_v<T, float> ? DType::f32 : DType::bf16, {rows, cols});
        t.row_stride = stride;
        return t;
    }
};

}  // namespace longreach::test
