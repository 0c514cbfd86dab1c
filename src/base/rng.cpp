#include "base/rng.h"

#include <cmath>
#include <numbers>

#include "base/error.h"

namespace longreach {

Philox4 philox(std::array<uint32_t, 2> key, Philox4 c) {
    constexpr uint32_t multiplier0 = 0xD2511F53u, multiplier1 = 0xCD9E8D57u;
    constexpr uint32_t weyl0 = 0x9E3779B9u, weyl1 = 0xBB67AE85u;
    for (int round = 0; round < 10; ++round) {
        const uint64_t p0 = uint64_t{multiplier0} * c[0];
        const uint64_t p1 = uint64_t{multiplier1} * c[2];
        c = {static_cast<uint32_t>(p1 >> 32) ^ c[1] ^ key[0], static_cast<uint32_t>(p1),
             static_cast<uint32_t>(p0 >> 32) ^ c[3] ^ key[1], static_cast<uint32_t>(p0)};
        key[0] += weyl0;
        key[1] += weyl1;
    }
    return c;
}

namespace {

Philox4 counter(uint64_t index, uint32_t purpose, uint32_t stream) {
    return {static_cast<uint32_t>(index), static_cast<uint32_t>(index >> 32), purpose, stream};
}

uint64_t low64(const Philox4& r) {
    return r[0] | (uint64_t{r[1]} << 32);
}
uint64_t high64(const Philox4& r) {
    return r[2] | (uint64_t{r[3]} << 32);
}
double to_unit(uint64_t bits) {
    return static_cast<double>(bits >> 11) * 0x1p-53;
}

}  // namespace

Rng::Rng(uint64_t seed, Purpose purpose, uint32_t stream)
    : key_{static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)},
      purpose_(static_cast<uint32_t>(purpose)),
      stream_(stream) {}

uint64_t Rng::bits(uint64_t index) const {
    return low64(philox(key_, counter(index, purpose_, stream_)));
}

double Rng::uniform(uint64_t index) const {
    return to_unit(bits(index));
}

double Rng::normal(uint64_t index) const {
    const Philox4 r = philox(key_, counter(index, purpose_, stream_));
    const double radius = std::sqrt(-2.0 * std::log(1.0 - to_unit(low64(r))));  // 1 - u is in (0, 1]
    return radius * std::cos(2.0 * std::numbers::pi * to_unit(high64(r)));
}

uint64_t Rng::below(uint64_t index, uint64_t n) const {
    return static_cast<uint64_t>((static_cast<unsigned __int128>(bits(index)) * n) >> 64);
}

Permutation::Permutation(uint64_t n, uint64_t seed, uint32_t stream)
    : n_(n), half_bits_(1), rng_(seed, Purpose::shuffle, stream) {
    check(n >= 1, "a permutation needs at least one element");
    while (half_bits_ < 32 && (uint64_t{1} << (2 * half_bits_)) < n) ++half_bits_;
}

uint64_t Permutation::operator()(uint64_t position) const {
    check(position < n_, "position {} of a permutation of {}", position, n_);
    const uint64_t mask = (uint64_t{1} << half_bits_) - 1;
    uint64_t x = position;
    do {  // the network permutes [0, 4^half_bits); walking the cycle stays inside [0, n)
          // and remains a bijection
        uint64_t left = x >> half_bits_, right = x & mask;
        for (uint64_t round = 0; round < 4; ++round) {
            const uint64_t mixed = left ^ (rng_.bits((round << 32) | right) & mask);
            left = right;
            right = mixed;
        }
        x = (left << half_bits_) | right;
    } while (x >= n_);
    return x;
}

}  // namespace longreach
