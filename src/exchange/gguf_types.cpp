#include "exchange/gguf_types.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include <fmt/format.h>

#include "base/error.h"
#include "base/text.h"
#include "exchange/weights.h"

namespace longreach::exchange {

namespace {

uint16_t u16_at(const uint8_t* at) {
    return static_cast<uint16_t>(at[0] | at[1] << 8);
}

float half_at(const uint8_t* at) {
    return half_value(u16_at(at));
}

void decode_f32(const uint8_t* block, float* out) {
    std::memcpy(out, block, sizeof *out);
}

void decode_f16(const uint8_t* block, float* out) {
    *out = half_at(block);
}

void decode_bf16(const uint8_t* block, float* out) {
    *out = std::bit_cast<float>(uint32_t{u16_at(block)} << 16);
}

// d | 16 bytes: element i in the low half of byte i, element 16 + i in the high half.
void decode_q4_0(const uint8_t* block, float* out) {
    const float d = half_at(block);
    for (int i = 0; i < 16; ++i) {
        out[i] = d * static_cast<float>((block[2 + i] & 15) - 8);
        out[16 + i] = d * static_cast<float>((block[2 + i] >> 4) - 8);
    }
}

// d | m | the same 16 bytes.
void decode_q4_1(const uint8_t* block, float* out) {
    const float d = half_at(block), m = half_at(block + 2);
    for (int i = 0; i < 16; ++i) {
        out[i] = d * static_cast<float>(block[4 + i] & 15) + m;
        out[16 + i] = d * static_cast<float>(block[4 + i] >> 4) + m;
    }
}

// A fifth bit for each of 32 elements, in four bytes.
int fifth_bit(const uint8_t* bits, int element) {
    return (bits[element / 8] >> (element % 8) & 1) << 4;
}

// d | fifth bits | 16 bytes.
void decode_q5_0(const uint8_t* block, float* out) {
    const float d = half_at(block);
    for (int i = 0; i < 16; ++i) {
        out[i] = d * static_cast<float>(((block[6 + i] & 15) | fifth_bit(block + 2, i)) - 16);
        out[16 + i] = d * static_cast<float>(((block[6 + i] >> 4) | fifth_bit(block + 2, 16 + i)) - 16);
    }
}

// d | m | fifth bits | 16 bytes.
void decode_q5_1(const uint8_t* block, float* out) {
    const float d = half_at(block), m = half_at(block + 2);
    for (int i = 0; i < 16; ++i) {
        out[i] = d * static_cast<float>((block[8 + i] & 15) | fifth_bit(block + 4, i)) + m;
        out[16 + i] = d * static_cast<float>((block[8 + i] >> 4) | fifth_bit(block + 4, 16 + i)) + m;
    }
}

// d | 32 signed bytes.
void decode_q8_0(const uint8_t* block, float* out) {
    const float d = half_at(block);
    for (int i = 0; i < 32; ++i) out[i] = d * static_cast<float>(static_cast<int8_t>(block[2 + i]));
}

// Scale and offset of the part `j` of eight, six bits each, in twelve bytes.
struct Part {
    int scale, offset;
};
Part part_of(const uint8_t* packed, int j) {
    if (j < 4) return {packed[j] & 63, packed[j + 4] & 63};
    return {(packed[j + 4] & 15) | (packed[j - 4] >> 6) << 4, (packed[j + 4] >> 4) | (packed[j] >> 6) << 4};
}

// d | m | scales and offsets | 128 bytes: those of 32 g to 32 g + 31 hold the parts 2 g and 2 g + 1. With `high`, Q5_K: bit j of
// byte i there is the fifth bit of element i of the part j.
void decode_parts(const uint8_t* block, const uint8_t* high, const uint8_t* quants, float* out) {
    const float d = half_at(block), m = half_at(block + 2);
    for (int j = 0; j < 8; ++j) {
        const Part part = part_of(block + 4, j);
        const float scale = d * static_cast<float>(part.scale), offset = m * static_cast<float>(part.offset);
        for (int i = 0; i < 32; ++i) {
            const int byte = quants[32 * (j / 2) + i], low = j % 2 == 0 ? byte & 15 : byte >> 4;
            const int fifth = high == nullptr ? 0 : (high[i] >> j & 1) << 4;
            out[32 * j + i] = scale * static_cast<float>(low | fifth) - offset;
        }
    }
}

void decode_q4_k(const uint8_t* block, float* out) {
    decode_parts(block, nullptr, block + 16, out);
}

void decode_q5_k(const uint8_t* block, float* out) {
    decode_parts(block, block + 16, block + 48, out);
}

// 128 bytes of low halves | 64 bytes of pairs of bits above them | 16 signed scales | d. Each half of the block has four runs of
// 32 elements, whose low halves share 64 bytes and whose pairs of bits share 32.
void decode_q6_k(const uint8_t* block, float* out) {
    const float d = half_at(block + 208);
    for (int half = 0; half < 2; ++half)
        for (int run = 0; run < 4; ++run)
            for (int i = 0; i < 32; ++i) {
                const int byte = block[64 * half + 32 * (run % 2) + i], low = run < 2 ? byte & 15 : byte >> 4;
                const int high = block[128 + 32 * half + i] >> (2 * run) & 3;
                const auto scale = static_cast<int8_t>(block[192 + 8 * half + 2 * run + i / 16]);
                out[128 * half + 32 * run + i] =
                    d * static_cast<float>(scale) * static_cast<float>((low | high << 4) - 32);
            }
}

constexpr std::array block_types{
    BlockType{0, "F32", 1, 4, decode_f32},        BlockType{1, "F16", 1, 2, decode_f16},
    BlockType{2, "Q4_0", 32, 18, decode_q4_0},    BlockType{3, "Q4_1", 32, 20, decode_q4_1},
    BlockType{6, "Q5_0", 32, 22, decode_q5_0},    BlockType{7, "Q5_1", 32, 24, decode_q5_1},
    BlockType{8, "Q8_0", 32, 34, decode_q8_0},    BlockType{12, "Q4_K", 256, 144, decode_q4_k},
    BlockType{13, "Q5_K", 256, 176, decode_q5_k}, BlockType{14, "Q6_K", 256, 210, decode_q6_k},
    BlockType{30, "BF16", 1, 2, decode_bf16},
};

struct OtherType {
    uint32_t id;
    const char* name;
};
constexpr OtherType other_types[] = {
    {9, "Q8_1"},     {10, "Q2_K"},  {11, "Q3_K"},   {15, "Q8_K"},  {16, "IQ2_XXS"}, {17, "IQ2_XS"},
    {18, "IQ3_XXS"}, {19, "IQ1_S"}, {20, "IQ4_NL"}, {21, "IQ3_S"}, {22, "IQ2_S"},   {23, "IQ4_XS"},
    {24, "I8"},      {25, "I16"},   {26, "I32"},    {27, "I64"},   {28, "F64"},     {29, "IQ1_M"},
    {34, "TQ1_0"},   {35, "TQ2_0"}, {39, "MXFP4"},
};

}  // namespace

const BlockType* find_block_type(uint32_t id) {
    const auto row =
        std::find_if(block_types.begin(), block_types.end(), [&](const BlockType& t) { return t.id == id; });
    return row == block_types.end() ? nullptr : &*row;
}

std::string name_of_type(uint32_t id) {
    if (const BlockType* type = find_block_type(id)) return type->name;
    for (const OtherType& other : other_types)
        if (other.id == id) return other.name;
    return fmt::format("{}", id);
}

std::string read_types() {
    std::vector<std::string> names;
    for (const BlockType& type : block_types) names.emplace_back(type.name);
    return join(names, ", ");
}

std::vector<float> decode_blocks(const BlockType& type, std::span<const uint8_t> blocks) {
    check(blocks.size() % type.bytes == 0, "{} bytes are not whole blocks of {}", blocks.size(), type.name);
    const size_t count = blocks.size() / type.bytes, elements = static_cast<size_t>(type.elements);
    std::vector<float> values(count * elements);
    for (size_t b = 0; b < count; ++b) type.decode(&blocks[b * type.bytes], &values[b * elements]);
    return values;
}

}  // namespace longreach::exchange
