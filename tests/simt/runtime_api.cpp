// The runtime's functions that host code around the kernels calls, for one emulated device. What streams and
// captures mean stands in streams.cpp; here are the names, the checks of their arguments and the memory.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "simt/machine.h"
#include "simt/memory.h"
#include "simt/streams.h"

namespace longreach::simt {

namespace {

cudaError_t last_error = cudaSuccess;
std::map<uintptr_t, size_t> pinned;  // bytes of host memory that copies reach without staging
std::set<const void*> events, graphs, graph_execs;

bool on_device(const void* at) {
    return device_memory().contains(reinterpret_cast<uintptr_t>(at));
}

bool is_pinned(const void* at, size_t bytes) {
    auto address = reinterpret_cast<uintptr_t>(at);
    auto after = pinned.upper_bound(address);
    if (after == pinned.begin()) return false;
    const auto& [base, size] = *std::prev(after);
    return address + bytes <= base + size;
}

// Rows of `width` bytes, `pitch` bytes from one to the next.
struct Rows {
    void* to;
    size_t to_pitch;
    const void* from;
    size_t from_pitch, width, height;

    size_t from_bytes() const { return height == 0 ? 0 : (height - 1) * from_pitch + width; }
    size_t to_bytes() const { return height == 0 ? 0 : (height - 1) * to_pitch + width; }
    bool pageable() const {
        return (!on_device(from) && !is_pinned(from, from_bytes())) ||
               (!on_device(to) && !is_pinned(to, to_bytes()));
    }
    void run() const {
        for (size_t row = 0; row < height; ++row) {
            void* into = static_cast<char*>(to) + row * to_pitch;
            const void* of = static_cast<const char*>(from) + row * from_pitch;
            if (on_device(into) && on_device(of))
                copy_on_device(into, of, width);
            else if (on_device(into))
                copy_to_device(into, of, width);
            else if (on_device(of))
                copy_to_host(into, of, width);
            else
                std::memcpy(into, of, width);
        }
    }
    // The arguments, with the direction the caller names against the one the pointers have.
    cudaError_t check(cudaMemcpyKind kind) const {
        if (width > to_pitch || width > from_pitch) return cudaErrorInvalidPitchValue;
        bool to_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
        bool from_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
        if (kind != cudaMemcpyDefault && (on_device(to) != to_device || on_device(from) != from_device))
            return cudaErrorInvalidMemcpyDirection;
        return cudaSuccess;
    }
};

Rows line(void* to, const void* from, size_t bytes) {
    return {to, bytes, from, bytes, bytes, 1};
}

cudaError_t copy_later(const Rows& rows, cudaMemcpyKind kind, cudaStream_t handle) {
    if (cudaError_t error = rows.check(kind)) return set_last_error(error);
    Stream* stream = find_stream(handle);
    if (stream == nullptr) return set_last_error(cudaErrorInvalidResourceHandle);
    if (rows.width == 0 || rows.height == 0) return cudaSuccess;
    if (rows.pageable() && stream->capture) {
        stream->capture->valid = false;
        return set_last_error(cudaErrorStreamCaptureUnsupported);
    }
    if (!options().lazy_streams || on_device(rows.from) || is_pinned(rows.from, rows.from_bytes()))
        return set_last_error(enqueue(*stream, [rows] { rows.run(); }));
    // Pageable memory is staged: its bytes are those of now.
    std::vector<char> staged(rows.width * rows.height);
    Rows in = rows, out = rows;
    in.to = staged.data();
    in.to_pitch = out.from_pitch = rows.width;
    in.run();
    return set_last_error(enqueue(*stream, [out, staged = std::move(staged)]() mutable {
        out.from = staged.data();
        out.run();
    }));
}

cudaError_t set_later(void* to, size_t pitch, int value, size_t width, size_t height, Stream* stream) {
    if (stream == nullptr) return set_last_error(cudaErrorInvalidResourceHandle);
    if (width > pitch) return set_last_error(cudaErrorInvalidPitchValue);
    if (width > 0 && height > 0 && !on_device(to)) return set_last_error(cudaErrorInvalidValue);
    return set_last_error(enqueue(*stream, [=] {
        for (size_t row = 0; row < height; ++row)
            set_device(static_cast<char*>(to) + row * pitch, value, width);
    }));
}

template <class T>
T* living(const std::set<const void*>& of, const void* handle) {
    return of.count(handle) != 0 ? static_cast<T*>(const_cast<void*>(handle)) : nullptr;
}

}  // namespace

cudaError_t set_last_error(cudaError_t error) {
    if (error != cudaSuccess) last_error = error;
    return error;
}

bool error_unread() {
    return last_error != cudaSuccess;
}

cudaError_t enter(const char* name, cudaError_t error) {
    return injected_failure(name) ? set_last_error(error) : cudaSuccess;
}

size_t living_runtime_objects() {
    return pinned.size() + events.size() + graphs.size() + graph_execs.size() + living_streams() +
           device_memory().living();
}

}  // namespace longreach::simt

