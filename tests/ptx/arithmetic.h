// What PTX's arithmetic instructions compute, one lane at a time, on the bits of registers.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "ptx/module.h"

namespace longreach::ptx {

enum class Word : uint8_t {
    none,
    add,
    sub,
    mul,
    div,
    rem,
    mad,
    fma,
    neg,
    abs,
    min,
    max,
    sqrt,
    rsqrt,
    rcp,
    ex2,
    lg2,
    sin,
    cos,
    tanh,
    copysign,
    and_,
    or_,
    xor_,
    not_,
    shl,
    shr,
    popc,
    clz,
    brev
};
enum class Part : uint8_t { low, high, wide };  // of an integer product

struct Compute {
    // Bits of the inputs in the order written; returns those of the result.
    uint64_t (*run)(const Compute& how, const uint64_t* in) = nullptr;  // null: not known
    size_t inputs = 0;
    Type type = Type::none, from = Type::none;  // from: what cvt converts
    bool ftz = false, saturate = false, nan = false;
    bool selects = false;    // the third input chooses one of the others
    char rounding = 'n';     // of cvt: n, z, m (down), p (up); upper case: to an integral value
    Word word = Word::none;  // of families that share a function
    Part part = Part::low;
    std::string_view detail = "";  // lt, ge, ...
    std::string_view join = "";    // of setp with a third input: and, or, xor
};

Compute compute_of(const std::vector<std::string>& words);
Compute comparison_of(const std::vector<std::string>& words);  // of setp

constexpr bool is_float(Type type) {
    return type >= Type::bf16;
}
constexpr bool is_signed(Type type) {
    return type >= Type::s8 && type <= Type::s64;
}

inline uint64_t low_bits(uint64_t v, int bits) {
    return bits >= 64 ? v : v & ((uint64_t{1} << bits) - 1);
}
inline uint64_t sign_extended(uint64_t v, int bits) {
    return static_cast<uint64_t>(static_cast<int64_t>(v << (64 - bits)) >> (64 - bits));
}
inline float f32_value(uint64_t bits) {
    return std::bit_cast<float>(static_cast<uint32_t>(bits));
}
inline uint64_t f32_bits(float x) {
    return std::bit_cast<uint32_t>(x);
}
inline float bf16_value(uint64_t bits) {
    return f32_value(low_bits(bits, 16) << 16);
}

}  // namespace longreach::ptx
