// Axes, escaping and drawn charts.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "plot/markup.h"
#include "plot/parts.h"
#include "plot/scale.h"

using namespace longreach;

namespace {

std::string texts(const std::vector<plot::Tick>& ticks) {
    std::string out;
    for (const plot::Tick& t : ticks) out += (out.empty() ? "" : " ") + t.text;
    return out;
}

}  // namespace

TEST_CASE("a scale maps its ends to its ends, and powers of two to equal distances") {
    const plot::Scale linear{2, 4, 100, 0, false};
    CHECK(linear.at(2) == 100);
    CHECK(linear.at(4) == 0);
    CHECK(linear.at(2.5) == 75);
    const plot::Scale logarithmic{256, 4096, 0, 400, true};
    CHECK(logarithmic.at(256) == 0);
    CHECK(logarithmic.at(512) == doctest::Approx(100));
    CHECK(logarithmic.at(4096) == 400);
    CHECK(plot::Scale{3, 3, 0, 10, false}.at(3) == 5);  // no width: the middle
}

TEST_CASE("ticks are round, inside, evenly spaced and about as many as wanted, for any range") {
    CHECK(texts(plot::round_ticks(0.77, 3.2, 5)) == "1.0 1.5 2.0 2.5 3.0");
    CHECK(texts(plot::round_ticks(-0.02, 1.02, 5)) == "0.0 0.2 0.4 0.6 0.8 1.0");
    CHECK(texts(plot::round_ticks(-1.1, 1.1, 4)) == "−1.0 −0.5 0.0 0.5 1.0");
    CHECK(texts(plot::round_ticks(10, 500, 5)) == "100 200 300 400 500");
    CHECK(texts(plot::round_ticks(2.5, 2.5, 5)) == "2.5");
    for (const double low : {-1e9, -3.7, 0.0, 1e-9, 0.123, 250.0})
        for (const double width : {1e-6, 0.03, 1.0, 7.7, 1234.5, 1e12})
            for (const int about : {4, 6, 12}) {
                const double high = low + width;
                const std::vector<plot::Tick> ticks = plot::round_ticks(low, high, about);
                CAPTURE(low);
                CAPTURE(width);
                if (!(width > 1e-9 * std::max(std::abs(low), std::abs(high)))) continue;
                // A step is within a factor sqrt(10 / 2) = 2.24 (rounded down to 1/1.58) of the wanted one,
                // so there are at least about / 1.6 - 1 and at most about * 1.6 + 1.
                CHECK(ticks.size() >= static_cast<size_t>(about / 1.6) - 1);
                CHECK(static_cast<double>(ticks.size()) <= about * 1.6 + 1);
                for (size_t i = 0; i < ticks.size(); ++i) {
                    CHECK(ticks[i].value >= low - 1e-6 * width);
                    CHECK(ticks[i].value <= high + 1e-6 * width);
                    if (i > 0) CHECK(ticks[i].value > ticks[i - 1].value);
                }
            }
    // Neither endless nor empty where numbers are too close to each other, or none.
    CHECK(plot::round_ticks(1e15, 1e15 + 1, 5).size() == 1);
    CHECK(plot::round_ticks(0, INFINITY, 5).size() == 1);
    CHECK(plot::round_ticks(NAN, NAN, 5).size() == 1);
}

TEST_CASE("ticks of lengths are powers of two at equal distances") {
    CHECK(texts(plot::power_ticks(256, 4096, 6)) == "256 512 1K 2K 4K");
    CHECK(texts(plot::power_ticks(1, 65536, 6)) == "1 8 64 512 4K 32K");
    CHECK(texts(plot::power_ticks(100, 200, 6)) == "128");
    CHECK(plot::power_ticks(0, 100, 6).empty());
}

TEST_CASE("text cannot leave its place in HTML") {
    CHECK(plot::escaped("<a href=\"x\">&'") == "&lt;a href=&quot;x&quot;&gt;&amp;&#39;");
    CHECK(plot::escaped("größer ✓") == "größer ✓");
    CHECK(plot::escaped(std::string_view("a\0b", 3)) == "a\uFFFDb");
    CHECK(plot::escaped("a\x1b[31m") == "a\uFFFD[31m");
    CHECK(plot::escaped("\xff\xc3") == "\uFFFD\uFFFD");
}

TEST_CASE("charts have a place for every value, whatever the values are") {
    const std::vector<plot::SeriesStyle> styles{{"a", 0, 0, 0, false}, {"<b>", 1, 1, 1, true}};
    const double huge = std::numeric_limits<double>::max();
    for (const double odd :
         {static_cast<double>(NAN), static_cast<double>(INFINITY), 0.0, -1.0, 1e300, huge}) {
        plot::LineChart chart;
        chart.id = "x";
        chart.log_x = true;
        chart.lines = {{0, {{256, odd}, {512, 1}}}, {1, {{256, 2, odd, odd}}}};
        for (const bool logarithmic : {false, true})
            for (const plot::ChartSize size :
                 {plot::ChartSize::wide, plot::ChartSize::narrow, plot::ChartSize::panel}) {
                chart.log_y = logarithmic;
                const std::string svg = plot::line_svg(chart, styles, size);
                CHECK(svg.find("nan") == std::string::npos);
                CHECK(svg.find("inf") == std::string::npos);
                CHECK(svg.find("<b>") == std::string::npos);
            }
        plot::IntervalChart intervals;
        intervals.rows = {{0, odd, odd, odd, {odd}, ""}, {1, 1, 0, 2, {1}, ""}};
        const std::string svg = plot::interval_svg(intervals, styles, plot::ChartSize::wide);
        CHECK(svg.find("nan") == std::string::npos);
        CHECK(svg.find("inf\"") == std::string::npos);
    }
    CHECK(plot::line_svg(plot::LineChart{}, styles, plot::ChartSize::wide).find("nan") == std::string::npos);
}