using namespace longreach::simt;

// Functions that give something back do so first: their errors are those of earlier work.
#define LEAVE() return enter(__func__)
#define NOT_DURING_CAPTURE(also_relaxed) \
    if (breaks_capture(also_relaxed)) return set_last_error(cudaErrorStreamCaptureUnsupported)

extern "C" {

// --- the device
cudaError_t cudaFuncSetAttribute(const void* kernel, cudaFuncAttribute attribute, int value) {
    ENTER();
    if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize) return cudaSuccess;
    bool fits = value >= 0 && shared_memory_opt_in(kernel, static_cast<size_t>(value));
    return set_last_error(fits ? cudaSuccess : cudaErrorInvalidValue);
}
cudaError_t cudaDeviceSynchronize() {
    ENTER();
    NOT_DURING_CAPTURE(true);
    synchronise();
    return cudaSuccess;
}

// --- memory
cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
    ENTER();
    *total = options().device_bytes;
    *free = *total - std::min(*total, device_memory().in_use());
    return cudaSuccess;
}
cudaError_t cudaMalloc(void** memory, size_t bytes) {
    ENTER(cudaErrorMemoryAllocation);
    NOT_DURING_CAPTURE(false);
    if (bytes > options().device_bytes || device_memory().in_use() > options().device_bytes - bytes)
        return set_last_error(cudaErrorMemoryAllocation);
    *memory = device_malloc(bytes);
    return cudaSuccess;
}
cudaError_t cudaFree(void* memory) {
    NOT_DURING_CAPTURE(false);
    synchronise();
    if (!device_memory().free(memory)) return set_last_error(cudaErrorInvalidValue);
    LEAVE();
}
cudaError_t cudaHostAlloc(void** memory, size_t bytes, unsigned) {
    ENTER(cudaErrorMemoryAllocation);
    NOT_DURING_CAPTURE(false);
    *memory = nullptr;
    if (bytes == 0) return cudaSuccess;
    *memory = std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
    if (*memory == nullptr) return set_last_error(cudaErrorMemoryAllocation);
    fill_poison(*memory, bytes, poison_device);
    pinned[reinterpret_cast<uintptr_t>(*memory)] = bytes;
    return cudaSuccess;
}
cudaError_t cudaMallocHost(void** memory, size_t bytes) {
    return cudaHostAlloc(memory, bytes, cudaHostAllocDefault);
}
cudaError_t cudaFreeHost(void* memory) {
    NOT_DURING_CAPTURE(false);
    synchronise();
    if (memory != nullptr) {
        if (pinned.erase(reinterpret_cast<uintptr_t>(memory)) == 0)
            return set_last_error(cudaErrorInvalidValue);
        std::free(memory);
    }
    LEAVE();
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
    ENTER();
    return copy_later(line(to, from, bytes), kind, stream);
}
cudaError_t cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width,
                              size_t height, cudaMemcpyKind kind, cudaStream_t stream) {
    ENTER();
    return copy_later({to, to_pitch, from, from_pitch, width, height}, kind, stream);
}
cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
    ENTER();
    NOT_DURING_CAPTURE(false);
    if (cudaError_t error = copy_later(line(to, from, bytes), kind, nullptr)) return error;
    finish(default_stream());
    return cudaSuccess;
}
cudaError_t cudaMemcpy2D(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width,
                         size_t height, cudaMemcpyKind kind) {
    ENTER();
    NOT_DURING_CAPTURE(false);
    if (cudaError_t error = copy_later({to, to_pitch, from, from_pitch, width, height}, kind, nullptr))
        return error;
    finish(default_stream());
    return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t stream) {
    ENTER();
    return set_later(to, bytes, value, bytes, 1, find_stream(stream));
}
cudaError_t cudaMemset2DAsync(void* to, size_t pitch, int value, size_t width, size_t height,
                              cudaStream_t stream) {
    ENTER();
    return set_later(to, pitch, value, width, height, find_stream(stream));
}
cudaError_t cudaMemset(void* to, int value, size_t bytes) {
    ENTER();
    NOT_DURING_CAPTURE(false);
    return set_later(to, bytes, value, bytes, 1, &default_stream());
}

