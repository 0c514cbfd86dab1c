// SHA-256, keyed hashes and random secrets. A digest is 32 raw bytes.
#pragma once

#include <string>
#include <string_view>

namespace longreach {

constexpr size_t digest_bytes = 32;

std::string sha256(std::string_view message);                             // FIPS 180-4
std::string hmac_sha256(std::string_view key, std::string_view message);  // RFC 2104

// Takes the same time wherever the first difference is.
bool same_digest(std::string_view a, std::string_view b);

std::string random_bytes(size_t count);  // at most 256, from the kernel
std::string hexadecimal(std::string_view bytes);

}  // namespace longreach
