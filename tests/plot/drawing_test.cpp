// Charts as files for papers: what is read from their SVG, and what the files hold.
#include <doctest/doctest.h>

#include <algorithm>
#include <charconv>
#include <set>

#include "base/error.h"
#include "plot/chart.h"
#include "plot/drawing.h"
#include "plot/helvetica.h"
#include "plot/style_rules.h"

using namespace longreach;

namespace {

std::string inside(const std::string& elements) {
    return "<svg class=\"chart\" width=\"100\" height=\"80\"><title>a &amp; b</title>" + elements + "</svg>";
}

plot::Shape shape_of(const std::string& element) {
    const plot::Drawing drawing = plot::read_drawing(inside(element));
    REQUIRE(drawing.shapes.size() == 1);
    return drawing.shapes[0];
}

size_t count_of(std::string_view text, std::string_view part) {
    size_t count = 0;
    for (size_t at = 0; (at = text.find(part, at)) != text.npos; at += part.size()) ++count;
    return count;
}

plot::LineChart sample_chart() {
    plot::LineChart chart{.id = "c", .title = "Loss", .x_label = "context", .y_label = "loss", .log_x = true};
    chart.marks = {{256, "trained at 256"}};
    for (size_t i = 0; i < 2; ++i) {
        plot::ChartLine line{i};
        for (double x = 256; x <= 4096; x *= 2) {
            plot::ChartPoint p{x, 1 + 0.1 * static_cast<double>(i) * x / 256};
            p.low = p.y - 0.05;
            p.high = p.y + 0.05;
            p.seeds = {p.low, p.high};
            line.points.push_back(p);
        }
        chart.lines.push_back(line);
    }
    return chart;
}

}  // namespace

TEST_CASE("the more specific rule wins, and variables come from around the element") {
    const plot::StyleRules rules(
        ":root { --a: #111111 } @media (dark) { :root { --a: #ffffff } }\n"
        ".x { --s: var(--a) } .m { fill: var(--s); stroke: var(--none, #222222) } .h .m { fill: none }\n"
        ".chart text { fill: #333333 } .chart .n { fill: var(--s) }");
    const auto at = [&](const std::vector<plot::StyledElement>& path) {
        plot::Properties properties;
        std::vector<plot::StyledElement> way;
        for (const plot::StyledElement& element : path) {
            way.push_back(element);
            rules.apply(way, properties);
        }
        return properties;
    };
    plot::Properties plain = at({{"svg", {"chart"}}, {"g", {"x"}}, {"path", {"m"}}});
    CHECK(plain["fill"] == "#111111");  // not the dark one
    CHECK(plain["stroke"] == "#222222");
    CHECK(at({{"svg", {"chart"}}, {"g", {"x", "h"}}, {"path", {"m"}}})["fill"] == "none");
    CHECK(at({{"svg", {"chart"}}, {"g", {"x"}}, {"text", {"n"}}})["fill"] == "#111111");
    CHECK(at({{"svg", {"chart"}}, {"g", {"x"}}, {"text", {}}})["fill"] == "#333333");
}

