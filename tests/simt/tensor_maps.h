// What the harness's cuTensorMapEncodeTiled writes into the 128 opaque bytes of a CUtensorMap.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace longreach::simt {

struct TensorMap {
    uint64_t signature = 0;
    uintptr_t base = 0;
    std::array<uint64_t, 3> size{};    // elements: columns, rows, sequences
    std::array<uint64_t, 3> stride{};  // bytes from one element to the next, along each
    std::array<uint32_t, 3> box{};     // elements
    uint32_t element = 0;              // bytes
    uint32_t swizzled = 0;             // 128-byte swizzle, else none

    size_t row_bytes() const { return size_t{box[0]} * element; }
    size_t box_bytes() const { return row_bytes() * box[1] * box[2]; }
};
static_assert(sizeof(TensorMap) <= 128);

// Null unless cuTensorMapEncodeTiled filled these bytes.
const TensorMap* opened(const void* map);

// Where the 16-byte chunk lies that would be at this address without the 128-byte swizzle.
constexpr uintptr_t swizzled_128(uintptr_t address) {
    return address ^ (address >> 3 & 0x70);
}

}  // namespace longreach::simt
