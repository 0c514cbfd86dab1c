// Runs the PTX of a kernel: one block after the other, warps in lockstep where their lanes agree, the lanes that are
// furthest behind first. Values are those of the manual; approximations (ex2, rcp, ...) are rounded exactly.
// It reports reads of registers and memory that nobody wrote, addresses that are nobody's, and lanes that do not meet.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "ptx/module.h"

namespace longreach::ptx {

struct Fault : std::runtime_error {
    using std::runtime_error::runtime_error;
};

struct Extent {
    unsigned x = 1, y = 1, z = 1;
};

// What a CUtensorMap says: a tensor of rank 3 and the box of it that a copy moves.
struct Tensor {
    uint64_t base = 0;
    int64_t size[3] = {};     // elements
    uint64_t stride[2] = {};  // bytes along dimensions 1 and 2
    int64_t box[3] = {};
    size_t element = 2;     // bytes
    bool swizzled = false;  // by 128 bytes
};

// The memory of the device, owned by the caller. Both throw Fault where [address, address + bytes) is not theirs.
struct Memory {
    std::function<void(uintptr_t address, size_t bytes)> read;     // every byte has to hold a value
    std::function<void(uintptr_t address, size_t bytes)> written;  // every byte holds a value from now on
    std::function<Tensor(const std::byte* map)> tensor = {};  // of the 128 bytes that only the driver knows
};

struct Launch {
    Extent grid, block;
    size_t shared_bytes = 0;            // asked for by the launch
    std::vector<std::byte> parameters;  // laid out as Entry::parameters says
    bool copies_land_late = true;       // copies and products: at the wait; otherwise at once
    bool last_first = false;            // order of blocks and of warps
};

class Program;  // a kernel made ready to run; refers to module and entry
// Throws Fault at an instruction that is not known.
std::shared_ptr<const Program> prepare(const Module& module, const Entry& entry);

// Throws Fault with file, line, instruction, block and thread at the first fault.
void run(const Program& program, const Launch& launch, const Memory& memory);

}  // namespace longreach::ptx
