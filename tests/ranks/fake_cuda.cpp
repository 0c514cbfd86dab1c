#include "ranks/fake_cuda.h"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <utility>

using namespace longreach;
using namespace longreach::test::fake_cuda;

namespace {

// How much of every stream has happened before a point, by the streams' numbers.
using Past = std::map<int, int64_t>;
void join(Past& past, const Past& other) {
    for (const auto& [stream, position] : other) past[stream] = std::max(past[stream], position);
}

struct Mark {  // one record of an event
    Past past;
    std::mutex mutex;
    std::condition_variable reached;
    bool done = false;
};

struct Access {
    const std::byte *begin, *end;
    bool write;
    int stream;
    int64_t position;
    std::string name;
};

// All that is known of order, and of memory.
struct Machine {
    std::mutex mutex;
    int streams = 0;
    std::vector<Access> accesses;
    std::vector<Range> memory;
    std::vector<std::string> reports;
    Deaf deaf = Deaf::none;
    std::set<int> broken;
};
Machine& machine() {
    static Machine the;
    return the;
}

thread_local int current_device = 0;

const std::byte* begin_of(const Range& r) {
    return static_cast<const std::byte*>(r.data);
}
const std::byte* end_of(const Range& r) {
    return begin_of(r) + r.bytes;
}

}  // namespace

struct CUstream_st {
    CUstream_st(int on, bool high_priority) : device(on), communication(high_priority) {
        const std::lock_guard lock(machine().mutex);
        number = machine().streams++;
        thread = std::thread([this] { run(); });
    }
    ~CUstream_st() {
        add(nullptr);
        thread.join();
    }
    void add(std::function<void()> task) {
        const std::lock_guard lock(mutex);
        queue.push_back(std::move(task));
        changed.notify_all();
    }
    void run() {
        while (true) {
            std::unique_lock lock(mutex);
            changed.wait(lock, [&] { return !queue.empty(); });
            const std::function<void()> task = std::move(queue.front());
            queue.pop_front();
            lock.unlock();
            if (!task) return;
            task();
        }
    }
    // Against everything that touched the same memory in another stream. With machine().mutex held.
    void note(const Work& work, const Range& range, bool write) {
        for (const Access& other : machine().accesses) {
            const bool apart = other.end <= begin_of(range) || end_of(range) <= other.begin;
            if (apart || other.stream == number || !(other.write || write)) continue;
            if (past[other.stream] < other.position)
                machine().reports.push_back(fmt::format("{} {} what {} {}, and does not wait for it",
                                                        work.name, write ? "writes" : "reads", other.name,
                                                        other.write ? "writes" : "reads"));
        }
        machine().accesses.push_back(
            {begin_of(range), end_of(range), write, number, past[number], work.name});
    }

    const int device;
    const bool communication;
    int number = 0;
    Past past;
    std::mutex mutex;
    std::condition_variable changed;
    std::deque<std::function<void()>> queue;
    std::thread thread;
};

struct CUevent_st {
    std::shared_ptr<Mark> mark;
    int device = 0;
};

namespace longreach::test::fake_cuda {

void enqueue(cudaStream_t stream, Work work) {
    {
        const std::lock_guard lock(machine().mutex);
        ++stream->past[stream->number];
        for (const Range& r : work.reads) stream->note(work, r, false);
        for (const Range& r : work.writes) stream->note(work, r, true);
    }
    stream->add(std::move(work.run));
}

void synchronize(cudaStream_t stream) {
    CUevent_st event;
    cudaEventRecord(&event, stream);
    std::unique_lock lock(event.mark->mutex);
    event.mark->reached.wait(lock, [&] { return event.mark->done; });
}

Stream::Stream(int device) : handle(new CUstream_st(device, false)) {}
Stream::~Stream() {
    delete handle;
}

Memory::Memory(int64_t bytes) : bytes_(static_cast<size_t>(bytes) / 8 + 1) {
    const std::lock_guard lock(machine().mutex);
    machine().memory.push_back({data(), bytes});
}
Memory::~Memory() {
    const std::lock_guard lock(machine().mutex);
    const auto* begin = static_cast<const std::byte*>(data());
    std::erase_if(machine().memory, [&](const Range& r) { return r.data == data(); });
    std::erase_if(machine().accesses,
                  [&](const Access& a) { return a.begin >= begin && a.begin < begin + 8 * bytes_.size(); });
}

bool allocated(Range range) {
    const std::lock_guard lock(machine().mutex);
    return std::any_of(machine().memory.begin(), machine().memory.end(), [&](const Range& r) {
        return begin_of(range) >= begin_of(r) && end_of(range) <= end_of(r);
    });
}

void make_deaf(Deaf streams) {
    const std::lock_guard lock(machine().mutex);
    machine().deaf = streams;
}

void break_device(int device) {
    const std::lock_guard lock(machine().mutex);
    machine().broken.insert(device);
}

void repair() {
    const std::lock_guard lock(machine().mutex);
    machine().deaf = Deaf::none;
    machine().broken.clear();
}

void report(const std::string& what) {
    const std::lock_guard lock(machine().mutex);
    machine().reports.push_back(what);
}

std::vector<std::string> take_reports() {
    const std::lock_guard lock(machine().mutex);
    return std::exchange(machine().reports, {});
}

}  // namespace longreach::test::fake_cuda

cudaError_t cudaSetDevice(int device) {
    current_device = device;
    return cudaSuccess;
}
cudaError_t cudaGetLastError() {
    return cudaSuccess;
}
const char* cudaGetErrorString(cudaError_t error) {
    return error == cudaErrorLaunchFailure ? "unspecified launch failure" : "invalid argument";
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int priority) {
    if (flags != cudaStreamNonBlocking) report("a stream that waits for the default stream");
    *stream = new CUstream_st(current_device, priority < 0);
    return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
    delete stream;
    return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
    const std::shared_ptr<Mark> mark = event->mark;  // as recorded now, whatever is recorded later
    if (!mark) return cudaSuccess;
    {
        const std::lock_guard lock(machine().mutex);
        if (machine().deaf != (stream->communication ? Deaf::communication : Deaf::computation))
            join(stream->past, mark->past);
    }
    stream->add([mark] {
        std::unique_lock lock(mark->mutex);
        mark->reached.wait(lock, [&] { return mark->done; });
    });
    return cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
    *event = new CUevent_st{nullptr, current_device};
    return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
    delete event;
    return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
    const auto mark = std::make_shared<Mark>();
    {
        const std::lock_guard lock(machine().mutex);
        mark->past = stream->past;
    }
    event->mark = mark;
    stream->add([mark] {
        const std::lock_guard lock(mark->mutex);
        mark->done = true;
        mark->reached.notify_all();
    });
    return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
    if (!event->mark) return cudaSuccess;
    {
        const std::lock_guard lock(event->mark->mutex);
        if (event->mark->done) return cudaSuccess;
    }
    const std::lock_guard lock(machine().mutex);
    return machine().broken.contains(event->device) ? cudaErrorLaunchFailure : cudaErrorNotReady;
}
