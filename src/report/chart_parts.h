// What the kinds of charts share.
#pragma once

#include <fmt/format.h>

#include <string>

#include "report/chart.h"

namespace longreach::report {

// Has a place in a chart: not NaN, infinite, or so large that the width of an axis overflows.
inline bool drawable(double value) {
    return std::abs(value) < 1e300;
}

// The opening tag with title and description. kind: how page.js reads values from it ("lines", "marks").
std::string svg_open(const std::string& id, const std::string& classes, const char* kind, double width,
                     double height, const std::string& title, const std::string& description,
                     const std::string& more = {});
std::string svg_text(double x, double y, const char* classes, const char* anchor, const std::string& text);
std::string svg_line(double x1, double y1, double x2, double y2, const char* classes);
std::string marker_path(size_t marker, double x, double y, double radius);
// At most `characters` of it: the middle gives way to an ellipsis, for names often differ at their end.
std::string shortened(const std::string& text, size_t characters);

}  // namespace longreach::report
