// Charts as files for papers. A chart is SVG whose colours come from chart.css; here it becomes a list of
// shapes that carry their own colours, on white, and the list becomes an SVG file without a style sheet or a PDF
// file. Both hold the same shapes at the same places.
#pragma once

#include <array>
#include <string>
#include <vector>

namespace longreach::plot {

// A step of a path: move, line, cubic curve (two control points, then the end), close.
struct Segment {
    char kind = 'M';  // M L C Z
    std::array<double, 6> at{};
};

struct Shape {
    std::vector<Segment> path;  // empty: the shape is text
    std::string text;
    double x = 0, y = 0, size = 12;  // of text: the baseline, and the font size
    std::string anchor = "start";    // start, middle, end
    bool bold = false;
    std::string fill, stroke;  // "#rrggbb"; empty: none
    double width = 1, opacity = 1;
    std::vector<double> dash;  // lengths of strokes and gaps; empty: solid
    bool round = false;        // ends and joins
    int clip = -1;             // index of a rectangle; -1: none
};

struct Rectangle {
    double x = 0, y = 0, width = 0, height = 0;
};

struct Drawing {
    double width = 0, height = 0;
    std::string title;
    std::vector<Rectangle> clips;
    std::vector<Shape> shapes;  // later ones cover earlier ones
};

// Of the SVG that this layer writes; anything else fails a check.
Drawing read_drawing(const std::string& svg);

// Puts `part` onto `sheet`, its corner at (x, y). The size of the sheet stays.
void place(Drawing& sheet, const Drawing& part, double x, double y);

std::string svg_file(const Drawing& drawing);

// One page of 0.75 points per pixel, as browsers print. Text is in Helvetica, which every reader of PDF has, so that no
// font is embedded; characters that it lacks become question marks.
std::string pdf_file(const Drawing& drawing);

}  // namespace longreach::plot
