// Counter-based random numbers: Philox 4x32 with 10 rounds.
//
// A number is a pure function of (seed, purpose, index): a checkpoint needs no generator state, and
// the order of the calls does not matter.
#pragma once

#include <array>
#include <cstdint>

namespace longreach {

// What a stream of numbers is for. Part of the key: two purposes never share numbers. Values are on-disk
// facts (they decide the data order and the initial weights of existing runs): append, never renumber.
enum class Purpose : uint32_t {
    init = 1,
    shuffle = 2,
    synth = 3,
    bootstrap = 4,
    test = 5,
    bench = 6,
    theory = 7,
    task = 8,
    probe = 9,
    sampling = 10,
    mixture = 11,
    positions = 12,
};

using Philox4 = std::array<uint32_t, 4>;

// One Philox block: 128 random bits for a 64-bit key and a 128-bit counter.
Philox4 philox(std::array<uint32_t, 2> key, Philox4 counter);

class Rng {
  public:
    // `stream` separates independent uses under one purpose (a tensor's index, an epoch, a document).
    Rng(uint64_t seed, Purpose purpose, uint32_t stream = 0);

    uint64_t bits(uint64_t index) const;               // 64 uniform bits
    double uniform(uint64_t index) const;              // [0, 1), 53 bits
    double normal(uint64_t index) const;               // N(0, 1), Box-Muller on this index's own 128 bits
    uint64_t below(uint64_t index, uint64_t n) const;  // [0, n), n >= 1; bias below 2^-64 * n

  private:
    std::array<uint32_t, 2> key_;
    uint32_t purpose_, stream_;
};

// A pseudo-random permutation of [0, n) evaluated point-wise: a four-round Feistel network over the next even
// power of two with cycle walking, so position -> element needs no table.
class Permutation {
  public:
    Permutation(uint64_t n, uint64_t seed, uint32_t stream);
    uint64_t operator()(uint64_t position) const;
    uint64_t size() const { return n_; }

  private:
    uint64_t n_;
    int half_bits_;
    Rng rng_;
};

}  // namespace longreach
