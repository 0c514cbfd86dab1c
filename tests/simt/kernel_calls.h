// What device.h and kernels/cuda/ptx.cuh need of the harness.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <source_location>
#include <vector>

#include "simt/async.h"
#include "simt/findings.h"
#include "simt/hopper.h"

struct CUstream_st;  // cudaStream_t points to it

namespace longreach::simt {

struct Extent {
    unsigned x = 1, y = 1, z = 1;
    size_t count() const { return size_t{x} * y * z; }
};

struct LaunchShape {
    Extent grid, block;
    size_t shared_bytes = 0;
    const void* kernel = nullptr;      // code, for KERNEL(threads)
    const void* parameters = nullptr;  // readable by the kernel, like the constant bank of a GPU
    size_t parameter_bytes = 0;
    void (*call)(const void* parameters) = nullptr;
    // The parameters one after the other, each at its alignment, as a kernel's parameter memory has them.
    void (*pack)(const void* parameters, std::vector<std::byte>& to) = nullptr;
};
// Runs it at once; throws Failure if there are findings and the options say so.
void run_launch(const LaunchShape& shape);
// Work of a stream, null being the default stream: runs now, later if streams are lazy, and never while the
// stream is captured; the graph has it then. An error shows in cudaGetLastError().
void submit(std::function<void()> work, CUstream_st* stream = nullptr);
void synchronise();  // runs what all streams have left
// Counts a launch as a call of the runtime; true if it is the one that Options::fail_call lets fail.
bool launch_fails();
// Bytes of shared memory that a launch of the kernel may have: more than these it has to ask for.
constexpr size_t shared_memory_unasked = 48 * 1024;
size_t shared_memory_allowed(const void* kernel);

enum class ShuffleKind { index, exclusive_or, down, up };
uint64_t shuffle(ShuffleKind kind, unsigned mask, uint64_t value, int argument, int width, const Place& at);
void sync_block(const Place& at);
void sync_warp(unsigned mask, const Place& at);
unsigned ballot(unsigned mask, bool predicate, const Place& at);
bool any(unsigned mask, bool predicate, const Place& at);
bool all(unsigned mask, bool predicate, const Place& at);
int atomic_add(int* at, int value, const Place& where);
void* shared_arena(size_t bytes, size_t alignment, const Place& place);

}  // namespace longreach::simt
