// The emulated runtime: one device, streams whose order is not given away, captures, errors on demand.
#include <cuda_runtime.h>
#include <doctest/doctest.h>

#include <cstring>
#include <string>
#include <vector>

#include "kernels/cuda/dialect.h"
#include "simt/simt.h"

using namespace longreach;
using namespace longreach::cuda;

namespace {

KERNEL(64) void scale(float* y, const float* x, float by) {
    y[threadIdx.x] = by * x[threadIdx.x];
}
KERNEL(64) void increase(float* y) {
    y[threadIdx.x] += 1;
}
struct Large {
    float x[64 * 1024 / 4];
};
KERNEL(64) void large(float* y) {
    Large& s = shared<Large>();
    s.x[threadIdx.x * 256] = 3;
    y[threadIdx.x] = s.x[threadIdx.x * 256];
}

KERNEL(64) void large_once_more(float* y) {
    Large& s = shared<Large>();
    s.x[threadIdx.x] = 3;
    y[threadIdx.x] = s.x[threadIdx.x];
}

constexpr size_t n = 64, bytes = n * sizeof(float);
constexpr uint64_t seeds = 12;

// Options, findings and the last error as at the start, before and after each case.
struct Clean {
    Clean() { reset(); }
    ~Clean() { reset(); }
    Clean(const Clean&) = delete;
    Clean& operator=(const Clean&) = delete;
    static void reset() {
        simt::options() = simt::Options();
        cudaDeviceSynchronize();
        simt::clear_findings();
        cudaGetLastError();
    }
};

struct Streams {
    cudaStream_t a, b;
    Streams() {
        REQUIRE(cudaStreamCreateWithFlags(&a, cudaStreamNonBlocking) == cudaSuccess);
        REQUIRE(cudaStreamCreateWithFlags(&b, cudaStreamNonBlocking) == cudaSuccess);
    }
    ~Streams() {
        cudaStreamDestroy(a);
        cudaStreamDestroy(b);
    }
    Streams(const Streams&) = delete;
    Streams& operator=(const Streams&) = delete;
};

struct Event {
    cudaEvent_t it;
    Event() { REQUIRE(cudaEventCreateWithFlags(&it, cudaEventDisableTiming) == cudaSuccess); }
    ~Event() { cudaEventDestroy(it); }
    Event(const Event&) = delete;
    Event& operator=(const Event&) = delete;
    operator cudaEvent_t() const { return it; }
};

struct Pinned {
    float* data = nullptr;
    Pinned() { REQUIRE(cudaMallocHost(&data, bytes) == cudaSuccess); }
    ~Pinned() { cudaFreeHost(data); }
    Pinned(const Pinned&) = delete;
    Pinned& operator=(const Pinned&) = delete;
    void fill(float value) {
        for (size_t i = 0; i < n; ++i) data[i] = value;
    }
    bool all(float value) const {
        for (size_t i = 0; i < n; ++i)
            if (data[i] != value) return false;
        return true;
    }
};

std::vector<float> all(float value) {
    return std::vector<float>(n, value);
}

// How many seeds give wrong data or a finding; `body` says whether the data are right.
template <class Body>
uint64_t seeds_that_fail(Body body) {
    uint64_t failed = 0;
    for (uint64_t seed = 1; seed <= seeds; ++seed) {
        simt::options().lazy_streams = true;
        simt::options().seed = seed;
        simt::options().throw_on_finding = false;
        bool right = body();
        REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
        failed += !right || !simt::findings().empty();
        simt::clear_findings();
    }
    return failed;
}

cudaStreamCaptureStatus status_of(cudaStream_t stream) {
    cudaStreamCaptureStatus status{};
    REQUIRE(cudaStreamIsCapturing(stream, &status) == cudaSuccess);
    return status;
}

size_t nodes_of(cudaGraph_t graph) {
    size_t count = 0;
    REQUIRE(cudaGraphGetNodes(graph, nullptr, &count) == cudaSuccess);
    return count;
}

}  // namespace