TEST_CASE("elements become shapes with the colours of the style sheet") {
    const plot::Shape line = shape_of("<g class=\"c0 d1\"><path class=\"line\" d=\"M1 2L3.5 -4\"/></g>");
    CHECK(line.stroke == "#03256f");
    CHECK(line.fill.empty());
    CHECK(line.dash == std::vector<double>{6, 3});
    CHECK(line.round);
    CHECK(line.path[1].at[1] == -4);
    const plot::Shape band = shape_of("<g class=\"c1 d0\"><path class=\"band\" d=\"M0 0L1 1L2 0z\"/></g>");
    CHECK(band.fill == "#7f0000");
    CHECK(band.opacity == 0.16);
    CHECK(band.stroke.empty());
    const plot::Shape hollow =
        shape_of("<g class=\"c2 d0 hollow\"><path class=\"marker\" d=\"M0 0h2v2h-2z\"/></g>");
    CHECK(hollow.fill == "#ffffff");
    CHECK(hollow.stroke == "#306f46");
    const plot::Shape text =
        shape_of("<text x=\"5\" y=\"6\" class=\"panel-title\" text-anchor=\"end\">a&lt;b</text>");
    CHECK(text.text == "a<b");
    CHECK(text.bold);
    CHECK(text.anchor == "end");
    CHECK(text.size == 12);
    CHECK(plot::read_drawing(inside("<rect class=\"hit\" width=\"9\" height=\"9\"/>")).shapes.empty());
    CHECK(plot::read_drawing(inside("")).title == "a & b");
    CHECK_THROWS(plot::read_drawing("<svg><g>"));
    CHECK_THROWS(plot::read_drawing(inside("<path d=\"M1\"/>")));
    CHECK_THROWS(plot::read_drawing(inside("<path d=\"Q1 2\"/>")));
}

TEST_CASE("a round marker stays a circle: every curve keeps its distance from the centre") {
    const plot::Shape circle =
        shape_of("<g class=\"c0\"><circle class=\"seed\" cx=\"10\" cy=\"20\" r=\"5\"/></g>");
    std::set<std::pair<int, int>> extremes;
    double x = 5, y = 20;
    for (const plot::Segment& s : circle.path) {
        if (s.kind != 'C') continue;
        // The middle of a quarter's curve: 2.7e-4 of the radius off at most.
        const double mx = (x + 3 * s.at[0] + 3 * s.at[2] + s.at[4]) / 8,
                     my = (y + 3 * s.at[1] + 3 * s.at[3] + s.at[5]) / 8;
        CHECK(std::hypot(mx - 10, my - 20) == doctest::Approx(5).epsilon(3e-4));
        x = s.at[4];
        y = s.at[5];
        CHECK(std::hypot(x - 10, y - 20) == doctest::Approx(5).epsilon(1e-9));
        extremes.insert({static_cast<int>(std::lround(x)), static_cast<int>(std::lround(y))});
    }
    CHECK(extremes == std::set<std::pair<int, int>>{{5, 20}, {10, 25}, {15, 20}, {10, 15}});
}

TEST_CASE("every kind of chart becomes an SVG and a PDF that hold the same shapes") {
    const std::vector<plot::SeriesStyle> styles{plot::series_style("a(b)\\", 0),
                                                plot::series_style("\u22121", 0, 1)};
    plot::IntervalChart intervals{"i", "Differences", "", "nats", {{1, -0.5, -0.7, -0.3, {-0.6, -0.4}, ""}}};
    plot::HeatPanel heat;
    heat.id = "h";
    heat.columns = {"1K"};
    heat.rows = {"0%"};
    heat.cells = {{0, 0, 0.4, "0.40", "accuracy"}};
    for (const std::string& svg : {plot::line_svg(sample_chart(), styles, plot::ChartSize::wide),
                                   plot::line_svg(sample_chart(), styles, plot::ChartSize::panel),
                                   plot::interval_svg(intervals, styles, plot::ChartSize::wide),
                                   plot::heat_svg(heat), plot::swatch_svg(styles[1])}) {
        const plot::Drawing drawing = plot::read_drawing(svg);
        CHECK(drawing.shapes.size() > 1);
        const std::string file = plot::svg_file(drawing), pdf = plot::pdf_file(drawing);
        size_t texts = 0;
        for (const plot::Shape& s : drawing.shapes) texts += s.path.empty();
        CHECK(count_of(file, "<text ") == texts);
        CHECK(count_of(file, "<path ") == drawing.shapes.size() - texts);
        CHECK(count_of(pdf, "BT /F") == texts);
        CHECK(count_of(pdf, "\nq\n") == drawing.shapes.size());
        CHECK(count_of(pdf, "\nQ\n") + count_of(pdf, "\nQ\nendstream") >= drawing.shapes.size());
        for (const char* foreign : {"class=", "<style", "var(", "data-", "nan"})
            CHECK_MESSAGE(file.find(foreign) == std::string::npos, foreign);
        CHECK(pdf.find("nan") == std::string::npos);
    }
}

