#include "tokenizer/byte_text.h"

#include <array>
#include <cstring>

#include "base/hash.h"
#include "base/text.h"

namespace longreach::tokenizer {

namespace {

constexpr uint32_t first_stand_in = 0x100, letters = 0x144;

constexpr bool is_own_letter(uint32_t byte) {
    return (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || (byte >= 174 && byte <= 255);
}

constexpr std::array<uint32_t, 256> make_letters() {
    std::array<uint32_t, 256> table{};
    uint32_t next = first_stand_in;
    for (uint32_t byte = 0; byte < 256; ++byte) table[byte] = is_own_letter(byte) ? byte : next++;
    return table;
}

constexpr std::array<uint32_t, 256> letter_table = make_letters();

// The byte of each letter; -1 for a number that is none.
constexpr std::array<int, letters> make_bytes() {
    std::array<int, letters> table{};
    table.fill(-1);
    for (size_t byte = 0; byte < 256; ++byte) table[letter_table[byte]] = static_cast<int>(byte);
    return table;
}

constexpr std::array<int, letters> byte_table = make_bytes();

int sextet(char c) {
    if (c >= 'A' && c <= 'Z') return c - 'A';
    if (c >= 'a' && c <= 'z') return c - 'a' + 26;
    if (c >= '0' && c <= '9') return c - '0' + 52;
    return c == '+' ? 62 : c == '/' ? 63 : -1;
}

}  // namespace

uint64_t bytes_fingerprint() {
    return xxh64("bytes 0 to 255, 256 before each document");
}

uint32_t letter_of_byte(unsigned char byte) {
    return letter_table[byte];
}

std::string to_letters(std::string_view bytes) {
    std::string text;
    for (const char byte : bytes) append_utf8(text, letter_table[static_cast<unsigned char>(byte)]);
    return text;
}

std::optional<std::string> from_letters(std::string_view text) {
    std::string bytes;
    while (!text.empty()) {
        const size_t size = utf8_sequence(text);
        if (size == 0) return std::nullopt;
        const uint32_t letter = code_point_at(text);
        if (letter >= letters || byte_table[letter] < 0) return std::nullopt;
        bytes += static_cast<char>(byte_table[letter]);
        text.remove_prefix(size);
    }
    return bytes;
}

void append_utf8(std::string& out, uint32_t c) {
    if (c < 0x80) {
        out += static_cast<char>(c);
    } else if (c < 0x800) {
        out += static_cast<char>(0xC0 | c >> 6);
        out += static_cast<char>(0x80 | (c & 63));
    } else if (c < 0x10000) {
        out += static_cast<char>(0xE0 | c >> 12);
        out += static_cast<char>(0x80 | (c >> 6 & 63));
        out += static_cast<char>(0x80 | (c & 63));
    } else {
        out += static_cast<char>(0xF0 | c >> 18);
        out += static_cast<char>(0x80 | (c >> 12 & 63));
        out += static_cast<char>(0x80 | (c >> 6 & 63));
        out += static_cast<char>(0x80 | (c & 63));
    }
}

uint32_t code_point_at(std::string_view text) {
    const auto byte = [&](size_t i) { return static_cast<uint32_t>(static_cast<unsigned char>(text[i])); };
    const uint32_t first = byte(0);
    if (first < 0x80) return first;
    if (first < 0xE0) return (first & 31) << 6 | (byte(1) & 63);
    if (first < 0xF0) return (first & 15) << 12 | (byte(1) & 63) << 6 | (byte(2) & 63);
    return (first & 7) << 18 | (byte(1) & 63) << 12 | (byte(2) & 63) << 6 | (byte(3) & 63);
}

size_t well_formed_prefix(std::string_view text) {
    size_t at = 0;
    while (at < text.size()) {
        uint64_t eight;
        if (text.size() - at >= sizeof eight) {
            std::memcpy(&eight, text.data() + at, sizeof eight);
            if ((eight & 0x8080808080808080U) == 0) {
                at += sizeof eight;
                continue;
            }
        }
        const size_t size = utf8_sequence(text.substr(at));
        if (size == 0) return at;
        at += size;
    }
    return at;
}

size_t malformed_prefix(std::string_view text) {
    size_t at = 0;
    while (at < text.size() && utf8_sequence(text.substr(at)) == 0) ++at;
    return at;
}

bool is_white_space(uint32_t c) {
    return (c >= 9 && c <= 13) || c == 32 || c == 0x85 || c == 0xA0 || c == 0x1680 ||
           (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
           c == 0x3000;
}

std::optional<std::string> from_base64(std::string_view text) {
    if (text.empty() || text.size() % 4 != 0) return std::nullopt;
    const size_t padding = text.ends_with("==") ? 2 : text.ends_with("=") ? 1 : 0;
    std::string bytes;
    uint32_t bits = 0;
    for (size_t i = 0; i < text.size(); ++i) {
        const int value = i < text.size() - padding ? sextet(text[i]) : 0;
        if (value < 0) return std::nullopt;
        bits = bits << 6 | static_cast<uint32_t>(value);
        if (i % 4 != 3) continue;
        for (const int shift : {16, 8, 0}) bytes += static_cast<char>(bits >> shift & 255);
        bits = 0;
    }
    bytes.resize(bytes.size() - padding);
    return bytes;
}

}  // namespace longreach::tokenizer
