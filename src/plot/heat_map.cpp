#include "plot/heat_map.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "base/error.h"
#include "plot/parts.h"

namespace longreach::plot {

namespace {

constexpr double left = 70, top = 50, side = 440, bar_gap = 24, bar_width = 18;
constexpr double width = left + side + bar_gap + bar_width + 78, height = top + side + 80;
constexpr int about = 5;  // ticks of an axis

std::string rectangle(double x, double y, double w, double h, const std::string& colour,
                      const std::string& title = {}) {
    return fmt::format(
        "<rect x=\"{:.2f}\" y=\"{:.2f}\" width=\"{:.2f}\" height=\"{:.2f}\" fill=\"{}\">{}</rect>\n", x, y, w,
        h, colour, title);
}

double share_of(const HeatMap& map, double value) {
    return (value - map.low) / (map.high - map.low);
}

// Cells slightly larger than their spacing, so that no background shows between neighbours.
std::string cells(const HeatMap& map) {
    const double cell_x = side / map.columns, cell_y = side / map.rows;
    std::string out = "<g shape-rendering=\"crispEdges\">\n";
    for (int row = 0; row < map.rows; ++row)
        for (int column = 0; column < map.columns; ++column) {
            const double value = map.values[static_cast<size_t>(row * map.columns + column)];
            out += rectangle(
                left + column * cell_x, top + side - (row + 1) * cell_y, cell_x + 0.3, cell_y + 0.3,
                std::isfinite(value) ? heat_colour(share_of(map, value)) : "#808080",
                fmt::format("<title>{:.4g}, {:.4g}: {:.4g}</title>", map.x_max * (column + 0.5) / map.columns,
                            map.y_max * (row + 0.5) / map.rows, value));
        }
    return out + "</g>\n";
}

std::string colour_bar(const HeatMap& map) {
    constexpr int shades = 64;
    constexpr double bar = left + side + bar_gap;
    std::string out = "<g shape-rendering=\"crispEdges\">\n";
    for (int i = 0; i < shades; ++i)
        out += rectangle(bar, top + side * (1 - (i + 1.0) / shades), bar_width, side / shades + 0.3,
                         heat_colour((i + 0.5) / shades));
    out += "</g>\n";
    for (const Tick& tick : round_ticks(map.low, map.high, about)) {
        const double y = top + side * (1 - share_of(map, tick.value));
        out += svg_line(bar + bar_width, y, bar + bar_width + 5, y, "axis");
        out += svg_text(bar + bar_width + 8, y + 4.5, "tick", "start", tick.text);
    }
    return out + svg_text(bar + bar_width / 2, top - 9, "label", "middle", map.value_label);
}

}  // namespace

std::string heat_colour(double share) {
    static constexpr std::array<std::array<double, 3>, 9> anchors = {{{25, 20, 70},
                                                                      {35, 50, 115},
                                                                      {35, 85, 140},
                                                                      {30, 118, 145},
                                                                      {35, 150, 138},
                                                                      {75, 180, 115},
                                                                      {135, 205, 85},
                                                                      {195, 222, 65},
                                                                      {250, 235, 80}}};
    const double at = std::clamp(share, 0.0, 1.0) * (anchors.size() - 1);
    const size_t below = std::min(static_cast<size_t>(at), anchors.size() - 2);
    const double f = at - static_cast<double>(below);
    const auto channel = [&](size_t c) {
        return static_cast<int>(
            std::lround(anchors[below][c] + f * (anchors[below + 1][c] - anchors[below][c])));
    };
    return fmt::format("#{:02x}{:02x}{:02x}", channel(0), channel(1), channel(2));
}

std::string heat_map_svg(const HeatMap& map) {
    check(map.values.size() == static_cast<size_t>(map.columns) * static_cast<size_t>(map.rows) &&
              map.columns > 0 && map.rows > 0 && map.high > map.low,
          "heat map of {} x {} cells with {} values from {} to {}", map.columns, map.rows, map.values.size(),
          map.low, map.high);
    const Scale x{0, map.x_max, left, left + side, false}, y{0, map.y_max, top + side, top, false};
    std::string out = standalone_open(width, height, map.title, {}) + "<g class=\"chart\">\n" +
                      svg_text(left + side / 2, 28, "heading", "middle", map.title) + cells(map);
    std::string points;
    for (const auto& [px, py] : map.curve)
        if (px >= 0 && px <= map.x_max && py >= 0 && py <= map.y_max)
            points += fmt::format("{}{:.1f},{:.1f}", points.empty() ? "" : " ", x.at(px), y.at(py));
    // A light line on a dark one is visible on every colour of the map.
    if (!points.empty())
        for (const char* pen :
             {"#000\" stroke-width=\"4", "#fff\" stroke-width=\"2\" stroke-dasharray=\"7 5"})
            out += fmt::format("<polyline points=\"{}\" fill=\"none\" stroke=\"{}\"/>\n", points, pen);
    for (const Tick& tick : round_ticks(0, map.x_max, about)) {
        out += svg_line(x.at(tick.value), top + side, x.at(tick.value), top + side + 5, "axis");
        out += svg_text(x.at(tick.value), top + side + 20, "tick", "middle", tick.text);
    }
    for (const Tick& tick : round_ticks(0, map.y_max, about)) {
        out += svg_line(left - 5, y.at(tick.value), left, y.at(tick.value), "axis");
        out += svg_text(left - 9, y.at(tick.value) + 4.5, "tick", "end", tick.text);
    }
    out += svg_text(left + side / 2, top + side + 42, "label", "middle", map.x_label);
    out += fmt::format("<g transform=\"rotate(-90 {:.1f} {:.1f})\">{}</g>\n", left - 44, top + side / 2,
                       svg_text(left - 44, top + side / 2, "label", "middle", map.y_label));
    if (!map.curve_label.empty())
        out += svg_text(left + side / 2, top + side + 64, "label", "middle", "dashed: " + map.curve_label);
    return out + colour_bar(map) + "</g>\n</svg>\n";
}

}  // namespace longreach::plot
