// NcclComm: collectives on a stream of their own, and a thread that watches them.
//
// NCCL's calls into one communicator must not overlap. This includes ncclCommGetAsyncError, in which a
// communicator that does not block finishes its groups. The watcher therefore calls it only if it gets the
// lock at once; while a collective is being posted, the posting thread calls it.
#include "ranks/nccl_comm.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <limits>
#include <map>
#include <mutex>
#include <thread>
#include <vector>

#include "ranks/nccl_api.h"

namespace longreach::ranks {

namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::milliseconds watch_interval{5};
constexpr std::chrono::seconds most_to_finalize{10};

void require_success(cudaError_t error, const char* call) {
    if (error != cudaSuccess) cudaGetLastError();  // reported here; a later call must not return it again
    require(error == cudaSuccess, ExitCode::device, "{}: {}", call, cudaGetErrorString(error));
}

ncclDataType_t type_of(DType dtype) {
    constexpr ncclDataType_t types[] = {ncclFloat32, ncclBfloat16, ncclFloat64, ncclInt32};  // as DType
    return types[static_cast<size_t>(dtype)];
}

bool is_error(ncclResult_t result) {
    return result != ncclSuccess && result != ncclInProgress;
}

// Of several calls: the first error; without one, whether any is still in progress.
ncclResult_t together(ncclResult_t first, ncclResult_t second) {
    return is_error(first) || second == ncclSuccess ? first : second;
}

// The state of a communicator.
ncclResult_t ask(const NcclApi& api, ncclComm_t comm) {
    ncclResult_t state = ncclSuccess;
    const ncclResult_t asked = api.async_error(comm, &state);
    return is_error(asked) ? asked : state;
}

// The result of a call that returned `result`, for as long as go_on() is true. Sleeps longer from time to
// time: a launch takes microseconds, connecting with a peer seconds.
template <class GoOn>
ncclResult_t wait_for(const NcclApi& api, ncclComm_t comm, ncclResult_t result, GoOn go_on) {
    std::chrono::microseconds pause{2};
    while (result == ncclInProgress && go_on()) {
        std::this_thread::sleep_for(pause);
        pause = std::min(2 * pause, std::chrono::microseconds(1000));
        result = ask(api, comm);
    }
    return result;
}

struct GpuStream {
    cudaStream_t handle = nullptr;
    // Of higher priority than the computation, which waits for what is sent here.
    explicit GpuStream(int device) {
        require_success(cudaSetDevice(device), "cudaSetDevice");
        constexpr int highest = std::numeric_limits<int>::min();  // that the device has: CUDA clamps it
        require_success(cudaStreamCreateWithPriority(&handle, cudaStreamNonBlocking, highest),
                        "cudaStreamCreateWithPriority");
    }
    ~GpuStream() { cudaStreamDestroy(handle); }
};

// Events that are used again: creating one takes longer than recording it.
class Events {
  public:
    ~Events() {
        for (const cudaEvent_t event : all_) cudaEventDestroy(event);
    }
    cudaEvent_t take() {
        if (idle_.empty()) {
            idle_.push_back(nullptr);
            require_success(cudaEventCreateWithFlags(&idle_.back(), cudaEventDisableTiming),
                            "cudaEventCreate");
            all_.push_back(idle_.back());
        }
        const cudaEvent_t event = idle_.back();
        idle_.pop_back();
        return event;
    }
    void give_back(cudaEvent_t event) { idle_.push_back(event); }

  private:
    std::vector<cudaEvent_t> all_, idle_;
};

// A communicator that was not closed in order is aborted: nothing else ends NCCL's kernels on the device when
// a peer does not answer.
struct Connection {
    const NcclApi& api;
    ncclComm_t handle = nullptr;
    ~Connection() {
        if (handle) api.abort(handle);
    }
    void close(Clock::time_point deadline) {
        const ncclResult_t result =
            wait_for(api, handle, api.finalize(handle), [&] { return Clock::now() < deadline; });
        if (result == ncclSuccess && api.destroy(handle) == ncclSuccess) handle = nullptr;
    }
};

class NcclComm final : public Comm {
  public:
    NcclComm(int rank, int ranks, CollectiveLog* log, NativeQueue queue, const NcclId& id,
             OnAsyncError on_error, double connect_seconds, const NcclApi& api)
        : Comm(rank, ranks, log),
          api_(api),
          log_(log),
          on_error_(std::move(on_error)),
          device_(queue.device),
          compute_(static_cast<cudaStream_t>(queue.stream)),
          stream_(queue.device),
          ready_(events_.take()),
          connection_{api} {
        connect(id, connect_seconds);
        watcher_ = std::thread([this] { watch(); });
    }
    ~NcclComm() override {
        {
            const std::lock_guard lock(state_);
            stopping_ = true;
        }
        wake_.notify_all();
        watcher_.join();
        const std::lock_guard lock(state_);
        collect_finished();
        if (failure_.empty() && running_.empty()) connection_.close(Clock::now() + most_to_finalize);
    }