TEST_CASE("the device says what the options say") {
    Clean clean;
    int count = 0, device = -1, value = 0;
    CHECK(cudaGetDeviceCount(&count) == cudaSuccess);
    CHECK(count == 1);
    CHECK(cudaSetDevice(0) == cudaSuccess);
    CHECK(cudaSetDevice(1) == cudaErrorInvalidDevice);
    CHECK(cudaGetDevice(&device) == cudaSuccess);
    CHECK(device == 0);
    for (int architecture : {80, 86, 90}) {
        simt::options().architecture = architecture;
        cudaDeviceProp properties;
        CHECK(cudaGetDeviceProperties(&properties, 0) == cudaSuccess);
        CHECK(properties.name == std::string("SIMT harness"));
        CHECK(properties.major * 10 + properties.minor == architecture);
        CHECK(properties.totalGlobalMem == simt::options().device_bytes);
        CHECK(properties.sharedMemPerBlockOptin == simt::shared_memory_of(architecture));
        CHECK(cudaDeviceGetAttribute(&value, cudaDevAttrMultiProcessorCount, 0) == cudaSuccess);
        CHECK(value == properties.multiProcessorCount);
        CHECK(cudaDeviceGetAttribute(&value, cudaDevAttrMaxSharedMemoryPerBlockOptin, 0) == cudaSuccess);
        CHECK(static_cast<size_t>(value) == simt::shared_memory_of(architecture));
    }
    CHECK(cudaRuntimeGetVersion(&value) == cudaSuccess);
    CHECK(value == CUDART_VERSION);
}

TEST_CASE("the device's memory ends where the options say") {
    Clean clean;
    simt::options().device_bytes = 10 * bytes;
    size_t free = 0, total = 0, before = 0;
    CHECK(cudaMemGetInfo(&before, &total) == cudaSuccess);
    CHECK(total == 10 * bytes);
    float *x = nullptr, *y = nullptr;
    REQUIRE(cudaMalloc(&x, 6 * bytes) == cudaSuccess);
    CHECK(cudaMalloc(&y, 6 * bytes) == cudaErrorMemoryAllocation);
    CHECK(cudaGetLastError() == cudaErrorMemoryAllocation);
    CHECK(cudaMemGetInfo(&free, &total) == cudaSuccess);
    CHECK(free == before - 6 * bytes);
    CHECK(cudaFree(x) == cudaSuccess);
    CHECK(cudaMalloc(&y, 6 * bytes) == cudaSuccess);
    CHECK(cudaFree(y) == cudaSuccess);
    CHECK(cudaMemGetInfo(&free, &total) == cudaSuccess);
    CHECK(free == before);
}

TEST_CASE("copies of rows keep what lies between them") {
    Clean clean;
    std::vector<float> from{1, 2, 3, 4, 5, 6}, to(6, 0);
    simt::DeviceArray<float> x(8);
    x.zero();
    CHECK(cudaMemcpy2DAsync(x.data(), 16, from.data(), 12, 8, 2, cudaMemcpyHostToDevice, nullptr) ==
          cudaSuccess);
    CHECK(x.get() == std::vector<float>{1, 2, 0, 0, 4, 5, 0, 0});
    CHECK(cudaMemset2DAsync(x.data() + 1, 16, 0, 4, 2, nullptr) == cudaSuccess);
    CHECK(x.get() == std::vector<float>{1, 0, 0, 0, 4, 0, 0, 0});
    CHECK(cudaMemcpy2D(to.data(), 12, x.data(), 16, 4, 2, cudaMemcpyDeviceToHost) == cudaSuccess);
    CHECK(to == std::vector<float>{1, 0, 0, 4, 0, 0});
    CHECK(cudaMemcpy2DAsync(x.data(), 4, from.data(), 12, 8, 2, cudaMemcpyHostToDevice, nullptr) ==
          cudaErrorInvalidPitchValue);
}

TEST_CASE("more than 48 KiB of shared memory are asked for before the launch") {
    Clean clean;
    simt::DeviceArray<float> y(n);
    launch(large, {1, 64, sizeof(Large), nullptr}, y.data());
    CHECK(y.get() == all(3));
    for (uint64_t call : {1, 2}) {  // the opt-in, the launch
        y.zero();
        simt::options().fail_call = call;
        launch(large_once_more, {1, 64, sizeof(Large), nullptr}, y.data());
        CHECK(simt::failed_call() == (call == 1 ? "cudaFuncSetAttribute" : "cudaLaunchKernelExC"));
        CHECK(cudaGetLastError() == cudaErrorUnknown);
        CHECK(y.get() == all(0));
    }
    simt::options().architecture = 75;  // 64 KiB: fits; one byte more cannot be asked for
    CHECK(cudaFuncSetAttribute(large, cudaFuncAttributeMaxDynamicSharedMemorySize, 64 * 1024) == cudaSuccess);
    CHECK(cudaFuncSetAttribute(large, cudaFuncAttributeMaxDynamicSharedMemorySize, 64 * 1024 + 1) ==
          cudaErrorInvalidValue);
}

