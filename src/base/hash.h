// XXH64: the 64-bit checksum of every file this program writes.
//
// It detects accidents (a flipped bit, a torn or truncated file, two mixed files) at memory
// speed. It does not protect against forgery. The digests are those of the published XXH64, so any other
// implementation checks our files.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace longreach {

class Xxh64 {
  public:
    explicit Xxh64(uint64_t seed = 0);
    // Any split of the same bytes into updates gives the same digest.
    void update(const void* data, size_t size);
    uint64_t digest() const;                  // of everything so far; more may follow
    uint64_t size() const { return total_; }  // bytes so far

  private:
    std::array<uint64_t, 4> lanes_;
    std::array<unsigned char, 32> pending_;  // total_ % 32 bytes that do not yet fill a stripe
    uint64_t seed_, total_ = 0;
};

uint64_t xxh64(const void* data, size_t size, uint64_t seed = 0);
uint64_t xxh64(std::string_view text, uint64_t seed = 0);

// 16 lower-case hexadecimal digits, most significant first, and back. parse_hash64 accepts nothing else.
std::string format_hash64(uint64_t hash);
bool parse_hash64(std::string_view text, uint64_t& hash);

// CRC-32C (Castagnoli; reflected polynomial 0x82F63B78, all ones before and after): only where an
// external format requires it.
uint32_t crc32c(std::string_view bytes);

}  // namespace longreach
