#include "kernels/cuda/progress.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <thread>

#include "base/error.h"
#include "kernels/cuda/runtime.h"

namespace longreach::cuda {

Progress::Progress(cudaStream_t stream, ProgressLimits limits) : stream_(stream), limits_(std::move(limits)) {
    for (Mark& mark : marks_)
        require_success(cudaEventCreateWithFlags(&mark.event, cudaEventDisableTiming), "cudaEventCreate");
}

Progress::~Progress() {
    for (const Mark& mark : marks_)
        if (mark.event) cudaEventDestroy(mark.event);
}

void Progress::queued(const char* operation) {
    ++operations_;
    if (end_ - begin_ == marks_.size() && !advance()) {
        wait(marks_[begin_ % marks_.size()].event);
        advance();
    }
    Mark& mark = marks_[end_ % marks_.size()];
    require_success(cudaEventRecord(mark.event, stream_), "cudaEventRecord");
    mark.operation = operation;
    mark.number = operations_;
    ++end_;
}

bool Progress::advance() {
    const uint64_t before = begin_;
    while (begin_ != end_) {
        const Mark& mark = marks_[begin_ % marks_.size()];
        const cudaError_t status = cudaEventQuery(mark.event);
        if (status == cudaErrorNotReady) {
            cudaGetLastError();
            break;
        }
        require_success(status, mark.operation);
        reached_ = mark.operation;
        ++begin_;
    }
    return begin_ != before;
}

void Progress::wait(const char* what) {
    wait_while([this] { return cudaStreamQuery(stream_); }, what);
    if (begin_ != end_) reached_ = marks_[(end_ - 1) % marks_.size()].operation;
    begin_ = end_;
}
void Progress::wait(cudaEvent_t event) {
    wait_while([event] { return cudaEventQuery(event); }, "wait for a copy");
}

// Most waits are short, and a thread that sleeps wakes up late: the first milliseconds are spent asking.
void Progress::wait_while(const std::function<cudaError_t()>& status, const char* what) {
    using Seconds = std::chrono::duration<double>;
    const Clock::time_point begin = Clock::now();
    Clock::time_point last = begin, looked = begin, asked{};
    for (;;) {
        const cudaError_t now_is = status();
        const Clock::time_point now = Clock::now();
        const double idle = Seconds(now - last).count();
        if (now_is != cudaErrorNotReady) {
            longest_ = std::max(longest_, idle);
            return require_success(now_is, what);
        }
        cudaGetLastError();
        if (now - begin < std::chrono::milliseconds(2)) {
            std::this_thread::yield();
            continue;
        }
        std::this_thread::sleep_for(
            std::chrono::microseconds(now - begin < std::chrono::seconds(1) ? 50 : 1000));
        if (now - looked < std::chrono::milliseconds(50)) continue;
        looked = now;
        if (advance()) {
            longest_ = std::max(longest_, idle);
            last = now;
            continue;
        }
        if (asked == Clock::time_point{} && limits_.stop_asked && limits_.stop_asked()) asked = now;
        if (limits_.seconds > 0 && idle > limits_.seconds) give_up(what, idle);
        if (asked != Clock::time_point{} &&
            std::min(idle, Seconds(now - asked).count()) > std::max(limits_.grace, 2 * longest_))
            give_up(what, idle);
    }
}

// Without destructors: freeing device memory would wait, too.
void Progress::give_up(const char* what, double idle) const {
    std::string running = "";
    if (begin_ != end_) {
        const Mark& mark = marks_[begin_ % marks_.size()];
        running = fmt::format("; running: {} (operation {} of {} queued)", mark.operation, mark.number,
                              operations_);
    }
    if (reached_) running += fmt::format("; the last to end: {}", reached_);
    fmt::print(stderr,
               "error: the device has ended no operation for {:.0f} s ({}){}\n"
               "hint: LONGREACH_CUDA_SYNC=1 waits after each operation; system.device_timeout is the limit\n",
               idle, what, running);
    std::fflush(stderr);
    ::_exit(static_cast<int>(ExitCode::hung));
}

}  // namespace longreach::cuda