    std::string describe() const override {
        int version = 0;
        api_.version(&version);
        return fmt::format("nccl {}.{}.{} on device {}", version / 10000, version / 100 % 100, version % 100,
                           device_);
    }

  protected:
    void post(Ticket ticket, std::span<const Transfer> sends, std::span<const Transfer> receives) override {
        launch(ticket, [&] {
            ncclResult_t result = api_.group_start();
            const auto queue = [&](auto call, std::span<const Transfer> pieces) {
                for (const Transfer& t : pieces)
                    if (t.data.count() > 0)
                        result = together(result, call(t.data.data(), elements(t.data), type_of(t.data.dtype),
                                                       t.peer, connection_.handle, stream_.handle));
            };
            queue(api_.send, sends);
            queue(api_.receive, receives);
            return together(result, api_.group_end());
        });
    }
    void post_all_reduce(Ticket ticket, Tensor data) override {
        launch(ticket, [&] {
            return api_.all_reduce(data.data(), data.data(), elements(data), type_of(data.dtype), ncclSum,
                                   connection_.handle, stream_.handle);
        });
    }
    void finish(Ticket ticket) override {
        const std::lock_guard lock(state_);
        throw_if_failed();
        const auto found = begun_.find(ticket);
        check(found != begun_.end() && !found->second.waited,
              "ticket {} is waited for twice, or was never given", ticket);
        require_success(cudaStreamWaitEvent(compute_, found->second.done, 0), "cudaStreamWaitEvent");
        found->second.waited = true;
        forget_if_over(found);
    }
    bool finishes_in_wait() const override { return false; }

  private:
    struct Begun {
        cudaEvent_t done = nullptr;
        bool waited = false, finished = false;
    };

    static size_t elements(const Tensor& data) { return static_cast<size_t>(data.count()); }

    void connect(const NcclId& id, double seconds) {
        static_assert(sizeof(ncclUniqueId) == sizeof id.bytes);
        ncclUniqueId unique;
        std::memcpy(&unique, id.bytes.data(), sizeof unique);
        ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
        config.blocking = 0;
        const auto deadline = Clock::now() + std::chrono::duration<double>(seconds);
        ncclResult_t result = api_.connect(&connection_.handle, ranks(), unique, rank(), &config);
        result = wait_for(api_, connection_.handle, result, [&] { return Clock::now() < deadline; });
        if (result == ncclSuccess) return;
        throw Error(
            ExitCode::peer,
            result == ncclInProgress
                ? fmt::format("rank {} of {}: NCCL has not connected all ranks within {:g} s", rank(),
                              ranks(), seconds)
                : fmt::format("rank {} of {}: NCCL cannot connect: {}", rank(), ranks(), reason(result)),
            "NCCL_DEBUG=INFO shows what it waits for; NCCL_SOCKET_IFNAME names the network to use");
    }

    // Queues a wait for the earlier work, what `enqueue` asks of NCCL, and the ticket's event.
    template <class Enqueue>
    void launch(Ticket ticket, Enqueue enqueue) {
        const std::lock_guard calls(calls_);
        {
            const std::lock_guard lock(state_);
            throw_if_failed();
            posting_ = ticket;
        }
        require_success(cudaEventRecord(ready_, compute_), "cudaEventRecord");
        require_success(cudaStreamWaitEvent(stream_.handle, ready_, 0), "cudaStreamWaitEvent");
        settle(enqueue());
        const std::lock_guard lock(state_);
        const cudaEvent_t done = events_.take();
        require_success(cudaEventRecord(done, stream_.handle), "cudaEventRecord");
        begun_[ticket] = {done};
        running_.push_back(ticket);
        wake_.notify_all();
    }

    // Returns when NCCL has queued what it was asked for: only then may an event follow it. The first
    // collective with a peer takes as long as the peer takes to arrive; the watchdog limits that.
    void settle(ncclResult_t result) {
        result = wait_for(api_, connection_.handle, result, [&] {
            const std::lock_guard lock(state_);
            throw_if_failed();
            return true;
        });
        if (result == ncclSuccess) return;
        const std::lock_guard lock(state_);
        note_failure("NCCL", reason(result));
        wake_.notify_all();
        throw_if_failed();
    }

