// Streams, events, captures and graphs of the emulated runtime. Internal to the harness: runtime_api.cpp
// wraps it in the runtime's names, tests see simt.h.
//
// Work of one stream runs in order. A stream's next work may run when the markers it waits for are done;
// which of several streams goes on is decided by Options::seed. Work in the default stream waits for what was
// submitted before to every blocking stream, and the other way round.
#pragma once

#include <cuda_runtime_api.h>

#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

namespace longreach::simt {

struct Stream;

// The end of one piece of work.
struct Marker {
    bool done = false;
    Stream* stream = nullptr;  // valid until done
    std::chrono::steady_clock::time_point at{};
};
using MarkerPointer = std::shared_ptr<Marker>;

struct Work {
    std::function<void()> run;  // may be empty
    std::vector<MarkerPointer> after;
    MarkerPointer marker;
    bool never_ends = false;
};

struct Graph {
    struct Node {
        std::function<void()> run;
        std::vector<size_t> after;  // indices of earlier nodes
    };
    std::vector<Node> nodes;
};

struct Capture {
    Stream* origin = nullptr;
    cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;
    bool valid = true;
    Graph graph;
};

struct Stream {
    bool blocking = true;  // ordered with the default stream
    bool destroyed = false;
    std::deque<Work> queue;
    MarkerPointer last;                // of the work submitted last
    std::shared_ptr<Capture> capture;  // while it is recorded
    std::vector<size_t> frontier;      // nodes that the next one comes after
};

struct Event {
    bool timed = true;
    MarkerPointer marker;  // of the last record outside of a capture
    std::shared_ptr<Capture> capture;
    std::vector<size_t> frontier;
};

struct GraphExec {
    Graph graph;
    MarkerPointer last;  // of the last launch: launches of one graph never overlap
};

Stream& default_stream();
Stream* find_stream(cudaStream_t handle);  // null: no living stream
cudaStream_t make_stream(bool blocking);
bool destroy_stream(cudaStream_t handle);  // what is queued still runs; false: no living stream of its own
size_t living_streams();                   // without those that are always there

// Runs it at once or later, or records it. Not a call of its own for fault injection.
cudaError_t enqueue(Stream& stream, std::function<void()> run, std::vector<MarkerPointer> after = {},
                    bool never_ends = false);
cudaError_t record(Event& event, Stream& stream);
cudaError_t wait(Stream& stream, const Event& event);
cudaError_t launch_graph(GraphExec& exec, Stream& stream);

void finish(const MarkerPointer& marker);  // runs what it takes until it is done
void finish(Stream& stream);
void one_step();  // lets one piece of work run, if there is any

cudaError_t begin_capture(Stream& stream, cudaStreamCaptureMode mode);
cudaError_t end_capture(Stream& stream, Graph& graph);
// A call that no capture survives; true if there was one. Relaxed captures survive calls
// that touch no stream.
bool breaks_capture(bool also_relaxed);

// Counts a call of the runtime; true if it is the one that Options::fail_call lets fail.
bool injected_failure(const char* name);
cudaError_t set_last_error(cudaError_t error);  // returns it
bool error_unread();                            // whether cudaGetLastError() has something to say

// First of all in a function of the runtime: an error that a test injects.
cudaError_t enter(const char* name, cudaError_t error = cudaErrorUnknown);
#define ENTER(...) \
    if (cudaError_t injected = ::longreach::simt::enter(__func__ __VA_OPT__(, ) __VA_ARGS__)) return injected

bool shared_memory_opt_in(const void* kernel, size_t bytes);  // false: beyond the architecture

}  // namespace longreach::simt
