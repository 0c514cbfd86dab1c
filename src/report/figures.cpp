#include "report/figures.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "plot/drawing.h"
#include "plot/helvetica.h"
#include "plot/markup.h"
#include "report/methods.h"
#include "report/page.h"
#include "report/sources.h"
#include "table/latex.h"

namespace longreach::report {

namespace {

constexpr double gap = 14;  // between panels, in pixels
constexpr double swatch_width = 28, row_height = 20, letter = 12;
constexpr const char* ink = "#1b1f24";  // --ink of chart.css
constexpr size_t most_rows = 60;        // of a table that a page of paper holds

// Names of series below a picture, in rows from left to right; returns the height.
double add_legend(plot::Drawing& sheet, const std::vector<plot::SeriesStyle>& styles,
                  const std::vector<size_t>& series, double top) {
    double x = 8, y = top;
    for (const size_t i : series) {
        const std::string& name = styles[i].name;
        const double text = letter * plot::helvetica_width(plot::helvetica_codes(name), false) / 1000;
        const double width = swatch_width + 6 + text;
        if (x > 8 && x + width > sheet.width - 8) x = 8, y += row_height;
        plot::place(sheet, plot::read_drawing(plot::swatch_svg(styles[i])), x, y + 4);
        plot::Shape label;
        label.text = name;
        label.x = x + swatch_width + 6;
        label.y = y + 14;
        label.size = letter;
        label.fill = ink;
        sheet.shapes.push_back(label);
        x += width + 18;
    }
    return series.empty() ? 0 : y + row_height - top;
}

plot::Drawing drawn(const Picture& picture, const std::vector<plot::SeriesStyle>& styles) {
    plot::Drawing sheet;
    sheet.title = picture.title;
    const size_t count = picture.charts.size();
    // As on the page: two rows of two rather than three and one.
    const size_t columns = count == 4 ? 2 : std::min<size_t>(count, 3);
    double x = 0, y = 0, row = 0;
    for (size_t i = 0; i < count; ++i) {
        const plot::Drawing chart = plot::read_drawing(picture.charts[i]);
        if (i % columns == 0 && i > 0) x = 0, y += row + gap, row = 0;
        plot::place(sheet, chart, x, y);
        x += chart.width + gap;
        row = std::max(row, chart.height);
        sheet.width = std::max(sheet.width, x - gap);
    }
    sheet.height = y + row;
    sheet.height += add_legend(sheet, styles, picture.legend, sheet.height + 4);
    if (!picture.legend.empty()) sheet.height += 8;
    return sheet;
}

// `name`, or the name with a number that no earlier one has.
std::string unused(std::set<std::string>& used, const std::string& name) {
    std::string out = name;
    for (int i = 2; !used.insert(out).second; ++i) out = fmt::format("{}-{}", name, i);
    return out;
}

std::string tables_file(const std::vector<table::DataTable>& tables) {
    std::string out = "% longreach report: tables. In the preamble: \\usepackage{booktabs}\n";
    std::set<std::string> labels, seen;
    for (table::DataTable table : tables) {
        table.name = plot::identifier(table.name);
        // The data of a chart may also stand as a table of its own.
        table::DataTable unnamed = table;
        unnamed.name.clear();
        if (!seen.insert(table::latex(unnamed)).second) continue;
        table.name = unused(labels, table.name);
        if (table.rows.size() > most_rows)
            out += fmt::format("\n% {}: {} rows, more than a page holds; copy them from report.html\n",
                               table.name, table.rows.size());
        else
            out += "\n" + table::latex(table);
    }
    return out;
}

}  // namespace

std::vector<PaperFile> paper_files(const Collection& collection) {
    Extracts extracts;
    report_page(collection, {.extracts = &extracts});
    const Summary summary = summarize(collection);
    std::vector<PaperFile> files;
    std::set<std::string> names;
    for (const Picture& picture : extracts.pictures) {
        const std::string name = unused(names, plot::identifier(picture.name));
        const plot::Drawing drawing = drawn(picture, summary.styles);
        files.push_back({name + ".svg", plot::svg_file(drawing)});
        files.push_back({name + ".pdf", plot::pdf_file(drawing)});
    }
    files.push_back({"tables.tex", tables_file(extracts.tables)});
    const Methods methods = methods_of(collection, summary);
    if (methods.empty()) return files;
    files.push_back({"methods.tex", "% longreach report: methods.\n" + methods.latex});
    files.push_back({"references.bib", "% longreach report: references.\n\n" + bibliography(methods.keys)});
    return files;
}

}  // namespace longreach::report
