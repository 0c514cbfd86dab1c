#include "report/page_parts.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/text.h"

namespace longreach::report {

std::string paragraph(const std::string& text) {
    return "<p>" + escaped(text) + "</p>\n";
}

std::string subheading(const std::string& text) {
    return "<h3>" + escaped(text) + "</h3>\n";
}

std::string legend(const std::vector<SeriesStyle>& styles, const std::vector<size_t>& series) {
    if (series.size() < 2) return {};
    std::string out = "<div class=\"legend\" role=\"group\" aria-label=\"Variants to show\">";
    for (size_t i : series)
        out += fmt::format(
            "<button type=\"button\" class=\"chip\" aria-pressed=\"true\" data-toggle=\"{}\">{}"
            "<span>{}</span></button>",
            i, swatch_svg(styles[i]), escaped(styles[i].name));
    return out + "<button type=\"button\" class=\"chip all\" data-all hidden>show all</button></div>\n";
}

std::vector<size_t> series_of(const LineChart& chart) {
    std::vector<size_t> out;
    for (const ChartLine& line : chart.lines)
        if (!line.points.empty() && std::find(out.begin(), out.end(), line.series) == out.end())
            out.push_back(line.series);
    std::sort(out.begin(), out.end());
    return out;
}

std::string figure(const std::string& name, const std::string& charts, const std::string& key,
                   const std::string& caption, const DataTable& table) {
    return fmt::format("<figure data-chart=\"{}\">{}{}<figcaption>{}</figcaption>{}</figure>\n",
                       escaped(name), charts, key, escaped(caption), folded_table_html(table));
}

std::string line_figure(const PageContext& page, const std::string& name, const LineChart& chart,
                        const std::string& caption, const DataTable& table) {
    return figure(
        name,
        line_svg(chart, page.styles(), ChartSize::wide) + line_svg(chart, page.styles(), ChartSize::narrow),
        legend(page.styles(), series_of(chart)), caption, table);
}

std::string panels(const PageContext& page, const std::vector<LineChart>& charts) {
    // Four in two rows rather than three and one.
    const bool two = charts.size() == 2 || charts.size() == 4;
    std::string out = two ? "<div class=\"panels two\">" : "<div class=\"panels\">";
    for (const LineChart& chart : charts) out += line_svg(chart, page.styles(), ChartSize::panel);
    return out + "</div>\n";
}

std::string chooser(const std::string& id, const std::vector<Menu>& menus,
                    const std::vector<ChosenPiece>& pieces, const std::vector<std::string>& first) {
    std::string out;
    // A single piece leaves nothing to choose.
    if (pieces.size() > 1) {
        out += fmt::format("<div class=\"menus\" data-menus=\"{}\">", id);
        for (size_t m = 0; m < menus.size(); ++m) {
            out += fmt::format("<label>{} <select>", escaped(menus[m].label));
            for (const Choice& choice : menus[m].choices)
                out += fmt::format("<option value=\"{}\"{}>{}</option>", escaped(choice.key),
                                   choice.key == first[m] ? " selected" : "", escaped(choice.text));
            out += "</select></label>";
        }
        out += "</div>\n";
    }
    bool shown = false;
    for (const ChosenPiece& piece : pieces) {
        const bool match = piece.keys == first;
        shown |= match;
        out += fmt::format("<div data-piece=\"{}\" data-key=\"{}\"{}>{}</div>\n", id,
                           escaped(join(piece.keys, "|")), match ? "" : " hidden", piece.html);
    }
    return out + fmt::format("<p class=\"none\" data-none=\"{}\"{}>Not measured in this combination.</p>\n",
                             id, shown ? " hidden" : "");
}

std::vector<Position> context_marks(const PageContext& page) {
    std::vector<Position> out;
    for (int64_t context : page.summary.contexts)
        out.push_back({static_cast<double>(context), fmt::format("trained at {}", short_length(context))});
    return out;
}

std::vector<Tick> length_ticks(const std::vector<int64_t>& lengths) {
    std::vector<Tick> out;
    for (int64_t length : lengths) out.push_back({static_cast<double>(length), short_length(length)});
    return out;
}

std::vector<Position> length_places(const std::vector<int64_t>& lengths, const char* what) {
    std::vector<Position> out;
    for (int64_t length : lengths)
        out.push_back({static_cast<double>(length), fmt::format("{} {}", what, full_length(length))});
    return out;
}

Cell seeds_cell(const std::vector<SeedValue>& values, int decimals) {
    Cell cell = number_cell(mean_interval(values).mean, decimals);
    if (values.size() < 2) return cell;
    std::vector<std::string> seeds;
    for (const SeedValue& v : values) seeds.push_back(fixed(v.value, std::min(decimals, 2)));
    cell.text += " (" + join(seeds, "/") + ")";
    return cell;
}

double mean_of(const std::vector<double>& values, double* error) {
    const MeanInterval m = mean_interval(values);
    if (error) *error = m.standard_error;
    return m.mean;
}

}  // namespace longreach::report
