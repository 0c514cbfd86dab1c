#include "base/hash.h"

#include <doctest/doctest.h>

#include <string>
#include <vector>

using namespace longreach;

namespace {

// The input of the reference implementation's self-test: the top bytes of a multiplicative sequence.
std::vector<unsigned char> sanity_buffer(size_t size) {
    constexpr uint64_t prime32 = 2654435761u, prime64 = 11400714785074694797u;
    std::vector<unsigned char> buffer(size);
    uint64_t generator = prime32;
    for (unsigned char& byte : buffer) {
        byte = static_cast<unsigned char>(generator >> 56);
        generator *= prime64;
    }
    return buffer;
}

}  // namespace

TEST_CASE("xxh64 reproduces the published vectors") {
    CHECK(xxh64("") == 0xef46db3751d8e999u);
    CHECK(xxh64("a") == 0xd24ec4f1a98c6e5bu);
    CHECK(xxh64("abc") == 0x44bc2cf5ad770999u);
    CHECK(xxh64("Nobody inspects the spammish repetition") == 0xfbcea83c8a378bf1u);
    const auto buffer = sanity_buffer(222);
    constexpr uint64_t seed = 2654435761u;
    CHECK(xxh64(buffer.data(), 0, seed) == 0xac75fda2929b17efu);
    CHECK(xxh64(buffer.data(), 1, 0) == 0xe934a84adb052768u);
    CHECK(xxh64(buffer.data(), 1, seed) == 0x5014607643a9b4c3u);
    CHECK(xxh64(buffer.data(), 4, 0) == 0x9136a0dca57457eeu);
    CHECK(xxh64(buffer.data(), 14, 0) == 0x8282dcc4994e35c8u);
    CHECK(xxh64(buffer.data(), 14, seed) == 0xc3bd6bf63deb6df0u);
    CHECK(xxh64(buffer.data(), 222, 0) == 0xb641ae8cb691c174u);
    CHECK(xxh64(buffer.data(), 222, seed) == 0x20cb8ab7ae10c14au);
}

TEST_CASE("xxh64 does not depend on how the input is cut") {
    const auto buffer = sanity_buffer(200);
    for (size_t size = 0; size <= buffer.size(); ++size) {
        const uint64_t whole = xxh64(buffer.data(), size);
        for (size_t cut = 0; cut <= size; cut += 7) {
            Xxh64 hash;
            hash.update(buffer.data(), cut);
            hash.update(buffer.data() + cut, (size - cut) / 2);
            hash.update(buffer.data() + cut + (size - cut) / 2, size - cut - (size - cut) / 2);
            REQUIRE(hash.digest() == whole);
            REQUIRE(hash.size() == size);
        }
    }
}

TEST_CASE("hashes are printed as 16 lower-case digits and read back strictly") {
    uint64_t value = 0;
    CHECK(format_hash64(0x12ab) == "00000000000012ab");
    CHECK(parse_hash64("00000000000012ab", value));
    CHECK(value == 0x12ab);
    for (const char* bad :
         {"", "12ab", "00000000000012aB", "00000000000012ag", "000000000000012ab", " 0000000000012ab"})
        CHECK_FALSE(parse_hash64(bad, value));
}

TEST_CASE("crc32c reproduces the published vectors") {
    CHECK(crc32c("") == 0u);
    CHECK(crc32c("123456789") == 0xE3069283u);
    CHECK(crc32c(std::string(32, '\0')) == 0x8A9136AAu);
    CHECK(crc32c(std::string(32, '\xff')) == 0x62A8AB43u);
}