    std::string reason(ncclResult_t result) const {
        const char* more = api_.last_error(connection_.handle);
        return more && *more ? fmt::format("{} ({})", api_.error_string(result), more)
                             : std::string(api_.error_string(result));
    }

    // --- with state_ held
    void throw_if_failed() const { require(failure_.empty(), ExitCode::peer, "{}", failure_); }
    void note_failure(const char* who, const std::string& what) {
        if (!failure_.empty()) return;
        const Ticket oldest = running_.empty() ? posting_ : running_.front();
        std::string call = fmt::format("collective {}", oldest);
        if (log_)
            for (const CollectiveRecord& record : log_->state().recent)
                if (record.sequence == oldest) call = ranks::describe(record);
        failure_ = fmt::format("rank {} of {}: {}: {}; the oldest unfinished is {}", rank(), ranks(), who,
                               what, call);
    }
    // On one stream, collectives finish in the order in which they began.
    void collect_finished() {
        while (!running_.empty()) {
            const auto oldest = begun_.find(running_.front());
            const cudaError_t state = cudaEventQuery(oldest->second.done);
            if (state != cudaSuccess) cudaGetLastError();
            if (state == cudaErrorNotReady) return;
            if (state != cudaSuccess) return note_failure("CUDA", cudaGetErrorString(state));
            log_finish(running_.front());
            running_.pop_front();
            oldest->second.finished = true;
            forget_if_over(oldest);
        }
    }
    void forget_if_over(std::map<Ticket, Begun>::iterator ticket) {
        if (!ticket->second.waited || !ticket->second.finished) return;
        events_.give_back(ticket->second.done);
        begun_.erase(ticket);
    }

    void watch() {
        cudaSetDevice(device_);
        std::unique_lock lock(state_);
        while (true) {
            wake_.wait(lock, [&] { return stopping_ || !failure_.empty() || !running_.empty(); });
            if (stopping_) return;
            collect_finished();
            lock.unlock();
            ncclResult_t result = ncclSuccess;
            std::string what;
            if (const std::unique_lock calls(calls_, std::try_to_lock); calls.owns_lock()) {
                result = ask(api_, connection_.handle);
                if (is_error(result)) what = reason(result);
            }
            lock.lock();
            if (is_error(result)) note_failure("NCCL", what);
            if (!failure_.empty()) break;
            wake_.wait_for(lock, watch_interval, [&] { return stopping_; });
        }
        const std::string failure = failure_;
        lock.unlock();
        // No abort here: after it the device would compute with data that never arrived.
        if (on_error_) on_error_(failure);
    }

    const NcclApi& api_;
    CollectiveLog* const log_;
    const OnAsyncError on_error_;
    const int device_;
    const cudaStream_t compute_;
    GpuStream stream_;
    Events events_;
    const cudaEvent_t ready_;  // after the work queued before the newest collective
    Connection connection_;

    std::mutex calls_;  // into NCCL; taken before state_
    std::mutex state_;  // of all below, and events_
    std::condition_variable wake_;
    std::map<Ticket, Begun> begun_;  // until both waited for and finished
    std::deque<Ticket> running_;     // not yet seen finished, oldest first
    Ticket posting_ = 0;             // the newest
    std::string failure_;
    bool stopping_ = false;
    std::thread watcher_;
};

}  // namespace

std::string nccl_unusable() {
    try {
        nccl();
        return {};
    } catch (const Error& e) {
        return e.hint().empty() ? e.what() : fmt::format("{}: {}", e.what(), e.hint());
    }
}

NcclId new_nccl_id() {
    ncclUniqueId unique;
    const ncclResult_t result = nccl().unique_id(&unique);
    require(result == ncclSuccess, ExitCode::device, "ncclGetUniqueId: {}", nccl().error_string(result));
    NcclId id;
    std::memcpy(id.bytes.data(), &unique, sizeof unique);
    return id;
}

std::unique_ptr<Comm> make_nccl_comm(int rank, int ranks, CollectiveLog* log, NativeQueue queue,
                                     const NcclId& id, OnAsyncError on_error, double connect_seconds,
                                     const NcclApi* api) {
    check(queue.device >= 0, "NCCL carries nothing between CPUs");
    return std::make_unique<NcclComm>(rank, ranks, log, queue, id, std::move(on_error), connect_seconds,
                                      api ? *api : nccl());
}

}  // namespace longreach::ranks