// --- streams and events
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
    ENTER();
    *stream = make_stream((flags & cudaStreamNonBlocking) == 0);
    return cudaSuccess;
}
cudaError_t cudaStreamCreate(cudaStream_t* stream) {
    return cudaStreamCreateWithFlags(stream, cudaStreamDefault);
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int) {
    return cudaStreamCreateWithFlags(stream, flags);
}
cudaError_t cudaStreamDestroy(cudaStream_t handle) {
    if (!destroy_stream(handle)) return set_last_error(cudaErrorInvalidResourceHandle);
    LEAVE();
}
cudaError_t cudaStreamSynchronize(cudaStream_t handle) {
    ENTER();
    Stream* stream = find_stream(handle);
    if (stream == nullptr) return set_last_error(cudaErrorInvalidResourceHandle);
    if (stream->capture || stream == &default_stream()) {
        NOT_DURING_CAPTURE(true);
    }
    finish(*stream);
    return cudaSuccess;
}
cudaError_t cudaStreamQuery(cudaStream_t handle) {
    ENTER();
    Stream* stream = find_stream(handle);
    if (stream == nullptr) return set_last_error(cudaErrorInvalidResourceHandle);
    if (stream->capture || stream == &default_stream()) {
        NOT_DURING_CAPTURE(true);
    }
    one_step();
    return set_last_error(stream->queue.empty() ? cudaSuccess : cudaErrorNotReady);
}
cudaError_t cudaLaunchHostFunc(cudaStream_t handle, cudaHostFn_t function, void* data) {
    ENTER();
    Stream* stream = find_stream(handle);
    if (stream == nullptr) return set_last_error(cudaErrorInvalidResourceHandle);
    return set_last_error(enqueue(*stream, [=] { function(data); }));
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* handle, unsigned flags) {
    ENTER();
    auto* event = new Event;
    event->timed = (flags & cudaEventDisableTiming) == 0;
    events.insert(event);
    *handle = reinterpret_cast<cudaEvent_t>(event);
    return cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t* event) {
    return cudaEventCreateWithFlags(event, cudaEventDefault);
}
cudaError_t cudaEventDestroy(cudaEvent_t handle) {
    if (events.erase(handle) == 0) return set_last_error(cudaErrorInvalidResourceHandle);
    delete reinterpret_cast<Event*>(handle);
    LEAVE();
}
cudaError_t cudaEventRecord(cudaEvent_t handle, cudaStream_t in) {
    ENTER();
    auto* event = living<Event>(events, handle);
    Stream* stream = find_stream(in);
    if (event == nullptr || stream == nullptr) return set_last_error(cudaErrorInvalidResourceHandle);
    return set_last_error(record(*event, *stream));
}
cudaError_t cudaStreamWaitEvent(cudaStream_t in, cudaEvent_t handle, unsigned) {
    ENTER();
    auto* event = living<Event>(events, handle);
    Stream* stream = find_stream(in);
    if (event == nullptr || stream == nullptr) return set_last_error(cudaErrorInvalidResourceHandle);
    return set_last_error(wait(*stream, *event));
}
cudaError_t cudaEventSynchronize(cudaEvent_t handle) {
    ENTER();
    auto* event = living<Event>(events, handle);
    if (event == nullptr) return set_last_error(cudaErrorInvalidResourceHandle);
    if (event->capture) {
        event->capture->valid = false;
        return set_last_error(cudaErrorCapturedEvent);
    }
    if (event->marker) finish(event->marker);
    return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t handle) {
    ENTER();
    auto* event = living<Event>(events, handle);
    if (event == nullptr) return set_last_error(cudaErrorInvalidResourceHandle);
    if (event->capture) {
        event->capture->valid = false;
        return set_last_error(cudaErrorCapturedEvent);
    }
    NOT_DURING_CAPTURE(false);
    one_step();
    return set_last_error(!event->marker || event->marker->done ? cudaSuccess : cudaErrorNotReady);
}
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t from, cudaEvent_t to) {
    ENTER();
    auto *start = living<Event>(events, from), *end = living<Event>(events, to);
    if (start == nullptr || end == nullptr || !start->timed || !end->timed || !start->marker || !end->marker)
        return set_last_error(cudaErrorInvalidResourceHandle);
    if (!start->marker->done || !end->marker->done) return set_last_error(cudaErrorNotReady);
    *milliseconds = std::chrono::duration<float, std::milli>(end->marker->at - start->marker->at).count();
    return cudaSuccess;
}