// Stream a produces what stream b reads. Without the wait some order reads it too early: memory nobody has
// written, or the previous values.
TEST_CASE("a missing wait between streams is found by some seed, the wait is silent under all") {
    for (bool waits : {false, true})
        for (bool written_before : {false, true}) {
            CAPTURE(waits);
            CAPTURE(written_before);
            Clean clean;
            Streams streams;
            Event made;
            uint64_t failed = seeds_that_fail([&] {
                simt::DeviceArray<float> x(all(2)), y(n), z(n);
                if (written_before) y.zero();
                launch(scale, {1, 64, 0, streams.a}, y.data(), x.data(), 3.0f);
                CHECK(cudaEventRecord(made, streams.a) == cudaSuccess);
                if (waits) CHECK(cudaStreamWaitEvent(streams.b, made, 0) == cudaSuccess);
                launch(scale, {1, 64, 0, streams.b}, z.data(), y.data(), 5.0f);
                CHECK(cudaStreamSynchronize(streams.b) == cudaSuccess);
                bool right = z.get() == all(30);
                CHECK(cudaDeviceSynchronize() == cudaSuccess);
                return right;
            });
            CHECK((failed > 0) == !waits);
            CHECK(failed < seeds);  // some orders hide the fault
        }
}

TEST_CASE("an event stands for its last record before the wait") {
    for (bool early : {false, true}) {  // recorded before the work it should stand for
        CAPTURE(early);
        Clean clean;
        Streams streams;
        Event made;
        uint64_t failed = seeds_that_fail([&] {
            simt::DeviceArray<float> x(all(2)), y(n), z(n);
            if (early) CHECK(cudaEventRecord(made, streams.a) == cudaSuccess);
            launch(scale, {1, 64, 0, streams.a}, y.data(), x.data(), 3.0f);
            if (!early) CHECK(cudaEventRecord(made, streams.a) == cudaSuccess);
            CHECK(cudaStreamWaitEvent(streams.b, made, 0) == cudaSuccess);
            CHECK(cudaEventRecord(made, streams.b) == cudaSuccess);  // does not change the wait
            launch(scale, {1, 64, 0, streams.b}, z.data(), y.data(), 5.0f);
            CHECK(cudaStreamSynchronize(streams.b) == cudaSuccess);
            bool right = z.get() == all(30);
            CHECK(cudaDeviceSynchronize() == cudaSuccess);
            return right;
        });
        CHECK((failed > 0) == early);
    }
}

TEST_CASE("the default stream is ordered with blocking streams and with no others") {
    for (bool blocking : {false, true}) {
        CAPTURE(blocking);
        Clean clean;
        cudaStream_t stream;
        REQUIRE(cudaStreamCreateWithFlags(&stream, blocking ? cudaStreamDefault : cudaStreamNonBlocking) ==
                cudaSuccess);
        uint64_t failed = seeds_that_fail([&] {
            simt::DeviceArray<float> x(all(2)), y(n), z(n);
            launch(scale, {1, 64, 0, stream}, y.data(), x.data(), 3.0f);
            launch(scale, {1, 64, 0, nullptr}, y.data(), y.data(), 5.0f);
            launch(scale, {1, 64, 0, stream}, z.data(), y.data(), 7.0f);
            CHECK(cudaDeviceSynchronize() == cudaSuccess);
            return z.get() == all(210);
        });
        CHECK((failed > 0) == !blocking);
        CHECK(cudaStreamDestroy(stream) == cudaSuccess);
    }
}

