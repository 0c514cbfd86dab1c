#include "plot/helvetica.h"

#include <algorithm>
#include <array>
#include <cstdint>

#include "base/text.h"

namespace longreach::plot {

namespace {

// Of the codes 32 to 126.
constexpr std::array<uint16_t, 95> regular{
    278, 278, 355, 556, 556, 889, 667, 191, 333, 333, 389, 584, 278, 333,  278, 278, 556, 556, 556,
    556, 556, 556, 556, 556, 556, 556, 278, 278, 584, 584, 584, 556, 1015, 667, 667, 722, 722, 667,
    611, 778, 722, 278, 500, 667, 556, 833, 722, 778, 667, 778, 722, 667,  611, 722, 667, 944, 667,
    667, 611, 278, 278, 278, 469, 556, 333, 556, 556, 500, 556, 556, 278,  556, 556, 222, 222, 500,
    222, 833, 556, 556, 556, 556, 333, 500, 278, 556, 500, 722, 500, 500,  500, 334, 260, 334, 584};
constexpr std::array<uint16_t, 95> strong{
    278, 333, 474, 556, 556, 889, 722, 238, 333, 333, 389, 584, 278, 333, 278, 278, 556, 556, 556,
    556, 556, 556, 556, 556, 556, 556, 333, 333, 584, 584, 584, 611, 975, 722, 722, 722, 722, 667,
    611, 778, 722, 278, 556, 722, 611, 833, 722, 778, 667, 778, 722, 667, 611, 722, 667, 944, 667,
    667, 611, 333, 278, 333, 584, 556, 333, 556, 611, 556, 611, 556, 333, 611, 611, 278, 278, 556,
    278, 889, 611, 611, 611, 611, 389, 556, 333, 611, 556, 778, 556, 556, 500, 389, 280, 389, 584};

struct Character {
    char32_t point;
    unsigned char code;
    uint16_t width;
};
// Characters whose code is not their code point.
constexpr Character others[] = {
    {U'\u2212', 1, 584},     {U'\u2264', 2, 549},    {U'\u2265', 3, 549},    {U'\u221A', 4, 453},
    {U'\u2026', 0x85, 1000}, {U'\u2018', 0x91, 222}, {U'\u2019', 0x92, 222}, {U'\u201C', 0x93, 333},
    {U'\u201D', 0x94, 333},  {U'\u2022', 0x95, 350}, {U'\u2013', 0x96, 556}, {U'\u2014', 0x97, 1000},
};

}  // namespace

std::vector<char32_t> code_points(std::string_view text) {
    std::vector<char32_t> out;
    while (!text.empty()) {
        const size_t length = utf8_sequence(text);
        constexpr unsigned char lead[] = {0xFF, 0x7F, 0x1F, 0x0F, 0x07};  // bits of the first byte that count
        char32_t point = length == 0 ? U'\uFFFD' : static_cast<unsigned char>(text[0]) & lead[length];
        for (size_t i = 1; i < length; ++i) point = point << 6 | (static_cast<unsigned char>(text[i]) & 0x3F);
        out.push_back(point);
        text.remove_prefix(std::max<size_t>(length, 1));
    }
    return out;
}

std::string helvetica_codes(std::string_view text) {
    std::string out;
    for (const char32_t point : code_points(text)) {
        const auto found = std::find_if(std::begin(others), std::end(others),
                                        [&](const Character& c) { return c.point == point; });
        if (found != std::end(others))
            out += static_cast<char>(found->code);
        else if ((point >= 32 && point < 127) || (point >= 0xA0 && point < 0x100))
            out += static_cast<char>(point);
        else
            out += point == U'\n' || point == U'\t' ? ' ' : '?';
    }
    return out;
}

double helvetica_width(std::string_view codes, bool bold) {
    double width = 0;
    for (const char c : codes) {
        const auto code = static_cast<unsigned char>(c);
        const auto found = std::find_if(std::begin(others), std::end(others),
                                        [&](const Character& other) { return other.code == code; });
        if (found != std::end(others))
            width += found->width;
        else if (code >= 32 && code < 127)
            width += (bold ? strong : regular)[code - 32u];
        else
            width += bold ? 611 : 556;
    }
    return width;
}

std::string helvetica_encoding() {
    return "<< /Type /Encoding /BaseEncoding /WinAnsiEncoding /Differences [1 /minus /lessequal "
           "/greaterequal /radical] >>";
}

}  // namespace longreach::plot
