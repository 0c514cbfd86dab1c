// Text inside HTML and SVG. Every text from outside passes escaped() exactly once, and every id identifier().
#pragma once

#include <string>
#include <string_view>

namespace longreach::plot {

// For text and for quoted attributes. Control characters and bytes that are not UTF-8 become U+FFFD.
std::string escaped(std::string_view text);

// For ids: only letters, digits and - _ . remain. Different texts have different identifiers.
std::string identifier(std::string_view text);

}  // namespace longreach::plot
