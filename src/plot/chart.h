// Charts as inline SVG. Colours, dashes and fonts come from chart.css by class, so that one chart serves
// light mode, dark mode and print. page.js reads the values for its read-out from data- attributes.
#pragma once

#include <cmath>
#include <string>
#include <vector>

#include "plot/scale.h"

namespace longreach::plot {

// The appearance of a series in all charts. Colour, dash and marker together
// distinguish more than eight series, also for readers with colour blindness.
struct SeriesStyle {
    std::string name;
    size_t colour = 0;  // class c<colour>
    size_t dash = 0;    // class d<dash>
    size_t marker = 0;
    bool hollow = false;
};
inline constexpr size_t colour_count = 8, dash_count = 5, marker_count = 7;
// The style of a group as trained (evaluation 0) or of one of its evaluations
// (hollow). The styles of 35 groups with up to six evaluations each are all different.
SeriesStyle series_style(const std::string& name, size_t group, size_t evaluation = 0);
std::string style_classes(const SeriesStyle& style);
// A small picture of the line and marker of a series, for legends.
std::string swatch_svg(const SeriesStyle& style);

struct ChartPoint {
    double x = 0, y = 0;
    double low = NAN, high = NAN;    // a band around the line
    std::string text = {};           // of the value, for the read-out
    bool joined = true;              // a line connects it with the previous point
    std::vector<double> seeds = {};  // the values of the seeds, as dots
};

struct ChartLine {
    size_t series = 0;                    // index into the styles
    std::vector<ChartPoint> points = {};  // x rises; a value that is not finite leaves a gap
    bool faint = false;                   // in the background, without markers, read-out and label
    bool markers = true;
};

struct Position {
    double x = 0;
    std::string text;
};

// The style sheet of all charts: palette, lines, text.
const char* chart_style();

struct LineChart {
    std::string id;                            // unique on the page
    std::string title = {}, description = {};  // for screen readers; the title also heads small panels
    std::string x_label = {}, y_label = {};
    bool log_x = false;
    bool log_y = false;                 // values that are not positive leave a gap
    std::vector<Tick> x_ticks = {};     // empty: round numbers
    std::vector<Position> marks = {};   // vertical lines
    std::vector<Position> places = {};  // the name of each x in the read-out
    std::vector<ChartLine> lines = {};
    double y_low = NAN, y_high = NAN;  // bounds of the axis; NaN: from the values
    bool diagonal = false;             // the line y = x
};

// The chart with a logarithmic y axis (linear if it was logarithmic) and, if asked for, a
// logarithmic x axis; without points that have no logarithm and without the given bounds.
LineChart with_log_axes(LineChart chart, bool x_too);
// The share of the y axis that the other lines keep if one line is left out: the least of all lines, 1 with fewer than three.
double room_of_others(const LineChart& chart);
// Each line minus the line of the baseline where both have a point, without bands and
// faint lines; no lines if the baseline has none. `digits`: decimals in the read-out.
LineChart minus_baseline(LineChart chart, size_t baseline, int digits);

// Characters of a name at the end of its line; longer ones are shortened.
inline constexpr size_t label_characters = 16;
enum class ChartSize { wide, narrow, panel };
std::string line_svg(const LineChart& chart, const std::vector<SeriesStyle>& styles, ChartSize size);
// A complete SVG file, with style sheet and background.
std::string standalone_svg(const LineChart& chart, const std::vector<SeriesStyle>& styles);

struct IntervalRow {
    size_t series = 0;
    double mean = 0, low = NAN, high = NAN;
    std::vector<double> values;  // of which `mean` is the mean
    std::string text;
};
struct IntervalChart {
    std::string id, title, description, x_label;
    std::vector<IntervalRow> rows;
};
std::string interval_svg(const IntervalChart& chart, const std::vector<SeriesStyle>& styles, ChartSize size);

struct HeatCell {
    size_t column = 0, row = 0;
    double share = 0;  // 0..1, the colour
    std::string label, text;
};
struct HeatPanel {
    std::string id, title, description, x_label, y_label;
    size_t series = 0;
    std::vector<std::string> columns, rows;
    std::vector<HeatCell> cells;
};
std::string heat_svg(const HeatPanel& panel);

}  // namespace longreach::plot
