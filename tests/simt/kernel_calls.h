// What device.h and kernels/cuda/ptx.cuh need of the harness.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <source_location>

#include "simt/async.h"
#include "simt/findings.h"

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
};
// Runs it at once; throws Failure if there are findings and the options say so.
void run_launch(const LaunchShape& shape);
// Runs work now, or at the next synchronisation if streams are lazy.
void submit(std::function<void()> work);
void synchronise();

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
