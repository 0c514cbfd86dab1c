// Intervals and heat maps.
#include <algorithm>

#include "plot/parts.h"
#include "plot/markup.h"
#include "table/readable.h"
#include "plot/heat_map.h"

namespace longreach::plot {

std::string interval_svg(const IntervalChart& chart, const std::vector<SeriesStyle>& styles, ChartSize size) {
    const bool wide = size == ChartSize::wide;
    // On a narrow screen, names are above the intervals; on a wide one, to the left.
    const double width = wide ? 760 : 360, left = wide ? 190 : 10, right = wide ? 96 : 10, top = 8,
                 row_height = wide ? 26 : 42, bottom = 44;
    const double height = top + row_height * static_cast<double>(chart.rows.size()) + bottom;
    double low = 0, high = 0;  // zero is always on the axis
    for (const IntervalRow& row : chart.rows) {
        std::vector<double> seen = row.values;
        seen.insert(seen.end(), {row.mean, row.low, row.high});
        for (double v : seen)
            if (drawable(v)) low = std::min(low, v), high = std::max(high, v);
    }
    if (high == low) low = -1, high = 1;
    const double margin = 0.05 * (high - low);
    const Scale x{low - margin, high + margin, left + 8, width - right - 8, false};
    const double floor = height - bottom;

    const std::string classes = wide ? "wide" : "narrow";
    std::string out = svg_open(fmt::format("{}-{}", chart.id, classes), classes, "marks", width, height,
                               chart.title, chart.description);
    for (const Tick& tick : round_ticks(x.low, x.high, wide ? 6 : 4)) {
        out += svg_line(x.at(tick.value), top, x.at(tick.value), floor, "grid");
        out += svg_text(x.at(tick.value), floor + 18, "tick", "middle", tick.text);
    }
    out += svg_line(x.at(0), top - 4, x.at(0), floor, "zero");
    out += svg_text((left + width - right) / 2, height - 6, "label", "middle", chart.x_label);
    for (size_t i = 0; i < chart.rows.size(); ++i) {
        const IntervalRow& row = chart.rows[i];
        const SeriesStyle& style = styles[row.series];
        const double y = top + row_height * (static_cast<double>(i) + (wide ? 0.5 : 0.72));
        out += fmt::format(
            "<g class=\"item {}\" data-g=\"{}\" data-tip=\"{}\" data-px=\"{:.1f}\" data-py=\"{:.1f}\">",
            style_classes(style), row.series, escaped(style.name + "\n" + row.text),
            drawable(row.mean) ? x.at(row.mean) : x.at(0), y);
        out += fmt::format("<rect class=\"hit\" x=\"0\" y=\"{:.1f}\" width=\"{:g}\" height=\"{:g}\"/>",
                           top + row_height * static_cast<double>(i), width, row_height);
        if (wide)
            out += svg_text(left - 10, y + 4, "name", "end", table::shortened(style.name, 22));
        else
            out += svg_text(left, y - 11, "name", "start", table::shortened(style.name, 40));
        for (const double v : row.values)
            if (drawable(v))
                out +=
                    fmt::format("<circle class=\"seed\" cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"2.6\"/>", x.at(v), y);
        if (drawable(row.low) && drawable(row.high)) {
            const double a = x.at(row.low), b = x.at(row.high);
            out += fmt::format(
                "<path class=\"interval\" d=\"M{0:.1f} {1:.1f}H{2:.1f}M{0:.1f} {3:.1f}V{4:.1f}"
                "M{2:.1f} {3:.1f}V{4:.1f}\"/>",
                a, y, b, y - 4, y + 4);
        }
        if (drawable(row.mean))
            out += fmt::format("<path class=\"marker\" d=\"{}\"/>",
                               marker_path(style.marker, x.at(row.mean), y, 4));
        if (wide)
            out += svg_text(width - right + 8, y + 4, "value", "start", table::signed_fixed(row.mean, 4));
        out += "</g>\n";
    }
    return out + "</svg>\n";
}

std::string heat_svg(const HeatPanel& panel) {
    constexpr double cell_width = 44, cell_height = 30, left = 44, top = 26, bottom = 40, right = 6;
    const double width = left + right + cell_width * static_cast<double>(panel.columns.size());
    const double height = top + bottom + cell_height * static_cast<double>(panel.rows.size());
    std::string out = svg_open(panel.id, "heat", "marks", width, height, panel.title, panel.description,
                               fmt::format(" data-g=\"{}\"", panel.series));
    out += svg_text(2, 14, "panel-title", "start",
                    table::shortened(panel.title, static_cast<size_t>(width / 8.4)));
    for (const HeatCell& cell : panel.cells) {
        const double x = left + cell_width * static_cast<double>(cell.column),
                     y = top + cell_height * static_cast<double>(cell.row);
        out += fmt::format(
            "<g class=\"item\" data-tip=\"{}\" data-px=\"{:.1f}\" data-py=\"{:.1f}\">"
            "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:g}\" height=\"{:g}\" fill=\"{}\"/>",
            escaped(cell.text), x + cell_width / 2, y + cell_height / 2, x + 0.5, y + 0.5, cell_width - 1,
            cell_height - 1, heat_colour(cell.share));
        out += svg_text(x + cell_width / 2, y + cell_height / 2 + 4,
                        cell.share > 0.55 ? "on-light" : "on-dark", "middle", cell.label);
        out += "</g>\n";
    }
    for (size_t i = 0; i < panel.columns.size(); ++i)
        out += svg_text(left + cell_width * (static_cast<double>(i) + 0.5), height - bottom + 16, "tick",
                        "middle", panel.columns[i]);
    for (size_t i = 0; i < panel.rows.size(); ++i)
        out += svg_text(left - 6, top + cell_height * (static_cast<double>(i) + 0.5) + 4, "tick", "end",
                        panel.rows[i]);
    out += svg_text(left + (width - left - right) / 2, height - 6, "label", "middle", panel.x_label);
    return out + "</svg>\n";
}

}  // namespace longreach::plot
