// Words of golden vectors in device memory.
#pragma once

#include "cuda/golden.h"
#include "kernels/cuda/dialect.h"
#include "kernels/cuda/runtime.h"

namespace longreach::test {

using cuda::require_success;

// Words in device memory.
class DeviceWords {
  public:
    explicit DeviceWords(size_t count) : bytes_(count * sizeof(uint32_t)) {
        void* memory = nullptr;
        require_success(cudaMalloc(&memory, bytes_), "cudaMalloc");
        data_ = static_cast<uint32_t*>(memory);
    }
    explicit DeviceWords(const Words& words) : DeviceWords(words.size()) {
        require_success(cudaMemcpy(data_, words.data(), bytes_, cudaMemcpyHostToDevice), "copy");
    }
    DeviceWords(const DeviceWords&) = delete;
    DeviceWords& operator=(const DeviceWords&) = delete;
    ~DeviceWords() { cudaFree(data_); }

    uint32_t* data() const { return data_; }
    Words get() const {
        Words words(bytes_ / sizeof(uint32_t));
        require_success(cudaMemcpy(words.data(), data_, bytes_, cudaMemcpyDeviceToHost), "copy");
        return words;
    }

  private:
    size_t bytes_;
    uint32_t* data_ = nullptr;
};

inline void require_words(const std::string& op, const Words& in, size_t count) {
    require(in.size() == count, ExitCode::data, "{}: {} words instead of {}", op, in.size(), count);
}

// The results, once the kernel has ended.
inline Words finish_golden(const std::string& op, const DeviceWords& out) {
    require_success(cudaGetLastError(), op.c_str());
    require_success(cudaDeviceSynchronize(), op.c_str());
    return out.get();
}

}  // namespace longreach::test