TEST_CASE("queries of events tell of the work before, and polling ends") {
    Clean clean;
    Streams streams;
    Event made;
    CHECK(cudaEventQuery(made) == cudaSuccess);  // nothing recorded
    simt::options().lazy_streams = true;
    simt::DeviceArray<float> x(all(2)), y(n), z(n);
    for (int i = 0; i < 5; ++i) launch(scale, {1, 64, 0, streams.a}, y.data(), x.data(), 3.0f);
    CHECK(cudaEventRecord(made, streams.a) == cudaSuccess);
    launch(scale, {1, 64, 0, streams.b}, z.data(), x.data(), 3.0f);
    int polls = 1;
    while (cudaEventQuery(made) == cudaErrorNotReady) ++polls;
    CHECK(polls >= 6);  // five kernels and the record run one by one
    CHECK(y.get() == all(6));
    CHECK(cudaEventSynchronize(made) == cudaSuccess);
    CHECK(cudaStreamSynchronize(streams.b) == cudaSuccess);
    CHECK(cudaStreamQuery(streams.b) == cudaSuccess);
    CHECK(cudaGetLastError() == cudaErrorNotReady);
}

TEST_CASE("a pinned buffer that is filled again too early is found") {
    for (bool waits : {false, true}) {
        CAPTURE(waits);
        Clean clean;
        Streams streams;
        Event copied;
        Pinned buffer;
        uint64_t failed = seeds_that_fail([&] {
            simt::DeviceArray<float> x(n), y(n);
            buffer.fill(1);
            CHECK(cudaMemcpyAsync(x.data(), buffer.data, bytes, cudaMemcpyHostToDevice, streams.a) ==
                  cudaSuccess);
            CHECK(cudaEventRecord(copied, streams.a) == cudaSuccess);
            if (waits) CHECK(cudaEventSynchronize(copied) == cudaSuccess);
            buffer.fill(2);
            CHECK(cudaMemcpyAsync(y.data(), buffer.data, bytes, cudaMemcpyHostToDevice, streams.a) ==
                  cudaSuccess);
            CHECK(cudaStreamSynchronize(streams.a) == cudaSuccess);
            return x.get() == all(1) && y.get() == all(2);
        });
        CHECK((failed > 0) == !waits);
    }
}

TEST_CASE("pageable memory is read when the copy is submitted") {
    Clean clean;
    Streams streams;
    simt::options().lazy_streams = true;
    simt::DeviceArray<float> x(n);
    std::vector<float> host = all(1);
    CHECK(cudaMemcpyAsync(x.data(), host.data(), bytes, cudaMemcpyHostToDevice, streams.a) == cudaSuccess);
    host = all(2);
    CHECK(cudaStreamSynchronize(streams.a) == cudaSuccess);
    CHECK(x.get() == all(1));
}

TEST_CASE("a captured step runs at each launch of its graph and not before") {
    for (bool lazy : {false, true}) {
        CAPTURE(lazy);
        Clean clean;
        size_t living = simt::living_runtime_objects();
        {
            Streams streams;
            Pinned in, out;
            simt::options().lazy_streams = lazy;
            simt::DeviceArray<float> x(n), y(n);
            y.zero();
            in.fill(1);
            out.fill(0);
            REQUIRE(cudaStreamBeginCapture(streams.a, cudaStreamCaptureModeGlobal) == cudaSuccess);
            CHECK(status_of(streams.a) == cudaStreamCaptureStatusActive);
            CHECK(cudaMemcpyAsync(x.data(), in.data, bytes, cudaMemcpyHostToDevice, streams.a) ==
                  cudaSuccess);
            CHECK(cudaMemsetAsync(y.data(), 0, 4, streams.a) == cudaSuccess);
            launch(increase, {1, 64, 0, streams.a}, y.data());
            launch(scale, {1, 64, 0, streams.a}, x.data(), x.data(), 3.0f);
            CHECK(cudaMemcpyAsync(out.data, x.data(), bytes, cudaMemcpyDeviceToHost, streams.a) ==
                  cudaSuccess);
            cudaGraph_t graph = nullptr;
            REQUIRE(cudaStreamEndCapture(streams.a, &graph) == cudaSuccess);
            CHECK(status_of(streams.a) == cudaStreamCaptureStatusNone);
            CHECK(nodes_of(graph) == 5);
            cudaGraphExec_t exec = nullptr;
            REQUIRE(cudaGraphInstantiate(&exec, graph, 0) == cudaSuccess);
            CHECK(cudaGraphDestroy(graph) == cudaSuccess);
            CHECK(cudaDeviceSynchronize() == cudaSuccess);
            CHECK(y.get() == all(0));
            for (float value : {2.0f, 5.0f}) {
                in.fill(value);
                CHECK(cudaGraphLaunch(exec, streams.a) == cudaSuccess);
                CHECK(cudaStreamSynchronize(streams.a) == cudaSuccess);
                CHECK(out.all(3 * value));
            }
            std::vector<float> sums = all(2);
            sums[0] = 1;  // set to zero by each replay
            CHECK(y.get() == sums);
            CHECK(cudaGraphExecDestroy(exec) == cudaSuccess);
            CHECK(cudaGetLastError() == cudaSuccess);
        }
        CHECK(simt::living_runtime_objects() == living);
    }
}

