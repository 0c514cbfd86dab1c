// The pieces of page.html with their places filled in.
#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "report/page_parts.h"
#include "report/page_source.h"
#include "table/latex.h"

namespace longreach::report {

namespace {

// The text of a piece, without its last newline.
std::string_view piece_of(std::string_view name) {
    const std::string_view file = page_html();
    const std::string head = fmt::format("<!-- {} -->\n", name);
    const size_t at = file.find(head);
    check(at != file.npos, "page.html has no piece '{}'", name);
    const std::string_view rest = file.substr(at + head.size());
    return rest.substr(0, std::min(rest.find("\n<!-- "), rest.size()));
}

}  // namespace

std::string filled(std::string_view piece, std::initializer_list<Place> places) {
    std::string_view text = piece_of(piece);
    std::string out;
    // One pass: braces inside a value are not places.
    for (size_t at; (at = text.find("{{")) != text.npos;) {
        out += text.substr(0, at);
        const size_t end = text.find("}}", at);
        check(end != text.npos, "page.html: a place without end in '{}'", piece);
        const std::string_view name = text.substr(at + 2, end - at - 2);
        const auto place =
            std::find_if(places.begin(), places.end(), [&](auto& p) { return p.name == name; });
        check(place != places.end(), "page.html: nothing for '{}' in '{}'", name, piece);
        out += place->html;
        text.remove_prefix(end + 2);
    }
    return out += text;
}

namespace {

// The error of a mean, or the values of the seeds, in a fainter colour than the mean.
std::string toned(const std::string& text, bool number) {
    const size_t at = number ? std::min(text.find(" ± "), text.find(" (")) : std::string::npos;
    if (at == std::string::npos) return plot::escaped(text);
    return fmt::format("{}<span class=\"pm\">{}</span>", plot::escaped(text.substr(0, at)),
                       plot::escaped(text.substr(at)));
}

std::string cell_html(const table::Cell& cell) {
    std::string attributes = cell.heading ? " scope=\"row\"" : "", classes = cell.number ? "n" : "";
    if (!cell.tone.empty()) classes += (classes.empty() ? "" : " ") + cell.tone;
    if (!classes.empty()) attributes += fmt::format(" class=\"{}\"", classes);
    if (!cell.exact.empty() && cell.exact != cell.text)
        attributes += fmt::format(" data-v=\"{}\"", plot::escaped(cell.exact));
    return fmt::format("<{0}{1}>{2}</{0}>", cell.heading ? "th" : "td", attributes,
                       toned(cell.text, cell.number));
}

}  // namespace

std::string table_html(const PageContext& page, const table::DataTable& table) {
    if (page.extracts) page.extracts->tables.push_back(table);
    // With many columns the errors go below the means, or the table would be twice as wide as the page.
    constexpr size_t most_wide = 5;
    std::string header, rows;
    for (size_t i = 0; i < table.header.size(); ++i) {
        const bool number = !table.rows.empty() && i < table.rows[0].size() && table.rows[0][i].number;
        header += fmt::format("<th scope=\"col\"{}>{}</th>", number ? " class=\"n\"" : "",
                              plot::escaped(table.header[i]));
    }
    for (const std::vector<table::Cell>& row : table.rows) {
        rows += "<tr>";
        for (const table::Cell& cell : row) rows += cell_html(cell);
        rows += "</tr>\n";
    }
    return filled("table", {{"class", table.header.size() > most_wide ? "table many" : "table"},
                            {"caption", plot::escaped(table.caption)},
                            {"header", header},
                            {"latex", plot::escaped(table::latex(table))},
                            {"rows", rows}});
}

std::string folded(const PageContext& page, std::string_view summary, const table::DataTable& table) {
    return filled("folded", {{"summary", summary}, {"body", table_html(page, table)}});
}

}  // namespace longreach::report
