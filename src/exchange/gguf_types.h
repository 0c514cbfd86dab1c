// The element types of a GGUF file that become f32 here. Weights of a quantised type are stored in blocks: a row of the tensor is a
// whole number of them, and each has scales of its own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace longreach::exchange {

struct BlockType {
    uint32_t id;       // in the file
    const char* name;  // "Q4_K"
    int64_t elements;  // of a block
    uint64_t bytes;    // of a block
    // Writes the elements of one block. Products of a scale and a quantised value have at most 23 bits, so that a value is
    // rounded once, whether or not the compiler fuses its operations.
    void (*decode)(const uint8_t* block, float* out);
};

// Null: the type is not read, or not known.
const BlockType* find_block_type(uint32_t id);
// "IQ4_XS", or the number of an unknown type.
std::string name_of_type(uint32_t id);
// The types that are read, for messages.
std::string read_types();

// blocks: whole blocks of the type.
std::vector<float> decode_blocks(const BlockType& type, std::span<const uint8_t> blocks);

}  // namespace longreach::exchange
