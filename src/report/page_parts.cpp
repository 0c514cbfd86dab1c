#include "report/page_parts.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "base/text.h"

namespace longreach::report {

std::string paragraph(const std::string& text) {
    return "<p>" + plot::escaped(text) + "</p>\n";
}

std::string subheading(const std::string& text) {
    return "<h3>" + plot::escaped(text) + "</h3>\n";
}

namespace {

// Buttons that show and hide series on the whole page.
std::string legend(const std::vector<plot::SeriesStyle>& styles, const std::vector<size_t>& series) {
    if (series.size() < 2) return {};
    std::string chips;
    for (size_t i : series)
        chips += filled("chip", {{"series", std::to_string(i)},
                                 {"swatch", plot::swatch_svg(styles[i])},
                                 {"name", plot::escaped(styles[i].name)}});
    return filled("legend", {{"chips", chips}});
}

}  // namespace

std::vector<size_t> series_of(const plot::LineChart& chart) {
    std::vector<size_t> out;
    for (const plot::ChartLine& line : chart.lines)
        if (!line.points.empty() && std::find(out.begin(), out.end(), line.series) == out.end())
            out.push_back(line.series);
    std::sort(out.begin(), out.end());
    return out;
}

std::string figure(const PageContext& page, const std::string& name, const Charts& charts,
                   const std::vector<size_t>& series, const std::string& caption, table::DataTable table) {
    table.name = name;
    if (page.extracts)
        for (Picture picture : charts.pictures) {
            picture.name = name + picture.name;
            page.extracts->pictures.push_back(std::move(picture));
        }
    return filled("figure", {{"name", plot::escaped(name)},
                             {"charts", charts.html},
                             {"legend", legend(page.styles(), series)},
                             {"caption", plot::escaped(caption)},
                             {"table", folded(page, "Data", table)}});
}

std::vector<View> views_of(const PageContext& page, const plot::LineChart& chart, int digits) {
    std::vector<View> views{{"plain", chart.log_y ? "log" : "linear", chart}};
    const auto add = [&](const char* key, const char* text, const plot::LineChart& other) {
        if (series_of(other).empty()) return;
        views.push_back({key, text, other});
        views.back().chart.id += std::string("-") + key;
    };
    if (chart.log_x)
        add("log", chart.log_y ? "linear" : "log", plot::with_log_axes(chart, false));
    else
        add("log", chart.log_y ? "linear" : "log, both axes", plot::with_log_axes(chart, !chart.log_y));
    if (series_of(chart).size() < 2) return views;
    plot::LineChart difference = plot::minus_baseline(chart, page.summary.baseline, digits);
    const std::string baseline = page.collection.baseline_name();
    difference.title += ", difference to " + baseline;
    difference.y_label += ", minus " + table::shortened(baseline, 14);
    add("difference", "difference to the baseline", difference);
    return views;
}

std::vector<View> paired_views(const PageContext& page, const plot::LineChart& chart,
                               const std::function<const LossesByLength*(size_t series)>& loss_of) {
    std::vector<View> views = views_of(page, chart, 4);
    if (views.back().key != "difference") return views;
    const LossesByLength& baseline = *loss_of(page.summary.baseline);
    for (plot::ChartLine& line : views.back().chart.lines)
        for (plot::ChartPoint& p : line.points) {
            const auto length = static_cast<int64_t>(p.x);
            const MeanInterval m = paired_difference(loss_of(line.series)->at(length), baseline.at(length));
            if (!m.has_interval() || line.series == page.summary.baseline) continue;
            p.y = m.mean;
            p.low = m.mean - m.standard_error;
            p.high = m.mean + m.standard_error;
            p.text = table::signed_fixed(m.mean, 4) + " ± " + table::fixed(m.standard_error, 4);
        }
    return views;
}

size_t readable_view(const std::vector<View>& views) {
    constexpr double enough = 0.5, gain = 1.2;  // another view has to show clearly more
    const double first = plot::room_of_others(views.at(0).chart);
    if (first >= enough) return 0;
    size_t best = 0;
    double most = first * gain;
    for (size_t i = 1; i < views.size(); ++i)
        if (const double room = plot::room_of_others(views[i].chart); room > most) best = i, most = room;
    return best;
}

std::string line_figure(const PageContext& page, const std::string& name, const std::vector<View>& views,
                        const std::string& caption, const table::DataTable& table, size_t shown) {
    const std::vector<size_t> series = series_of(views.at(0).chart);
    // At the ends of its lines a chart shortens long names.
    const bool whole = std::all_of(series.begin(), series.end(), [&](size_t i) {
        const std::string& text = page.styles()[i].name;
        return table::shortened(text, plot::label_characters) == text;
    });
    std::string buttons;
    Charts charts;
    for (const View& view : views) {
        const bool first = &view == views.data(), open = &view == &views.at(shown);
        const std::string wide = plot::line_svg(view.chart, page.styles(), plot::ChartSize::wide);
        charts.pictures.push_back(
            {first ? "" : "-" + view.key, view.chart.title, {wide}, whole ? std::vector<size_t>() : series});
        buttons += filled(
            "view button",
            {{"key", view.key}, {"pressed", open ? "true" : "false"}, {"text", plot::escaped(view.text)}});
        charts.html +=
            filled("view", {{"key", view.key},
                            {"hidden", open ? "" : " hidden"},
                            {"wide", wide},
                            {"narrow", plot::line_svg(view.chart, page.styles(), plot::ChartSize::narrow)}});
    }
    if (views.size() > 1) charts.html = filled("views", {{"buttons", buttons}}) + charts.html;
    return figure(page, name, charts, series, caption, table);
}

Charts panels(const PageContext& page, const std::vector<plot::LineChart>& charts, const std::string& title) {
    // Four panels make two rows of two rather than three and one.
    const bool two = charts.size() == 2 || charts.size() == 4;
    std::string html = two ? "<div class=\"panels two\">" : "<div class=\"panels\">";
    Picture picture{.title = title};
    std::set<size_t> series;
    for (const plot::LineChart& chart : charts) {
        picture.charts.push_back(plot::line_svg(chart, page.styles(), plot::ChartSize::panel));
        html += picture.charts.back();
        for (const size_t i : series_of(chart)) series.insert(i);
    }
    picture.legend = {series.begin(), series.end()};
    return {html + "</div>\n", {picture}};
}

std::string chooser(const std::string& id, const std::vector<Menu>& menus,
                    const std::vector<ChosenPiece>& pieces, const std::vector<std::string>& first) {
    std::string out;
    // A single piece needs no menu.
    if (pieces.size() > 1) {
        std::string labels;
        for (size_t m = 0; m < menus.size(); ++m) {
            std::string options;
            for (const Choice& choice : menus[m].choices)
                options += fmt::format("<option value=\"{}\"{}>{}</option>", plot::escaped(choice.key),
                                       choice.key == first[m] ? " selected" : "", plot::escaped(choice.text));
            labels += filled("menu", {{"label", plot::escaped(menus[m].label)}, {"options", options}});
        }
        out += filled("menus", {{"id", id}, {"menus", labels}});
    }
    bool shown = false;
    for (const ChosenPiece& piece : pieces) {
        const bool match = piece.keys == first;
        shown |= match;
        out += filled("piece", {{"id", id},
                                {"key", plot::escaped(join(piece.keys, "|"))},
                                {"hidden", match ? "" : " hidden"},
                                {"body", piece.html}});
    }
    return out + filled("none", {{"id", id}, {"hidden", shown ? " hidden" : ""}});
}

std::vector<plot::Position> context_marks(const PageContext& page) {
    std::vector<plot::Position> out;
    for (int64_t context : page.summary.contexts)
        out.push_back(
            {static_cast<double>(context), fmt::format("trained at {}", table::short_length(context))});
    return out;
}

std::vector<plot::Tick> length_ticks(const std::vector<int64_t>& lengths) {
    std::vector<plot::Tick> out;
    for (int64_t length : lengths) out.push_back({static_cast<double>(length), table::short_length(length)});
    return out;
}

std::vector<plot::Position> length_places(const std::vector<int64_t>& lengths, const char* what) {
    std::vector<plot::Position> out;
    for (int64_t length : lengths)
        out.push_back({static_cast<double>(length), fmt::format("{} {}", what, grouped(length))});
    return out;
}

table::Cell seeds_cell(const std::vector<SeedValue>& values, int decimals) {
    table::Cell cell = table::number_cell(mean_interval(values).mean, decimals);
    if (values.size() < 2) return cell;
    std::vector<std::string> seeds;
    for (const SeedValue& v : values) seeds.push_back(table::fixed(v.value, std::min(decimals, 2)));
    cell.text += " (" + join(seeds, "/") + ")";
    return cell;
}

double mean_of(const std::vector<double>& values, double* error) {
    const MeanInterval m = mean_interval(values);
    if (error) *error = m.standard_error;
    return m.mean;
}

plot::ChartLine& add_means(const PageContext& page, size_t series, const SeedsByPosition& values,
                           const std::set<int64_t>& positions, plot::LineChart& chart,
                           table::DataTable& table) {
    plot::ChartLine& line = chart.lines.emplace_back();
    line.series = series;
    std::vector<table::Cell> row{table::name_cell(page.styles()[series].name)};
    for (int64_t x : positions) {
        const auto found = values.find(x);
        double error = NAN;
        const double mean = found == values.end() ? NAN : mean_of(found->second, &error);
        row.push_back(table::spread_cell(mean, error, 4));
        if (found == values.end()) continue;
        plot::ChartPoint p{static_cast<double>(x), mean};
        if (std::isfinite(error)) p.low = mean - error, p.high = mean + error;
        p.text = table::fixed(mean, 4);
        line.points.push_back(p);
    }
    table.rows.push_back(row);
    return line;
}

}  // namespace longreach::report
