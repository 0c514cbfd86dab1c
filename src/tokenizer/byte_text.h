// Bytes as text: the alphabet of byte-level tokenizers, runs of well-formed UTF-8, base64.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace longreach::tokenizer {

// Text without a tokenizer: token b is byte b, and 256 begins each document.
inline constexpr const char* boundary_name = "<|endoftext|>";
inline constexpr int32_t byte_boundary = 256;
inline constexpr int64_t byte_vocabulary = 257;
uint64_t bytes_fingerprint();  // of any tokenizer that makes these tokens of every text

// The alphabet of GPT-2: bytes 33-126, 161-172 and 174-255 are the characters of these numbers, the other 68 in
// rising order are U+0100 to U+0143. So each byte is one printable character and no token contains a space.
uint32_t letter_of_byte(unsigned char byte);
std::string to_letters(std::string_view bytes);
std::optional<std::string> from_letters(
    std::string_view text);  // empty if a character is none of the alphabet

void append_utf8(std::string& out, uint32_t code_point);
uint32_t code_point_at(std::string_view text);  // the first of well-formed UTF-8

// Length of the longest prefix that is well-formed UTF-8, and of the longest without any well-formed sequence.
size_t well_formed_prefix(std::string_view text);
size_t malformed_prefix(std::string_view text);

// Unicode's White_Space, 25 characters: the `\s` of the regular expressions in tokenizer files.
bool is_white_space(uint32_t code_point);

// Standard base64 with padding; empty if `text` is anything else.
std::optional<std::string> from_base64(std::string_view text);

}  // namespace longreach::tokenizer
