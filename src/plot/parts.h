// Parts shared by all charts.
#pragma once

#include <fmt/format.h>

#include <string>

#include "plot/chart.h"

namespace longreach::plot {

// Whether a value can be drawn: it is finite, and not so large that the width of an axis overflows.
inline bool drawable(double value) {
    return std::abs(value) < 1e300;
}

// The opening tag with title and description. kind: how page.js reads values from it ("lines", "marks").
std::string svg_open(const std::string& id, const std::string& classes, const char* kind, double width,
                     double height, const std::string& title, const std::string& description,
                     const std::string& more = {});
// The start of a complete SVG file, with style sheet and background.
std::string standalone_open(double width, double height, const std::string& title,
                            const std::string& description);
std::string clip_path(const std::string& id, double x, double y, double width, double height);
std::string svg_text(double x, double y, const char* classes, const char* anchor, const std::string& text);
std::string svg_line(double x1, double y1, double x2, double y2, const char* classes);
std::string marker_path(size_t marker, double x, double y, double radius);
}  // namespace longreach::plot
