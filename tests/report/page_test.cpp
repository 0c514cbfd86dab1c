// What a reader of the page sees first, and whether it can be read: contrasts of text, the view that a chart begins with, and
// the row that says what made a run.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <regex>
#include <string>

#include "plot/chart.h"
#include "report/collect.h"
#include "report/page.h"
#include "sample_runs.h"

using namespace longreach;
using namespace longreach::test;

namespace {

using Palette = std::map<std::string, std::string>;  // "ink": "#1b1f24"

Palette palette_of(const std::string& css) {
    Palette out;
    const std::regex entry("--(\\w+): (#[0-9a-f]{6})");
    for (std::sregex_iterator at(css.begin(), css.end(), entry), end; at != end; ++at)
        out.emplace(at->str(1), at->str(2));
    return out;
}

// Relative luminance and contrast as WCAG 2 defines them.
double luminance(const std::string& colour) {
    double out = 0;
    const double weights[] = {0.2126, 0.7152, 0.0722};
    for (size_t i = 0; i < 3; ++i) {
        const double v = std::stoi(colour.substr(1 + 2 * i, 2), nullptr, 16) / 255.0;
        out += weights[i] * (v <= 0.04045 ? v / 12.92 : std::pow((v + 0.055) / 1.055, 2.4));
    }
    return out;
}

double contrast(const std::string& a, const std::string& b) {
    const double x = luminance(a), y = luminance(b);
    return (std::max(x, y) + 0.05) / (std::min(x, y) + 0.05);
}

std::string page_of(const SampleSweep& sweep) {
    const TempDir dir;
    SampleWriter(sweep).write_sweep(dir.path());
    return report::report_page(report::collect({dir.path()}));
}

// The view that the loss chart begins with, by its pressed button.
std::string first_view(const std::string& page) {
    const size_t chart = page.find("data-chart=\"loss-by-length\"");
    REQUIRE(chart != page.npos);
    std::smatch found;
    const std::string figure = page.substr(chart, page.find("</figure>", chart) - chart);
    CHECK(figure.find("data-show=\"plain\"") != figure.npos);
    CHECK(figure.find("data-show=\"difference\"") != figure.npos);
    REQUIRE(std::regex_search(figure, found, std::regex("data-show=\"(\\w+)\" aria-pressed=\"true\"")));
    const std::string view = found[1];
    CHECK(figure.find("data-view=\"" + view + "\">") != figure.npos);  // the others are hidden
    for (const char* other : {"plain", "log", "difference"})
        if (view != other) CHECK(figure.find(fmt::format("data-view=\"{}\" hidden>", other)) != figure.npos);
    return view;
}

}  // namespace

TEST_CASE("page: every text has a contrast of 4.5 to what is behind it, in light and dark") {
    const std::string charts = plot::chart_style();
    const size_t dark = charts.find("@media (prefers-color-scheme: dark)");
    REQUIRE(dark != charts.npos);
    for (const std::string& css : {charts.substr(0, dark), charts.substr(dark)}) {
        const Palette palette = palette_of(css);
        REQUIRE(palette.size() == 22);
        for (const auto& [name, colour] : palette) {
            // Letters are of ink, soft and t0 to t7; lines of c0 to c7, grid and axis.
            if (name != "ink" && name != "soft" && name[0] != 't') continue;
            for (const char* ground : {"ground", "raised"})
                CHECK_MESSAGE(contrast(colour, palette.at(ground)) >= 4.5, name << " on " << ground);
        }
    }
    // The rules give text no other colour, and none that shines through.
    const std::string page = page_of({});
    const std::string style = page.substr(page.find("<style>"), page.find("</style>") - page.find("<style>"));
    const std::regex rule("([^{}]+)\\{([^{}]*)\\}"), colour("(?:^|[; ])color: var\\(--(\\w+)\\)"),
        letters("text|name|value|heading|panel-title"), fill("fill: var\\(--(\\w+)\\)");
    size_t coloured = 0;
    for (std::sregex_iterator at(style.begin(), style.end(), rule), end; at != end; ++at) {
        const std::string selector = at->str(1), body = at->str(2);
        CAPTURE(selector);
        std::smatch found;
        if (std::regex_search(body, found, colour)) {
            ++coloured;
            CHECK((found[1] == "ink" || found[1] == "soft"));
            CHECK(body.find("opacity") == body.npos);
        }
        if (std::regex_search(selector, letters) && std::regex_search(body, found, fill)) {
            ++coloured;
            CHECK((found[1] == "ink" || found[1] == "soft" || found[1] == "t"));
        }
    }
    CHECK(coloured > 15);
}

TEST_CASE("page: the loss chart begins with a view in which one line does not squeeze the others") {
    CHECK(first_view(page_of({})) == "plain");
    const SampleSweep squeezed{
        .variants = {{"rope", 0.04, {}}, {"logn", 0.02, {}}, {"si", 0.03, {}}, {"nope", 3, {}}}};
    const std::string page = page_of(squeezed);
    CHECK(first_view(page) == "log");
    CHECK(page.find("so the chart begins as: log.") != page.npos);

    plot::LineChart chart;
    const auto add = [&](double low, double high) {
        chart.lines.push_back({chart.lines.size(), {{1, low}, {2, high}}});
    };
    add(1, 2);
    add(1, 9);
    CHECK(plot::room_of_others(chart) == 1);  // which of two is the other?
    add(1.5, 3);
    CHECK(plot::room_of_others(chart) == doctest::Approx(0.25));
    chart.log_y = true;
    CHECK(plot::room_of_others(chart) == doctest::Approx(0.5));
}

TEST_CASE("page: each run has its commit, processor, training data and the files of its config") {
    const std::string page = page_of({});
    const size_t table = page.find("Runs and what made them");
    REQUIRE(table != page.npos);
    const std::string row = page.substr(page.find("rope.seed2", table), 1200);
    for (const char* value :
         {"0123456789ab", "A processor", "00000000000000aa", "base.json, over.json, sweep.json"})
        CHECK_MESSAGE(row.find(value) != row.npos, value);
}
