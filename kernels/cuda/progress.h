// Waits for a device that may have stopped. A kernel that never ends cannot be taken back: whoever waits for its stream by
// the runtime's own calls waits for ever, and so does every destructor that frees memory.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <string>

namespace longreach::cuda {

struct ProgressLimits {
    double seconds = 60;  // without the end of an operation; 0: no limit
    // Whether the program was asked to stop: then a device without progress for `grace` seconds, and for twice as long as
    // an operation took before, is not waited for.
    std::function<bool()> stop_asked = {};
    double grace = 10;
};

// Follows a stream by an event after each operation. Where it sees no operation end for too long, it says which one was
// running and ends the process with ExitCode::hung. The host is at most as many operations ahead as there are events: one
// without an event could take its time unseen.
class Progress {
  public:
    Progress(cudaStream_t stream, ProgressLimits limits);
    Progress(const Progress&) = delete;
    Progress& operator=(const Progress&) = delete;
    ~Progress();

    // Its launches are in the stream. The string lives as long as the program.
    void queued(const char* operation);
    void wait(const char* what);   // until the stream is empty
    void wait(cudaEvent_t event);  // that was recorded in the stream
  private:
    using Clock = std::chrono::steady_clock;
    struct Mark {
        cudaEvent_t event = nullptr;
        const char* operation = "";
        uint64_t number = 0;
    };
    void wait_while(const std::function<cudaError_t()>& status, const char* what);
    bool advance();  // past the marks that were reached; whether there were any
    [[noreturn]] void give_up(const char* what, double idle) const;

    cudaStream_t stream_;
    ProgressLimits limits_;
    std::array<Mark, 256> marks_{};  // number n in place n modulo their count
    uint64_t begin_ = 0, end_ = 0;   // marks that may not have been reached
    uint64_t operations_ = 0;        // queued so far
    const char* reached_ = nullptr;  // the operation that ended last
    double longest_ = 0;             // seconds that a wait saw between the ends of two operations
};

}  // namespace longreach::cuda
