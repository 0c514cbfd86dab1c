// Helvetica, one of the fonts that every reader of PDF has: the codes of characters, and the widths that place text
// which is centred or ends at a point.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace longreach::plot {

// Of well-formed UTF-8; a byte that is none becomes U+FFFD.
std::vector<char32_t> code_points(std::string_view text);

// One byte for each character, in the encoding below; '?' where Helvetica has none.
std::string helvetica_codes(std::string_view text);
// In thousandths of the font size. Letters with accents count as the widest of a line of text does on average.
double helvetica_width(std::string_view codes, bool bold);
// The PDF object of the encoding: Windows-1252, with a minus sign and other mathematics below 32.
std::string helvetica_encoding();

}  // namespace longreach::plot
