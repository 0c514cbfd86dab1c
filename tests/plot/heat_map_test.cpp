// SVG: well formed, self-contained, one rectangle per cell where it belongs.
#include <doctest/doctest.h>

#include <cmath>
#include <cstdlib>
#include <limits>
#include <string_view>

#include "plot/heat_map.h"

using namespace longreach;

namespace {

// What is wrong with a document made of elements, attributes in double quotes, text and named entities;
// empty if nothing is.
std::string malformed(std::string_view text) {
    std::vector<std::string> open;
    size_t roots = 0;
    for (size_t i = 0; i < text.size();) {
        if (text[i] == '&') {
            const size_t end = text.find(';', i);
            const std::string_view name = text.substr(i, end == text.npos ? 1 : end - i + 1);
            if (name != "&amp;" && name != "&lt;" && name != "&gt;" && name != "&quot;") return "entity";
            i = end + 1;
            continue;
        }
        if (text[i] == '>') return "stray >";
        if (text[i] != '<') {
            if (open.empty() && text[i] != '\n') return "text outside the root";
            ++i;
            continue;
        }
        const size_t end = text.find('>', i);
        if (end == text.npos) return "open tag at the end";
        std::string_view tag = text.substr(i + 1, end - i - 1);
        i = end + 1;
        if (tag.starts_with('/')) {
            if (open.empty() || open.back() != tag.substr(1)) return "closes " + std::string(tag);
            open.pop_back();
            continue;
        }
        const bool empty = tag.ends_with('/');
        if (empty) tag.remove_suffix(1);
        const size_t name_end = std::min(tag.find(' '), tag.size());
        if (open.empty() && ++roots > 1) return "two roots";
        if (!empty) open.emplace_back(tag.substr(0, name_end));
        for (tag.remove_prefix(name_end); !tag.empty();) {  // ' name="value"'
            const size_t quote = tag.find("=\"");
            if (tag[0] != ' ' || quote == tag.npos || quote < 2) return "attribute" + std::string(tag);
            const size_t closing = tag.find('"', quote + 2);
            if (closing == tag.npos) return "value" + std::string(tag);
            if (tag.substr(quote, closing - quote).find('<') != tag.npos) return "< in a value";
            tag.remove_prefix(closing + 1);
        }
    }
    return open.empty() ? "" : "not closed: " + open.back();
}

size_t count(const std::string& text, std::string_view what) {
    size_t found = 0;
    for (size_t at = text.find(what); at != text.npos; at = text.find(what, at + 1)) ++found;
    return found;
}

plot::HeatMap sample() {
    plot::HeatMap map;
    map.title = "a < b & \"c\"";
    map.x_label = "across";
    map.y_label = "upwards";
    map.value_label = "value";
    map.columns = 2;
    map.rows = 2;
    map.y_max = 4;
    map.values = {0, 0.25, 0.75, 1};
    map.curve = {{0, 1}, {0.5, 2}, {0.9, 10}};
    map.curve_label = "limit";
    return map;
}

double lightness(const std::string& colour) {
    const auto channel = [&](size_t at) { return std::strtol(colour.substr(at, 2).c_str(), nullptr, 16); };
    return 0.2126 * static_cast<double>(channel(1)) + 0.7152 * static_cast<double>(channel(3)) +
           0.0722 * static_cast<double>(channel(5));
}

}  // namespace

TEST_CASE("the check of this test knows good from bad") {
    CHECK(malformed("<a b=\"1\"><c/>x &lt; y</a>\n").empty());
    for (const char* bad : {"<a>", "<a></b>", "<a b=1></a>", "<a b=\"1></a>", "<a>&</a>", "<a/><b/>", "x<a/>",
                            "<a>></a>", "<a", "<a b=\"<\"/>"})
        CHECK_MESSAGE(!malformed(bad).empty(), bad);
}

TEST_CASE("heat map is well formed and needs nothing from elsewhere") {
    const std::string text = plot::heat_map_svg(sample());
    CHECK(malformed(text) == "");
    CHECK(count(text, "http") == 1);  // the namespace
    CHECK(count(text, "href") == 0);
    CHECK(count(text, "nan") == 0);
    CHECK(count(text, ">-0<") == 0);
    CHECK(count(text, ">0<") + count(text, ">0.0<") == 3);  // where both axes and the colour bar begin
    for (const char* wanted : {"a &lt; b &amp; &quot;c&quot;", ">across<", ">upwards<", ">value<",
                               ">dashed: limit<", "class=\"ground\"", "prefers-color-scheme: dark"})
        CHECK_MESSAGE(text.find(wanted) != text.npos, wanted);
}

TEST_CASE("heat map: rows go upwards, colours follow values, the curve ends where the map does") {
    const std::string text = plot::heat_map_svg(sample());
    CHECK(count(text, "</title></rect>") == 4);
    // The lowest row first: its cells lie at the larger y.
    const auto cell = [&](double value) {
        const std::string label = value == 0    ? ": 0<"
                                  : value == 1  ? ": 1<"
                                  : value < 0.5 ? ": 0.25<"
                                                : ": 0.75<";
        const size_t at = text.find(label);
        REQUIRE(at != text.npos);
        return text.substr(text.rfind("<rect", at), at - text.rfind("<rect", at));
    };
    const auto number = [](const std::string& element, const char* name) {
        return std::strtod(element.c_str() + element.find(name) + std::string_view(name).size(), nullptr);
    };
    CHECK(number(cell(0), " y=\"") > number(cell(0.75), " y=\""));
    CHECK(number(cell(0), " x=\"") == number(cell(0.75), " x=\""));
    CHECK(number(cell(0), " x=\"") < number(cell(0.25), " x=\""));
    CHECK(cell(0).find(plot::heat_colour(0)) != text.npos);
    CHECK(cell(1).find(plot::heat_colour(1)) != text.npos);
    const size_t points = text.find("points=\"");
    const std::string list = text.substr(points + 8, text.find('"', points + 8) - points - 8);
    CHECK(count(list, ",") == 2);  // the third point is above the map
}

TEST_CASE("values out of range take the end's colour, values that are none a grey") {
    plot::HeatMap map = sample();
    map.values = {-5, 7, std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()};
    const std::string text = plot::heat_map_svg(map);
    CHECK(malformed(text) == "");
    CHECK(count(text, "#808080") == 2);
    CHECK(text.find(plot::heat_colour(0)) != text.npos);
    CHECK(text.find(plot::heat_colour(1)) != text.npos);
}

TEST_CASE("colours grow lighter all the way") {
    for (int i = 1; i <= 100; ++i)
        CHECK(lightness(plot::heat_colour(i / 100.0)) >= lightness(plot::heat_colour((i - 1) / 100.0)));
    CHECK(plot::heat_colour(-1) == plot::heat_colour(0));
    CHECK(plot::heat_colour(2) == plot::heat_colour(1));
}