TEST_CASE("a PDF's table leads to its objects, and its stream has the length it says") {
    const plot::Drawing drawing = plot::read_drawing(
        plot::line_svg(sample_chart(), {plot::series_style("a(b)\\", 0), plot::series_style("é", 1)},
                       plot::ChartSize::wide));
    const std::string pdf = plot::pdf_file(drawing);
    CHECK(pdf.starts_with("%PDF-1.4\n"));
    CHECK(pdf.ends_with("%%EOF\n"));
    const size_t table = std::stoul(pdf.substr(pdf.rfind("startxref\n") + 10));
    CHECK(pdf.substr(table, 5) == "xref\n");
    const size_t count = std::stoul(pdf.substr(table + 7));
    CHECK(count == 9);
    for (size_t i = 1; i < count; ++i) {
        const size_t at = pdf.find('\n', table + 5) + 1 + 20 * i;
        CHECK(pdf.substr(std::stoul(pdf.substr(at, 10))).starts_with(std::to_string(i) + " 0 obj\n"));
        CHECK(pdf.substr(at + 10, 10) == " 00000 n \n");
    }
    const size_t length = std::stoul(pdf.substr(pdf.find("/Length ") + 8)), begin = pdf.find("stream\n") + 7;
    CHECK(pdf.substr(begin + length).starts_with("endstream\nendobj\n"));
    CHECK(pdf.find("(a\\(b\\)\\\\)") != std::string::npos);
    CHECK(pdf.find("(\\351)") != std::string::npos);
    CHECK(pdf.find("/MediaBox [0 0 570 297]") != std::string::npos);  // 760 x 396 pixels
    CHECK(pdf.find("<FEFF004C006F00730073>") != std::string::npos);   // Loss
    CHECK(pdf == plot::pdf_file(drawing));
}

TEST_CASE("a drawing is placed with its clips") {
    plot::Drawing sheet;
    sheet.width = 300;
    const plot::Drawing part = plot::read_drawing(
        inside("<clipPath id=\"k\"><rect x=\"1\" y=\"2\" width=\"3\" height=\"4\"/></clipPath>"
               "<g clip-path=\"url(#k)\"><line class=\"axis\" x1=\"0\" y1=\"1\" x2=\"2\" y2=\"3\"/></g><text "
               "x=\"1\" y=\"1\">t</text>"));
    plot::place(sheet, part, 0, 0);
    plot::place(sheet, part, 100, 50);
    REQUIRE(sheet.shapes.size() == 4);
    CHECK(sheet.shapes[0].clip == 0);
    CHECK(sheet.shapes[2].clip == 1);
    CHECK(sheet.shapes[1].clip == -1);
    CHECK(sheet.clips[1].x == 101);
    CHECK(sheet.shapes[2].path[1].at[0] == 102);
    CHECK(sheet.shapes[3].y == 51);
    CHECK(sheet.width == 300);
}

TEST_CASE("characters of Helvetica: codes, and widths of its metrics") {
    CHECK(plot::helvetica_codes("a\u2212b\u2026\u00B1\u4E2D\n") ==
          "a\x01"
          "b\x85\xB1? ");
    CHECK(plot::helvetica_codes("\xff") == "?");
    CHECK(plot::helvetica_width("Hello", false) == 722 + 556 + 222 + 222 + 556);
    CHECK(plot::helvetica_width("Hello", true) == 722 + 556 + 278 + 278 + 611);
    CHECK(plot::helvetica_width("~}|{z", false) == 584 + 334 + 260 + 334 + 500);
    CHECK(plot::helvetica_width("~}|{z", true) == 584 + 389 + 280 + 389 + 500);
    CHECK(plot::helvetica_width("0123456789", false) == 5560);
    CHECK(plot::helvetica_width("\x01", false) == 584);
}
