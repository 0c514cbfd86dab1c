#include "ranks/token.h"

#include <sys/random.h>

#include <bit>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <vector>

#include "base/error.h"

namespace longreach::ranks {

namespace {

// The first 32 bits of the fractional parts of the square or cube roots of the first primes,
// as the standard defines its constants. Integer Newton steps: root = floor(prime^(1/power) * 2^32),
// whose low 32 bits are the fraction.
template <size_t count>
std::array<uint32_t, count> root_fractions(int power) {
    std::array<uint32_t, count> fractions{};
    size_t found = 0;
    for (uint32_t candidate = 2; found < count; ++candidate) {
        bool prime = true;
        for (uint32_t d = 2; d * d <= candidate; ++d) prime = prime && candidate % d != 0;
        if (!prime) continue;
        // The largest r with (r / 2^32)^power <= candidate, that is r^power <= candidate << (32 * power).
        // r stays below 2^37 (the 64th prime is 311, its cube root 6.8; the 8th is 19, its square root 4.4),
        // so r^3 needs 111 bits and candidate << 96 needs 105.
        unsigned __int128 low = 0;
        for (int bit = 36; bit >= 0; --bit) {
            const unsigned __int128 r = low | (static_cast<unsigned __int128>(1) << bit);
            const unsigned __int128 value = power == 2 ? r * r : r * r * r;
            if (value <= static_cast<unsigned __int128>(candidate) << (32 * power)) low = r;
        }
        fractions[found++] = static_cast<uint32_t>(low);
    }
    return fractions;
}

void compress(std::array<uint32_t, 8>& state, const unsigned char* block) {
    static const std::array<uint32_t, 64> constants = root_fractions<64>(3);
    std::array<uint32_t, 64> w{};
    for (size_t i = 0; i < 16; ++i)
        w[i] = static_cast<uint32_t>(block[4 * i]) << 24 | static_cast<uint32_t>(block[4 * i + 1]) << 16 |
               static_cast<uint32_t>(block[4 * i + 2]) << 8 | block[4 * i + 3];
    for (size_t i = 16; i < 64; ++i) {
        const uint32_t a = w[i - 15], b = w[i - 2];
        w[i] = w[i - 16] + (std::rotr(a, 7) ^ std::rotr(a, 18) ^ (a >> 3)) + w[i - 7] +
               (std::rotr(b, 17) ^ std::rotr(b, 19) ^ (b >> 10));
    }
    auto [a, b, c, d, e, f, g, h] = state;
    for (size_t i = 0; i < 64; ++i) {
        const uint32_t choice = (e & f) ^ (~e & g), majority = (a & b) ^ (a & c) ^ (b & c);
        const uint32_t t1 =
            h + (std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25)) + choice + constants[i] + w[i];
        const uint32_t t2 = (std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22)) + majority;
        h = g, g = f, f = e, e = d + t1, d = c, c = b, b = a, a = t1 + t2;
    }
    const std::array<uint32_t, 8> mixed = {a, b, c, d, e, f, g, h};
    for (size_t i = 0; i < 8; ++i) state[i] += mixed[i];
}

}  // namespace

Digest sha256(std::string_view message) {
    std::string padded(message);
    padded.push_back('\x80');
    padded.append((64 + 56 - padded.size() % 64) % 64, '\0');
    const uint64_t bits = static_cast<uint64_t>(message.size()) * 8;
    for (int shift = 56; shift >= 0; shift -= 8) padded.push_back(static_cast<char>(bits >> shift));
    static const std::array<uint32_t, 8> start = root_fractions<8>(2);
    std::array<uint32_t, 8> state = start;
    for (size_t at = 0; at < padded.size(); at += 64)
        compress(state, reinterpret_cast<const unsigned char*>(padded.data()) + at);
    Digest digest;
    for (size_t i = 0; i < digest.size(); ++i)
        digest[i] = static_cast<unsigned char>(state[i / 4] >> (24 - 8 * (i % 4)));
    return digest;
}

Digest hmac_sha256(std::string_view key, std::string_view message) {
    std::string block(64, '\0');
    const Digest hashed = key.size() > block.size() ? sha256(key) : Digest{};
    const std::string_view used = key.size() > block.size() ? bytes_of(hashed) : key;
    used.copy(block.data(), used.size());
    std::string inner = block, outer = block;
    for (char& c : inner) c = static_cast<char>(c ^ 0x36);
    for (char& c : outer) c = static_cast<char>(c ^ 0x5c);
    inner += message;
    outer += bytes_of(sha256(inner));
    return sha256(outer);
}

bool same_digest(std::string_view a, std::string_view b) {
    if (a.size() != b.size()) return false;
    unsigned char difference = 0;
    for (size_t i = 0; i < a.size(); ++i) difference = static_cast<unsigned char>(difference | (a[i] ^ b[i]));
    return difference == 0;
}

std::string_view bytes_of(const Digest& digest) {
    return {reinterpret_cast<const char*>(digest.data()), digest.size()};
}

std::string random_bytes(size_t count) {
    std::string bytes(count, '\0');
    for (size_t at = 0; at < count;) {
        const ssize_t got = ::getrandom(bytes.data() + at, count - at, 0);
        if (got < 0 && errno == EINTR) continue;
        require(got > 0, ExitCode::internal, "no random numbers: {}", std::strerror(errno));
        at += static_cast<size_t>(got);
    }
    return bytes;
}

std::string hexadecimal(std::string_view bytes) {
    std::string text;
    for (const char c : bytes) text += fmt::format("{:02x}", static_cast<unsigned char>(c));
    return text;
}

std::string random_token() {
    return hexadecimal(random_bytes(32));
}

}  // namespace longreach::ranks
