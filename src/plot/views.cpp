// Other views of a chart: logarithmic axes, differences to a baseline.
#include <algorithm>
#include <cmath>
#include <map>

#include "plot/chart.h"
#include "table/readable.h"

namespace longreach::plot {

LineChart with_log_axes(LineChart chart, bool x_too) {
    chart.log_y = !chart.log_y;
    chart.y_low = chart.y_high = NAN;
    if (!x_too) return chart;
    chart.log_x = true;
    const auto without_log = [](const auto& p) { return !(p.x > 0); };
    for (ChartLine& line : chart.lines) std::erase_if(line.points, without_log);
    std::erase_if(chart.marks, without_log);
    std::erase_if(chart.places, without_log);
    return chart;
}

double room_of_others(const LineChart& chart) {
    const auto span = [&](const ChartLine* left_out) {
        double low = INFINITY, high = -INFINITY;
        for (const ChartLine& line : chart.lines)
            for (const ChartPoint& p : line.points) {
                const double y = chart.log_y ? std::log(p.y) : p.y;
                if (&line == left_out || line.faint || !std::isfinite(y)) continue;
                low = std::min(low, y);
                high = std::max(high, y);
            }
        return high - low;
    };
    const double whole = span(nullptr);
    double least = 1;
    size_t drawn = 0;
    for (const ChartLine& line : chart.lines) {
        if (line.faint || line.points.empty()) continue;
        ++drawn;
        least = std::min(least, span(&line) / whole);
    }
    return drawn < 3 || !(whole > 0) ? 1 : least;
}

LineChart minus_baseline(LineChart chart, size_t baseline, int digits) {
    std::map<double, double> base;
    for (const ChartLine& line : chart.lines)
        if (!line.faint && line.series == baseline)
            for (const ChartPoint& p : line.points)
                if (std::isfinite(p.y)) base[p.x] = p.y;
    chart.y_low = chart.y_high = NAN;
    chart.log_y = false;
    std::erase_if(chart.lines, [&](const ChartLine& line) { return line.faint || base.empty(); });
    for (ChartLine& line : chart.lines) {
        std::vector<ChartPoint> points;
        bool joined = true;
        for (const ChartPoint& p : line.points) {
            joined &= p.joined;
            if (!base.contains(p.x)) continue;
            const double y = p.y - base[p.x];
            points.push_back({p.x, y, NAN, NAN, table::signed_fixed(y, digits), joined});
            joined = true;
        }
        line.points = points;
    }
    return chart;
}

}  // namespace longreach::plot