TEST_CASE("a second stream joins a capture by events, and its missing wait is found in replays") {
    for (bool waits : {false, true}) {
        CAPTURE(waits);
        Clean clean;
        Streams streams;
        Event start, made, end;
        simt::DeviceArray<float> x(all(2)), y(n), z(n);
        REQUIRE(cudaStreamBeginCapture(streams.a, cudaStreamCaptureModeGlobal) == cudaSuccess);
        CHECK(cudaEventRecord(start, streams.a) == cudaSuccess);
        CHECK(cudaStreamWaitEvent(streams.b, start, 0) == cudaSuccess);
        CHECK(status_of(streams.b) == cudaStreamCaptureStatusActive);
        launch(scale, {1, 64, 0, streams.a}, y.data(), x.data(), 3.0f);
        CHECK(cudaEventRecord(made, streams.a) == cudaSuccess);
        if (waits) CHECK(cudaStreamWaitEvent(streams.b, made, 0) == cudaSuccess);
        launch(scale, {1, 64, 0, streams.b}, z.data(), y.data(), 5.0f);
        CHECK(cudaEventRecord(end, streams.b) == cudaSuccess);
        CHECK(cudaStreamWaitEvent(streams.a, end, 0) == cudaSuccess);
        cudaGraph_t graph = nullptr;
        REQUIRE(cudaStreamEndCapture(streams.a, &graph) == cudaSuccess);
        CHECK(status_of(streams.b) == cudaStreamCaptureStatusNone);
        cudaGraphExec_t exec = nullptr;
        REQUIRE(cudaGraphInstantiate(&exec, graph, 0) == cudaSuccess);
        uint64_t failed = seeds_that_fail([&] {
            y.zero();
            CHECK(cudaGraphLaunch(exec, streams.a) == cudaSuccess);
            CHECK(cudaStreamSynchronize(streams.a) == cudaSuccess);
            return z.get() == all(30);
        });
        CHECK((failed > 0) == !waits);
        CHECK(cudaGraphExecDestroy(exec) == cudaSuccess);
        CHECK(cudaGraphDestroy(graph) == cudaSuccess);
    }
}

TEST_CASE("two launches of one graph never overlap, whatever their streams") {
    Clean clean;
    Streams streams;
    simt::DeviceArray<float> x(all(2)), y(n);
    REQUIRE(cudaStreamBeginCapture(streams.a, cudaStreamCaptureModeGlobal) == cudaSuccess);
    CHECK(cudaMemcpyAsync(y.data(), x.data(), bytes, cudaMemcpyDeviceToDevice, streams.a) == cudaSuccess);
    launch(scale, {1, 64, 0, streams.a}, y.data(), y.data(), 3.0f);
    cudaGraph_t graph = nullptr;
    REQUIRE(cudaStreamEndCapture(streams.a, &graph) == cudaSuccess);
    cudaGraphExec_t once = nullptr, again = nullptr;
    REQUIRE(cudaGraphInstantiate(&once, graph, 0) == cudaSuccess);
    REQUIRE(cudaGraphInstantiate(&again, graph, 0) == cudaSuccess);
    for (bool same : {false, true}) {  // two graphs of one capture do: 9 times x, when the copies come first
        CAPTURE(same);
        uint64_t failed = seeds_that_fail([&] {
            CHECK(cudaGraphLaunch(once, streams.a) == cudaSuccess);
            CHECK(cudaGraphLaunch(same ? once : again, streams.b) == cudaSuccess);
            CHECK(cudaDeviceSynchronize() == cudaSuccess);
            return y.get() == all(6);
        });
        CHECK((failed > 0) == !same);
    }
    CHECK(cudaGraphExecDestroy(once) == cudaSuccess);
    CHECK(cudaGraphExecDestroy(again) == cudaSuccess);
    CHECK(cudaGraphDestroy(graph) == cudaSuccess);
}

