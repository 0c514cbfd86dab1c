#include "theory/heat_map.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "base/error.h"

namespace longreach::theory {

namespace {

constexpr double left = 70, top = 50, side = 440, bar_gap = 24, bar_width = 18;
constexpr double width = left + side + bar_gap + bar_width + 78, height = top + side + 80;

std::string escaped(const std::string& text) {
    std::string out;
    for (char c : text) {
        switch (c) {
            case '&':
                out += "&amp;";
                break;
            case '<':
                out += "&lt;";
                break;
            case '>':
                out += "&gt;";
                break;
            case '"':
                out += "&quot;";
                break;
            default:
                out += c;
        }
    }
    return out;
}

// 1, 2 or 5 times a power of ten, about a fifth of the range.
double tick_step(double range) {
    const double rough = range / 5, power = std::pow(10.0, std::floor(std::log10(rough)));
    for (double factor : {1.0, 2.0, 5.0})
        if (rough <= factor * power * 1.0001) return factor * power;
    return 10 * power;
}

std::vector<double> ticks(double low, double high) {
    const double step = tick_step(high - low);
    std::vector<double> out;
    for (double k = std::ceil(low / step - 1e-9); k * step <= high + 1e-9 * step; ++k)
        out.push_back(k * step + 0.0);  // -0 + 0 is 0
    return out;
}

std::string text(double x, double y, const char* anchor, const std::string& content, const char* more = "") {
    return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\"{}>{}</text>\n", x, y, anchor, more,
                       escaped(content));
}

std::string line(double x1, double y1, double x2, double y2) {
    return fmt::format(
        "<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" stroke=\"currentColor\"/>\n", x1, y1,
        x2, y2);
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

std::string svg(const HeatMap& map) {
    check(map.values.size() == static_cast<size_t>(map.columns) * static_cast<size_t>(map.rows) &&
              map.columns > 0 && map.rows > 0 && map.high > map.low,
          "heat map of {} x {} cells with {} values from {} to {}", map.columns, map.rows, map.values.size(),
          map.low, map.high);
    const auto x_at = [&](double x) { return left + side * x / map.x_max; };
    const auto y_at = [&](double y) { return top + side * (1 - y / map.y_max); };
    const auto share = [&](double value) { return (value - map.low) / (map.high - map.low); };

    std::string out = fmt::format(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0:.0f} {1:.0f}\" width=\"{0:.0f}\" "
        "height=\"{1:.0f}\" color=\"#222222\" fill=\"currentColor\" font-family=\"sans-serif\" "
        "font-size=\"13\" role=\"img\">\n"
        "<style>\n"
        "@media (prefers-color-scheme: dark) {{ svg {{ color: #dddddd; }} .ground {{ fill: #1b1d21; }} }}\n"
        "</style>\n"
        "<title>{2}</title>\n"
        "<rect class=\"ground\" width=\"{0:.0f}\" height=\"{1:.0f}\" fill=\"#fafafa\"/>\n",
        width, height, escaped(map.title));
    out += text(left + side / 2, 28, "middle", map.title, " font-size=\"15\"");

    const double cell_x = side / map.columns, cell_y = side / map.rows;
    out += "<g shape-rendering=\"crispEdges\">\n";
    for (int row = 0; row < map.rows; ++row)
        for (int column = 0; column < map.columns; ++column) {
            const double value = map.values[static_cast<size_t>(row * map.columns + column)];
            const std::string colour = std::isfinite(value) ? heat_colour(share(value)) : "#808080";
            // A little wider than its cell, so that no ground shines through between two.
            out += fmt::format(
                "<rect x=\"{:.2f}\" y=\"{:.2f}\" width=\"{:.2f}\" height=\"{:.2f}\" fill=\"{}\">"
                "<title>{}</title></rect>\n",
                left + column * cell_x, top + side - (row + 1) * cell_y, cell_x + 0.3, cell_y + 0.3, colour,
                fmt::format("{:.4g}, {:.4g}: {:.4g}", map.x_max * (column + 0.5) / map.columns,
                            map.y_max * (row + 0.5) / map.rows, value));
        }
    out += "</g>\n";

    std::string points;
    for (const auto& [x, y] : map.curve)
        if (x >= 0 && x <= map.x_max && y >= 0 && y <= map.y_max)
            points += fmt::format("{}{:.1f},{:.1f}", points.empty() ? "" : " ", x_at(x), y_at(y));
    if (!points.empty()) {
        // Dark below light: visible on every colour of the map.
        out += fmt::format("<polyline points=\"{}\" fill=\"none\" stroke=\"#000000\" stroke-width=\"4\"/>\n",
                           points);
        out += fmt::format(
            "<polyline points=\"{}\" fill=\"none\" stroke=\"#ffffff\" stroke-width=\"2\" "
            "stroke-dasharray=\"7 5\"/>\n",
            points);
    }
    out += fmt::format(
        "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" fill=\"none\" "
        "stroke=\"currentColor\"/>\n",
        left, top, side, side);
    for (double x : ticks(0, map.x_max)) {
        out += line(x_at(x), top + side, x_at(x), top + side + 5);
        out += text(x_at(x), top + side + 20, "middle", fmt::format("{:.4g}", x));
    }
    for (double y : ticks(0, map.y_max)) {
        out += line(left - 5, y_at(y), left, y_at(y));
        out += text(left - 9, y_at(y) + 4.5, "end", fmt::format("{:.4g}", y));
    }
    out += text(left + side / 2, top + side + 42, "middle", map.x_label);
    const std::string turned =
        fmt::format(" transform=\"rotate(-90 {:.1f} {:.1f})\"", left - 44, top + side / 2);
    out += text(left - 44, top + side / 2, "middle", map.y_label, turned.c_str());
    if (!map.curve_label.empty())
        out += text(left + side / 2, top + side + 64, "middle", "dashed: " + map.curve_label,
                    " font-size=\"12\"");

    const double bar = left + side + bar_gap;
    constexpr int shades = 64;
    out += "<g shape-rendering=\"crispEdges\">\n";
    for (int i = 0; i < shades; ++i)
        out +=
            fmt::format("<rect x=\"{:.1f}\" y=\"{:.2f}\" width=\"{:.1f}\" height=\"{:.2f}\" fill=\"{}\"/>\n",
                        bar, top + side * (1 - (i + 1.0) / shades), bar_width, side / shades + 0.3,
                        heat_colour((i + 0.5) / shades));
    out += "</g>\n";
    for (double value : ticks(map.low, map.high)) {
        const double y = top + side * (1 - share(value));
        out += line(bar + bar_width, y, bar + bar_width + 5, y);
        out += text(bar + bar_width + 8, y + 4.5, "start", fmt::format("{:.4g}", value));
    }
    out += text(bar + bar_width / 2, top - 9, "middle", map.value_label);
    return out + "</svg>\n";
}

}  // namespace longreach::theory
