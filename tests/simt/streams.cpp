#include "simt/streams.h"

#include <algorithm>
#include <map>
#include <string>
#include <thread>
#include <utility>

#include "simt/kernel_calls.h"
#include "simt/simt.h"

namespace longreach::simt {

namespace {

// The first two are the default stream and cudaStreamPerThread.
std::vector<std::unique_ptr<Stream>>& streams() {
    static auto* all = [] {
        auto* made = new std::vector<std::unique_ptr<Stream>>;
        for (int i = 0; i < 2; ++i) made->push_back(std::make_unique<Stream>());
        return made;
    }();
    return *all;
}

uint64_t call_count = 0;
std::string failed_name;

// Numbers that start anew with every seed.
uint64_t random_number() {
    static uint64_t seed = 0, count = 0;
    if (seed != options().seed) {
        seed = options().seed;
        count = 0;
    }
    uint64_t x = seed * 0x9e3779b97f4a7c15u + ++count * 0xbf58476d1ce4e5b9u;  // splitmix64
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

bool can_run(const Stream& stream) {
    if (stream.queue.empty() || stream.queue.front().never_ends) return false;
    const auto& after = stream.queue.front().after;
    return std::all_of(after.begin(), after.end(), [](const MarkerPointer& m) { return m->done; });
}

bool stuck(const Stream& stream) {
    return !stream.queue.empty() && stream.queue.front().never_ends;
}

// Streams that can go on, in the order of their creation.
std::vector<Stream*> candidates() {
    std::vector<Stream*> able;
    for (const auto& one : streams())
        if (can_run(*one)) able.push_back(one.get());
    return able;
}

// The work a stream's head waits for, or its waits wait for: somebody there can run, as a marker belongs to
// work that was submitted earlier.
Stream* needed_for(Stream* stream) {
    while (!can_run(*stream) && !stuck(*stream))
        for (const MarkerPointer& marker : stream->queue.front().after)
            if (!marker->done) {
                stream = marker->stream;
                break;
            }
    return stream;
}

// By seed: anyone, and at every submission perhaps; what is needed only (or, if everything is, the newest
// stream first); what is needed last.
Stream* choose(Stream* wanted) {
    std::vector<Stream*> able = candidates();
    if (able.empty()) return nullptr;
    Stream* any = able[random_number() % able.size()];
    switch (options().seed % 3) {
        case 1:
            return wanted != nullptr && !stuck(*needed_for(wanted)) ? needed_for(wanted) : able.back();
        case 2:
            if (wanted == nullptr) return able.front();
            able.erase(std::remove(able.begin(), able.end(), wanted), able.end());
            return able.empty() ? wanted : able[random_number() % able.size()];
        default:
            return any;
    }
}

void drop_ended_streams() {
    auto& all = streams();
    all.erase(std::remove_if(all.begin(), all.end(),
                             [](const auto& one) { return one->destroyed && one->queue.empty(); }),
              all.end());
}

void run_head(Stream& stream) {
    Work work = std::move(stream.queue.front());
    stream.queue.pop_front();
    try {
        if (work.run) work.run();
    } catch (...) {
        // A fault ends what was queued, as it ends a context on a GPU.
        work.marker->done = true;
        for (const auto& one : streams()) {
            for (const Work& left : one->queue) left.marker->done = true;
            one->queue.clear();
        }
        throw;
    }
    work.marker->done = true;
    work.marker->at = std::chrono::steady_clock::now();
}

bool capturing(const Stream& stream) {
    return stream.capture != nullptr;
}

void add_to(std::vector<size_t>& frontier, const std::vector<size_t>& more) {
    for (size_t node : more)
        if (std::find(frontier.begin(), frontier.end(), node) == frontier.end()) frontier.push_back(node);
}

std::map<const void*, size_t>& opt_ins() {
    static std::map<const void*, size_t> all;
    return all;
}

}  // namespace

Stream& default_stream() {
    return *streams()[0];
}

Stream* find_stream(cudaStream_t handle) {
    if (handle == nullptr || handle == cudaStreamLegacy) return streams()[0].get();
    if (handle == cudaStreamPerThread) return streams()[1].get();
    for (const auto& one : streams())
        if (reinterpret_cast<cudaStream_t>(one.get()) == handle) return one->destroyed ? nullptr : one.get();
    return nullptr;
}

cudaStream_t make_stream(bool blocking) {
    drop_ended_streams();
    streams().push_back(std::make_unique<Stream>());
    streams().back()->blocking = blocking;
    return reinterpret_cast<cudaStream_t>(streams().back().get());
}

bool destroy_stream(cudaStream_t handle) {
    Stream* stream = find_stream(handle);
    if (stream == nullptr || stream == streams()[0].get() || stream == streams()[1].get()) return false;
    if (capturing(*stream)) stream->capture->valid = false;
    stream->capture = nullptr;
    stream->destroyed = true;
    return true;
}

size_t living_streams() {
    auto count =
        std::count_if(streams().begin(), streams().end(), [](const auto& s) { return !s->destroyed; });
    return static_cast<size_t>(count) - 2;
}

cudaError_t enqueue(Stream& stream, std::function<void()> run, std::vector<MarkerPointer> after,
                    bool never_ends) {
    if (capturing(stream)) {
        Capture& capture = *stream.capture;
        if (!capture.valid) return cudaErrorStreamCaptureInvalidated;
        capture.graph.nodes.push_back({std::move(run), stream.frontier});
        stream.frontier = {capture.graph.nodes.size() - 1};
        return cudaSuccess;
    }
    bool is_default = &stream == &default_stream();
    if (is_default) {
        // The wait for a stream that is being recorded cannot be had.
        bool recorded = false;
        for (const auto& one : streams())
            if (one->blocking && capturing(*one)) {
                one->capture->valid = false;
                recorded = true;
            }
        if (recorded) return cudaErrorStreamCaptureImplicit;
    }
    Work work{std::move(run), std::move(after), std::make_shared<Marker>(), never_ends};
    work.marker->stream = &stream;
    if (stream.blocking)
        for (const auto& one : streams())
            if ((is_default ? one->blocking : one.get() == &default_stream()) && one.get() != &stream &&
                one->last && !one->last->done)
                work.after.push_back(one->last);
    stream.last = work.marker;
    stream.queue.push_back(std::move(work));
    if (!options().lazy_streams)
        synchronise();
    else if (options().seed % 3 == 0 && random_number() % 2 == 0)
        one_step();  // the device may begin before the host goes on
    return cudaSuccess;
}

cudaError_t record(Event& event, Stream& stream) {
    if (capturing(stream)) {
        if (!stream.capture->valid) return cudaErrorStreamCaptureInvalidated;
        event.capture = stream.capture;
        event.frontier = stream.frontier;
        return cudaSuccess;
    }
    cudaError_t error = enqueue(stream, nullptr);
    if (error != cudaSuccess) return error;
    event.capture = nullptr;
    event.marker = stream.last;
    return cudaSuccess;
}

cudaError_t wait(Stream& stream, const Event& event) {
    if (event.capture) {  // a stream joins the capture by waiting for its events
        if (!event.capture->valid) return cudaErrorStreamCaptureInvalidated;
        if ((capturing(stream) && stream.capture != event.capture) || &stream == &default_stream()) {
            event.capture->valid = false;
            if (capturing(stream)) stream.capture->valid = false;
            return cudaErrorStreamCaptureIsolation;
        }
        stream.capture = event.capture;
        add_to(stream.frontier, event.frontier);
        return cudaSuccess;
    }
    if (!event.marker) return cudaSuccess;  // never recorded: nothing to wait for
    if (capturing(stream)) {                // a graph cannot wait for work outside of it
        stream.capture->valid = false;
        return cudaErrorStreamCaptureIsolation;
    }
    return enqueue(stream, nullptr, {event.marker});
}

// Node by node, in the order of recording or, with lazy streams, any other that the edges allow.
cudaError_t launch_graph(GraphExec& exec, Stream& stream) {
    const auto& nodes = exec.graph.nodes;
    if (!capturing(stream) && exec.last) {
        cudaError_t error = enqueue(stream, nullptr, {exec.last});
        if (error != cudaSuccess) return error;
    }
    std::vector<bool> gone(nodes.size());
    for (size_t count = 0; count < nodes.size(); ++count) {
        std::vector<size_t> able;
        for (size_t n = 0; n < nodes.size(); ++n)
            if (!gone[n] && std::all_of(nodes[n].after.begin(), nodes[n].after.end(),
                                        [&](size_t before) { return gone[before]; }))
                able.push_back(n);
        size_t next = able[options().lazy_streams ? random_number() % able.size() : 0];
        gone[next] = true;
        cudaError_t error = enqueue(stream, nodes[next].run);
        if (error != cudaSuccess) return error;
    }
    if (!capturing(stream)) exec.last = stream.last;
    return cudaSuccess;
}

// As on a device whose kernel never ends: whoever waits waits for ever.
static void run_or_wait(Stream* next) {
    while (next == nullptr) std::this_thread::sleep_for(std::chrono::seconds(1));
    run_head(*next);
}

void finish(const MarkerPointer& marker) {
    while (!marker->done) run_or_wait(choose(marker->stream));
}

void finish(Stream& stream) {
    while (!stream.queue.empty()) run_or_wait(choose(&stream));
}

void one_step() {
    if (Stream* next = choose(nullptr)) run_head(*next);
}

void synchronise() {
    while (Stream* next = choose(nullptr)) run_head(*next);
}

void submit(std::function<void()> work, CUstream_st* handle) {
    Stream* stream = find_stream(handle);
    if (stream == nullptr) {
        set_last_error(cudaErrorInvalidResourceHandle);
        return;
    }
    static uint64_t counted_for = 0, launches = 0;
    if (counted_for != options().hang_at) {
        counted_for = options().hang_at;
        launches = 0;
    }
    const bool never_ends = counted_for != 0 && !capturing(*stream) && ++launches == counted_for;
    set_last_error(enqueue(*stream, std::move(work), {}, never_ends));
}

// A launch after a failed one would work on what that did not write: it does nothing until the error is read.
bool launch_fails() {
    static bool failed = false;
    failed = failed && error_unread();
    if (!injected_failure("cudaLaunchKernelExC")) return failed;
    set_last_error(cudaErrorUnknown);
    failed = true;
    return true;
}

cudaError_t begin_capture(Stream& stream, cudaStreamCaptureMode mode) {
    if (&stream == &default_stream()) return cudaErrorStreamCaptureUnsupported;
    if (capturing(stream)) return cudaErrorIllegalState;
    stream.capture = std::make_shared<Capture>();
    stream.capture->origin = &stream;
    stream.capture->mode = mode;
    stream.frontier.clear();
    return cudaSuccess;
}

cudaError_t end_capture(Stream& stream, Graph& graph) {
    if (!capturing(stream)) return cudaErrorIllegalState;
    std::shared_ptr<Capture> capture = stream.capture;
    if (capture->origin != &stream) {
        capture->valid = false;
        return cudaErrorStreamCaptureUnmatched;
    }
    // What the origin's end comes after: nodes depend on earlier ones only.
    std::vector<bool> joined(capture->graph.nodes.size());
    for (size_t node : stream.frontier) joined[node] = true;
    for (size_t n = joined.size(); n-- > 0;)
        if (joined[n])
            for (size_t before : capture->graph.nodes[n].after) joined[before] = true;
    for (const auto& one : streams())
        if (one->capture == capture) {
            one->capture = nullptr;
            one->frontier.clear();
        }
    if (!capture->valid) return cudaErrorStreamCaptureInvalidated;
    capture->valid = false;  // its events can be joined no more
    if (std::find(joined.begin(), joined.end(), false) != joined.end()) return cudaErrorStreamCaptureUnjoined;
    graph = std::move(capture->graph);
    return cudaSuccess;
}

bool breaks_capture(bool also_relaxed) {
    bool any = false;
    for (const auto& one : streams())
        if (capturing(*one) && (also_relaxed || one->capture->mode != cudaStreamCaptureModeRelaxed)) {
            one->capture->valid = false;
            any = true;
        }
    return any;
}

bool injected_failure(const char* name) {
    ++call_count;
    uint64_t& left = options().fail_call;
    if (left == 0 || --left != 0) return false;
    failed_name = name;
    return true;
}

uint64_t runtime_calls() {
    return call_count;
}

std::string failed_call() {
    return failed_name;
}

bool shared_memory_opt_in(const void* kernel, size_t bytes) {
    if (bytes > shared_memory_of(options().architecture)) return false;
    opt_ins()[kernel] = bytes;
    return true;
}

size_t shared_memory_allowed(const void* kernel) {
    auto at = opt_ins().find(kernel);
    return std::max(shared_memory_unasked, at == opt_ins().end() ? size_t{0} : at->second);
}

}  // namespace longreach::simt