TEST_CASE("a capture whose other stream does not come back is refused") {
    Clean clean;
    Streams streams;
    Event start;
    simt::DeviceArray<float> x(all(2));
    REQUIRE(cudaStreamBeginCapture(streams.a, cudaStreamCaptureModeGlobal) == cudaSuccess);
    CHECK(cudaEventRecord(start, streams.a) == cudaSuccess);
    CHECK(cudaStreamWaitEvent(streams.b, start, 0) == cudaSuccess);
    launch(increase, {1, 64, 0, streams.b}, x.data());
    cudaGraph_t graph = nullptr;
    CHECK(cudaStreamEndCapture(streams.a, &graph) == cudaErrorStreamCaptureUnjoined);
    CHECK(graph == nullptr);
    CHECK(x.get() == all(2));
}

TEST_CASE("calls that a capture does not survive fail and end it") {
    Clean clean;
    Streams streams;
    Event event, before;
    Pinned buffer;
    simt::DeviceArray<float> x(all(2));
    std::vector<float> host = all(1);
    void* memory = nullptr;
    CHECK(cudaEventRecord(before, streams.b) == cudaSuccess);
    struct Case {
        std::string name;
        cudaError_t expected;
        std::function<cudaError_t()> call;
    };
    const std::vector<Case> cases{
        {"cudaStreamSynchronize", cudaErrorStreamCaptureUnsupported,
         [&] { return cudaStreamSynchronize(streams.a); }},
        {"cudaDeviceSynchronize", cudaErrorStreamCaptureUnsupported, [&] { return cudaDeviceSynchronize(); }},
        {"cudaMalloc", cudaErrorStreamCaptureUnsupported, [&] { return cudaMalloc(&memory, 64); }},
        {"cudaFree", cudaErrorStreamCaptureUnsupported, [&] { return cudaFree(x.data()); }},
        {"cudaMallocHost", cudaErrorStreamCaptureUnsupported, [&] { return cudaMallocHost(&memory, 64); }},
        {"cudaMemcpy", cudaErrorStreamCaptureUnsupported,
         [&] { return cudaMemcpy(x.data(), host.data(), bytes, cudaMemcpyHostToDevice); }},
        {"a pageable copy to the device", cudaErrorStreamCaptureUnsupported,
         [&] { return cudaMemcpyAsync(x.data(), host.data(), bytes, cudaMemcpyHostToDevice, streams.a); }},
        {"a pageable copy to the host", cudaErrorStreamCaptureUnsupported,
         [&] { return cudaMemcpyAsync(host.data(), x.data(), bytes, cudaMemcpyDeviceToHost, streams.a); }},
        {"a wait for work outside of the capture", cudaErrorStreamCaptureIsolation,
         [&] { return cudaStreamWaitEvent(streams.a, before, 0); }},
        {"a query of any event", cudaErrorStreamCaptureUnsupported, [&] { return cudaEventQuery(before); }},
        {"a query of a captured event", cudaErrorCapturedEvent,
         [&] {
             CHECK(cudaEventRecord(event, streams.a) == cudaSuccess);
             return cudaEventQuery(event);
         }},
    };
    for (const Case& one : cases) {
        CAPTURE(one.name);
        REQUIRE(cudaStreamBeginCapture(streams.a, cudaStreamCaptureModeGlobal) == cudaSuccess);
        launch(increase, {1, 64, 0, streams.a}, x.data());
        CHECK(cudaGetLastError() == cudaSuccess);
        CHECK(one.call() == one.expected);
        CHECK(cudaGetLastError() == one.expected);
        CHECK(status_of(streams.a) == cudaStreamCaptureStatusInvalidated);
        launch(increase, {1, 64, 0, streams.a}, x.data());
        CHECK(cudaGetLastError() == cudaErrorStreamCaptureInvalidated);
        cudaGraph_t graph = nullptr;
        CHECK(cudaStreamEndCapture(streams.a, &graph) == cudaErrorStreamCaptureInvalidated);
        CHECK(cudaGetLastError() == cudaErrorStreamCaptureInvalidated);
        CHECK(graph == nullptr);
    }
    CHECK(x.get() == all(2));  // nothing of the captures has run
    CHECK(host == all(1));
}

