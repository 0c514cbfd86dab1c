#include "kernels/cuda/runtime.h"

#include <algorithm>
#include <cstring>

#include "kernels/cuda/progress.h"

namespace longreach::cuda {

PinnedRing::PinnedRing(cudaStream_t stream, Progress& progress) : stream_(stream), progress_(progress) {
    void* memory = nullptr;
    require_success(cudaMallocHost(&memory, static_cast<size_t>(2 * half_bytes)), "cudaMallocHost");
    for (int i = 0; i < 2; ++i) {
        halves_[i].memory = static_cast<std::byte*>(memory) + i * half_bytes;
        require_success(cudaEventCreateWithFlags(&halves_[i].copied, cudaEventDisableTiming),
                        "cudaEventCreate");
    }
}

PinnedRing::~PinnedRing() {
    try {
        progress_.wait("the end");
    } catch (const Error&) {  // a destructor cannot report it
    }
    for (Half& half : halves_)
        if (half.copied) cudaEventDestroy(half.copied);
    cudaFreeHost(halves_[0].memory);
}

void PinnedRing::turn() {
    Half& full = halves_[current_];
    require_success(cudaEventRecord(full.copied, stream_), "cudaEventRecord");
    full.pending = true;
    current_ = 1 - current_;
    used_ = 0;
    Half& next = halves_[current_];
    if (next.pending) progress_.wait(next.copied);
    next.pending = false;
}

void PinnedRing::upload(void* device, const void* host, int64_t bytes) {
    auto* to = static_cast<std::byte*>(device);
    const auto* from = static_cast<const std::byte*>(host);
    while (bytes > 0) {
        if (used_ == half_bytes) turn();
        const int64_t n = std::min(bytes, half_bytes - used_);
        std::byte* staged = halves_[current_].memory + used_;
        std::memcpy(staged, from, static_cast<size_t>(n));
        require_success(cudaMemcpyAsync(to, staged, static_cast<size_t>(n), cudaMemcpyHostToDevice, stream_),
                        "copy to the device");
        used_ = std::min(half_bytes, (used_ + n + 63) / 64 * 64);
        to += n, from += n, bytes -= n;
    }
}

void PinnedRing::download(void* host, const void* device, int64_t bytes) {
    auto* to = static_cast<std::byte*>(host);
    const auto* from = static_cast<const std::byte*>(device);
    // Whoever downloads waits anyway: the ring is drained and used from its start.
    while (bytes > 0) {
        progress_.wait("wait for the device");
        halves_[0].pending = halves_[1].pending = false;
        const int64_t n = std::min(bytes, half_bytes);
        std::byte* staged = halves_[current_].memory;
        used_ = 0;
        require_success(
            cudaMemcpyAsync(staged, from, static_cast<size_t>(n), cudaMemcpyDeviceToHost, stream_),
            "copy from the device");
        progress_.wait("wait for the device");
        std::memcpy(to, staged, static_cast<size_t>(n));
        to += n, from += n, bytes -= n;
    }
}

}  // namespace longreach::cuda
