// Text inside HTML and SVG. All text from outside passes through
// escaped() exactly once, and all ids through identifier().
#pragma once

#include <string>
#include <string_view>

namespace longreach::plot {

// For text and for quoted attributes. Control characters and bytes that are not UTF-8 become U+FFFD.
std::string escaped(std::string_view text);

// For ids: only letters, digits and - _ . remain. Different texts have different identifiers.
std::string identifier(std::string_view text);

}  // namespace longreach::plot
