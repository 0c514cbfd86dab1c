// The secret that the processes of a run share, and the keyed hash that proves knowledge of it.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace longreach::ranks {

using Digest = std::array<unsigned char, 32>;

Digest sha256(std::string_view message);                             // FIPS 180-4
Digest hmac_sha256(std::string_view key, std::string_view message);  // RFC 2104

// Constant time: does not reveal where the first difference is.
bool same_digest(std::string_view a, std::string_view b);

std::string_view bytes_of(const Digest& digest);

std::string random_bytes(size_t count);  // from the kernel
std::string hexadecimal(std::string_view bytes);

// 32 random bytes as 64 hexadecimal digits, the form in which an environment variable carries a token.
std::string random_token();

}  // namespace longreach::ranks