// --- captures and graphs
cudaError_t cudaStreamBeginCapture(cudaStream_t handle, cudaStreamCaptureMode mode) {
    ENTER();
    Stream* stream = find_stream(handle);
    if (stream == nullptr) return set_last_error(cudaErrorInvalidResourceHandle);
    return set_last_error(begin_capture(*stream, mode));
}
cudaError_t cudaStreamIsCapturing(cudaStream_t handle, cudaStreamCaptureStatus* status) {
    ENTER();
    Stream* stream = find_stream(handle);
    if (stream == nullptr) return set_last_error(cudaErrorInvalidResourceHandle);
    *status = !stream->capture         ? cudaStreamCaptureStatusNone
              : stream->capture->valid ? cudaStreamCaptureStatusActive
                                       : cudaStreamCaptureStatusInvalidated;
    return cudaSuccess;
}
// An error that is injected here ends the capture all the same.
cudaError_t cudaStreamEndCapture(cudaStream_t handle, cudaGraph_t* graph) {
    *graph = nullptr;
    Stream* stream = find_stream(handle);
    if (stream == nullptr) return set_last_error(cudaErrorInvalidResourceHandle);
    Graph captured;
    cudaError_t error = end_capture(*stream, captured);
    ENTER();
    if (error != cudaSuccess) return set_last_error(error);
    auto* made = new Graph(std::move(captured));
    graphs.insert(made);
    *graph = reinterpret_cast<cudaGraph_t>(made);
    return cudaSuccess;
}
cudaError_t cudaGraphGetNodes(cudaGraph_t handle, cudaGraphNode_t* nodes, size_t* count) {
    ENTER();
    auto* graph = living<Graph>(graphs, handle);
    if (graph == nullptr) return set_last_error(cudaErrorInvalidValue);
    size_t all = graph->nodes.size();
    if (nodes != nullptr)
        for (size_t n = 0; n < *count; ++n)
            nodes[n] = n < all ? reinterpret_cast<cudaGraphNode_t>(&graph->nodes[n]) : nullptr;
    *count = nodes != nullptr ? std::min(all, *count) : all;
    return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t handle, unsigned long long) {
    ENTER();
    auto* graph = living<Graph>(graphs, handle);
    if (graph == nullptr) return set_last_error(cudaErrorInvalidValue);
    auto* made = new GraphExec{*graph, nullptr};
    graph_execs.insert(made);
    *exec = reinterpret_cast<cudaGraphExec_t>(made);
    return cudaSuccess;
}
cudaError_t cudaGraphUpload(cudaGraphExec_t handle, cudaStream_t) {
    ENTER();
    return set_last_error(graph_execs.count(handle) != 0 ? cudaSuccess : cudaErrorInvalidValue);
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t handle, cudaStream_t in) {
    ENTER();
    auto* exec = living<GraphExec>(graph_execs, handle);
    Stream* stream = find_stream(in);
    if (exec == nullptr) return set_last_error(cudaErrorInvalidValue);
    if (stream == nullptr) return set_last_error(cudaErrorInvalidResourceHandle);
    return set_last_error(launch_graph(*exec, *stream));
}
cudaError_t cudaGraphDestroy(cudaGraph_t handle) {
    if (graphs.erase(handle) == 0) return set_last_error(cudaErrorInvalidValue);
    delete reinterpret_cast<Graph*>(handle);
    LEAVE();
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t handle) {
    if (graph_execs.erase(handle) == 0) return set_last_error(cudaErrorInvalidValue);
    delete reinterpret_cast<GraphExec*>(handle);
    LEAVE();
}

// --- errors: never injected, they tell of the others
cudaError_t cudaGetLastError() {
    return std::exchange(last_error, cudaSuccess);
}
cudaError_t cudaPeekAtLastError() {
    return last_error;
}

}  // extern "C"
