// The CUDA runtime with its errors as exceptions, and pinned memory for asynchronous copies.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "base/error.h"

namespace longreach::cuda {

class Progress;

// Throws with code device: what failed, and what the runtime calls it.
inline void require_success(cudaError_t error, const char* call) {
    if (error != cudaSuccess) cudaGetLastError();  // said here; must not show up at a later call
    require(error == cudaSuccess, ExitCode::device, "{}: {} ({})", call, cudaGetErrorString(error),
            cudaGetErrorName(error));
}

// A ring of pinned host memory between the caller's memory and the device. An upload returns as soon as its
// bytes are in the ring; a piece of the ring is written again only after the copy out of it is done.
class PinnedRing {
  public:
    PinnedRing(cudaStream_t stream, Progress& progress);  // of the stream
    ~PinnedRing();
    PinnedRing(const PinnedRing&) = delete;
    PinnedRing& operator=(const PinnedRing&) = delete;

    void upload(void* device, const void* host, int64_t bytes);
    void download(void* host, const void* device, int64_t bytes);  // waits for the stream

  private:
    static constexpr int64_t half_bytes = int64_t{4} << 20;
    struct Half {
        std::byte* memory = nullptr;
        cudaEvent_t copied = nullptr;  // everything uploaded from this half so far
        bool pending = false;
    };
    void turn();  // to the other half, once its copies are done

    cudaStream_t stream_;
    Progress& progress_;
    Half halves_[2];
    int current_ = 0;
    int64_t used_ = 0;  // bytes of the current half
};

}  // namespace longreach::cuda