TEST_CASE("work in the default stream breaks the capture of a blocking stream") {
    Clean clean;
    cudaStream_t stream;
    REQUIRE(cudaStreamCreate(&stream) == cudaSuccess);
    simt::DeviceArray<float> x(all(2));
    REQUIRE(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed) == cudaSuccess);
    void* memory = nullptr;
    CHECK(cudaMalloc(&memory, 64) == cudaSuccess);  // touches no stream: a relaxed capture survives
    CHECK(status_of(stream) == cudaStreamCaptureStatusActive);
    launch(increase, {1, 64, 0, nullptr}, x.data());
    CHECK(cudaGetLastError() == cudaErrorStreamCaptureImplicit);
    cudaGraph_t graph = nullptr;
    CHECK(cudaStreamEndCapture(stream, &graph) == cudaErrorStreamCaptureInvalidated);
    CHECK(cudaFree(memory) == cudaSuccess);
    CHECK(cudaStreamDestroy(stream) == cudaSuccess);
    CHECK(cudaStreamSynchronize(stream) == cudaErrorInvalidResourceHandle);
    CHECK(x.get() == all(2));
}

// A small backend that gives everything back on its way out, whatever fails.
namespace {

bool small_run(std::vector<float>& result) {
    struct Held {
        cudaStream_t stream = nullptr;
        cudaEvent_t event = nullptr;
        float *device = nullptr, *pinned = nullptr;
        cudaGraph_t graph = nullptr;
        cudaGraphExec_t exec = nullptr;
        ~Held() {
            if (exec) cudaGraphExecDestroy(exec);
            if (graph) cudaGraphDestroy(graph);
            if (device) cudaFree(device);
            if (pinned) cudaFreeHost(pinned);
            if (event) cudaEventDestroy(event);
            if (stream) cudaStreamDestroy(stream);
        }
    } h;
    auto bad = [](cudaError_t error) { return error != cudaSuccess; };
    if (bad(cudaStreamCreateWithFlags(&h.stream, cudaStreamNonBlocking))) return false;
    if (bad(cudaEventCreate(&h.event)) || bad(cudaMalloc(&h.device, bytes))) return false;
    if (bad(cudaMallocHost(&h.pinned, bytes)) || bad(cudaMemsetAsync(h.device, 0, bytes, h.stream)))
        return false;
    if (bad(cudaStreamBeginCapture(h.stream, cudaStreamCaptureModeGlobal))) return false;
    launch(increase, {1, 64, 0, h.stream}, h.device);
    bool launched = !bad(cudaGetLastError());
    if (bad(cudaStreamEndCapture(h.stream, &h.graph)) || !launched) return false;
    if (bad(cudaGraphInstantiate(&h.exec, h.graph, 0))) return false;
    for (int i = 0; i < 2; ++i)
        if (bad(cudaGraphLaunch(h.exec, h.stream))) return false;
    if (bad(cudaMemcpyAsync(h.pinned, h.device, bytes, cudaMemcpyDeviceToHost, h.stream))) return false;
    if (bad(cudaEventRecord(h.event, h.stream)) || bad(cudaEventSynchronize(h.event))) return false;
    result.assign(h.pinned, h.pinned + n);
    return true;
}

}  // namespace

TEST_CASE("each call of a run can be made to fail, and nothing stays behind") {
    Clean clean;
    size_t living = simt::living_runtime_objects();
    std::vector<float> result;
    uint64_t before = simt::runtime_calls();
    REQUIRE(small_run(result));
    uint64_t calls = simt::runtime_calls() - before;
    CHECK(result == all(2));
    CHECK(calls == 20);
    uint64_t worked = 0;
    for (uint64_t k = 1; k <= calls; ++k) {
        simt::options().fail_call = k;
        result.clear();
        bool done = small_run(result);
        worked += done;
        CHECK(simt::options().fail_call == 0);
        CAPTURE(simt::failed_call());
        const std::string call = simt::failed_call();
        cudaError_t expected = cudaErrorUnknown;
        if (call == "cudaMalloc" || call == "cudaHostAlloc") expected = cudaErrorMemoryAllocation;
        if (call == "cudaLaunchKernelExC") expected = cudaSuccess;  // the run has read it
        CHECK(cudaGetLastError() == expected);
        CHECK(simt::living_runtime_objects() == living);
    }
    CHECK(worked == 6);  // those that give back fail after the work is done
}
