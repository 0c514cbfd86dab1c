#include "base/hash.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>

namespace longreach {

namespace {

static_assert(std::endian::native == std::endian::little,
              "every file format here is read and written in place");

constexpr uint64_t prime1 = 0x9E3779B185EBCA87u, prime2 = 0xC2B2AE3D27D4EB4Fu, prime3 = 0x165667B19E3779F9u,
                   prime4 = 0x85EBCA77C2B2AE63u, prime5 = 0x27D4EB2F165667C5u;
constexpr size_t stripe = 32;  // bytes

uint64_t load64(const unsigned char* p) {
    uint64_t value;
    std::memcpy(&value, p, sizeof value);
    return value;
}

uint32_t load32(const unsigned char* p) {
    uint32_t value;
    std::memcpy(&value, p, sizeof value);
    return value;
}

uint64_t round(uint64_t lane, uint64_t input) {
    return std::rotl(lane + input * prime2, 31) * prime1;
}

uint64_t merge(uint64_t hash, uint64_t lane) {
    return (hash ^ round(0, lane)) * prime1 + prime4;
}

// The remainder of each byte value.
constexpr std::array<uint32_t, 256> crc32c_table = [] {
    std::array<uint32_t, 256> table{};
    for (uint32_t byte = 0; byte < 256; ++byte) {
        uint32_t rest = byte;
        for (int bit = 0; bit < 8; ++bit) rest = rest >> 1 ^ ((rest & 1) != 0 ? 0x82F63B78u : 0u);
        table[byte] = rest;
    }
    return table;
}();

void consume(std::array<uint64_t, 4>& lanes, const unsigned char* p) {
    for (size_t i = 0; i < 4; ++i) lanes[i] = round(lanes[i], load64(p + 8 * i));
}

}  // namespace

Xxh64::Xxh64(uint64_t seed)
    : lanes_{seed + prime1 + prime2, seed + prime2, seed, seed - prime1}, pending_{}, seed_(seed) {}

void Xxh64::update(const void* data, size_t size) {
    if (size == 0) return;
    const auto* p = static_cast<const unsigned char*>(data);
    const size_t held = static_cast<size_t>(total_ % stripe);
    total_ += size;
    if (held != 0) {
        const size_t take = std::min(size, stripe - held);
        std::memcpy(pending_.data() + held, p, take);
        if (held + take < stripe) return;
        consume(lanes_, pending_.data());
        p += take;
        size -= take;
    }
    for (; size >= stripe; p += stripe, size -= stripe) consume(lanes_, p);
    std::memcpy(pending_.data(), p, size);
}

uint64_t Xxh64::digest() const {
    uint64_t hash;
    if (total_ >= stripe) {
        hash = std::rotl(lanes_[0], 1) + std::rotl(lanes_[1], 7) + std::rotl(lanes_[2], 12) +
               std::rotl(lanes_[3], 18);
        for (const uint64_t lane : lanes_) hash = merge(hash, lane);
    } else {
        hash = seed_ + prime5;
    }
    hash += total_;
    const unsigned char* p = pending_.data();
    size_t left = static_cast<size_t>(total_ % stripe);
    for (; left >= 8; p += 8, left -= 8) hash = std::rotl(hash ^ round(0, load64(p)), 27) * prime1 + prime4;
    if (left >= 4) {
        hash = std::rotl(hash ^ (load32(p) * prime1), 23) * prime2 + prime3;
        p += 4;
        left -= 4;
    }
    for (; left > 0; ++p, --left) hash = std::rotl(hash ^ (*p * prime5), 11) * prime1;
    hash = (hash ^ (hash >> 33)) * prime2;
    hash = (hash ^ (hash >> 29)) * prime3;
    return hash ^ (hash >> 32);
}

uint64_t xxh64(const void* data, size_t size, uint64_t seed) {
    Xxh64 hash(seed);
    hash.update(data, size);
    return hash.digest();
}

uint64_t xxh64(std::string_view text, uint64_t seed) {
    return xxh64(text.data(), text.size(), seed);
}

std::string format_hash64(uint64_t hash) {
    return fmt::format("{:016x}", hash);
}

bool parse_hash64(std::string_view text, uint64_t& hash) {
    if (text.size() != 16) return false;
    uint64_t value = 0;
    for (const char c : text) {
        if (c >= '0' && c <= '9') {
            value = value << 4 | static_cast<uint64_t>(c - '0');
        } else if (c >= 'a' && c <= 'f') {
            value = value << 4 | static_cast<uint64_t>(c - 'a' + 10);
        } else {
            return false;
        }
    }
    hash = value;
    return true;
}

uint32_t crc32c(std::string_view bytes) {
    uint32_t rest = ~uint32_t{0};
    for (const char c : bytes) rest = rest >> 8 ^ crc32c_table[(rest ^ static_cast<unsigned char>(c)) & 255];
    return ~rest;
}

}  // namespace longreach