TEST_CASE("on a logarithmic axis doublings are equally far apart, and what is not positive leaves a gap") {
    const std::vector<plot::SeriesStyle> styles{{"a", 0, 0, 0, false}};
    plot::LineChart chart;
    chart.log_y = true;
    chart.lines = {{0, {{1, 1}, {2, 4}, {3, 0}, {4, -2}, {5, 16}, {6, 64}}}};
    const std::string svg = plot::line_svg(chart, styles, plot::ChartSize::wide);
    const std::string ys =
        svg.substr(svg.find("data-y=\"") + 8, svg.find("\" data-v") - svg.find("data-y=\"") - 8);
    std::vector<std::string> parts(1);
    for (const char c : ys) c == '|' ? parts.emplace_back() : parts.back() += c;
    REQUIRE(parts.size() == 6);
    CHECK(parts[2].empty());
    CHECK(parts[3].empty());
    const double step = std::stod(parts[0]) - std::stod(parts[1]);
    CHECK(step > 20);
    for (const auto& [high, low] : {std::pair<size_t, size_t>{4, 1}, {5, 4}})
        CHECK(std::abs(std::stod(parts[low]) - std::stod(parts[high]) - step) < 0.21);  // one decimal each
    CHECK(svg.find(">16</text>") != std::string::npos);
    CHECK(svg.find(">64</text>") != std::string::npos);
    // Within a doubling there are round places instead of powers of two.
    chart.lines = {{0, {{1, 5}, {2, 7}}}};
    CHECK(plot::line_svg(chart, styles, plot::ChartSize::wide).find(">6.0</text>") != std::string::npos);
}

TEST_CASE("names at the ends of lines do not cover each other and stay in the picture") {
    for (const size_t count : {1, 2, 5, 22, 40})
        for (const double spacing : {0.0, 0.001, 1.0}) {
            std::vector<plot::SeriesStyle> styles;
            plot::LineChart chart;
            for (size_t i = 0; i < count; ++i) {
                styles.push_back({fmt::format("name {}", i), i, i, i, false});
                const double y = spacing * static_cast<double>(i * i);
                chart.lines.push_back({i, {{1, y}, {2, y}}});
            }
            const std::string svg = plot::line_svg(chart, styles, plot::ChartSize::wide);
            const double height = std::stod(svg.substr(svg.find("height=\"") + 8));
            std::vector<double> places;
            for (size_t at = 0; (at = svg.find("class=\"name\"", at)) != std::string::npos; ++at) {
                const size_t y = svg.rfind(" y=\"", at);
                places.push_back(std::stod(svg.substr(y + 4)));
            }
            REQUIRE(places.size() == count);
            std::sort(places.begin(), places.end());
            CHECK(places.front() > 12);
            CHECK(places.back() < height - 30);
            // Coordinates are written with one decimal: two of them differ by 14 less at most 0.1.
            for (size_t i = 1; i < count; ++i) CHECK(places[i] - places[i - 1] > 13.85);
        }
}

TEST_CASE("the series of 35 groups and six evaluations of each all look different") {
    std::set<std::string> seen;
    for (size_t group = 0; group < 35; ++group)
        for (size_t evaluation = 0; evaluation <= 6; ++evaluation) {
            const plot::SeriesStyle style = plot::series_style("x", group, evaluation);
            seen.insert(fmt::format("{} {}", plot::style_classes(style), style.marker));
        }
    CHECK(seen.size() == 35 * 7);
}

TEST_CASE("views: logarithmic axes leave out what has no logarithm, differences what the baseline lacks") {
    plot::LineChart chart;
    chart.y_low = 0;
    chart.marks = {{0, "begin"}, {2, "later"}};
    chart.lines = {{0, {{0, 5}, {1, 4}, {2, 2}}}, {1, {{1, 5}, {2, 1.5}, {3, 1}}}, {1, {{1, 9}}, true}};
    const plot::LineChart log = plot::with_log_axes(chart, true);
    CHECK(log.log_x);
    CHECK(log.log_y);
    CHECK(std::isnan(log.y_low));
    CHECK(log.lines[0].points.size() == 2);
    CHECK(log.marks.size() == 1);
    const plot::LineChart minus = plot::minus_baseline(chart, 0, 2);
    REQUIRE(minus.lines.size() == 2);
    CHECK(minus.lines[0].points[2].y == 0);
    REQUIRE(minus.lines[1].points.size() == 2);
    CHECK(minus.lines[1].points[0].text == "+1.00");
    CHECK(minus.lines[1].points[1].text == "−0.50");
    CHECK(plot::minus_baseline(chart, 2, 2).lines.empty());
}
