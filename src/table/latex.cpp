#include "table/latex.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/text.h"

namespace longreach::table {

namespace {

constexpr std::array<std::pair<std::string_view, std::string_view>, 25> replaced{{
    {"\\", "\\textbackslash{}"},
    {"{", "\\{"},
    {"}", "\\}"},
    {"#", "\\#"},
    {"$", "\\$"},
    {"%", "\\%"},
    {"&", "\\&"},
    {"_", "\\_"},
    {"^", "\\textasciicircum{}"},
    {"~", "\\textasciitilde{}"},
    {"<", "\\textless{}"},
    {">", "\\textgreater{}"},
    {"|", "\\textbar{}"},
    {"\"", "\\char34{}"},
    {"--", "-{}"},  // of the first hyphen: no dash
    {"\u2212", "$-$"},
    {"\u00B1", "$\\pm$"},
    {"\u221A", "$\\surd$"},
    {"\u2264", "$\\leq$"},
    {"\u2265", "$\\geq$"},
    {"\u00D7", "$\\times$"},
    {"\u2026", "\\ldots{}"},
    {"\u00A0", "~"},
    {"\n", " "},
    {"\t", " "},
}};

// The columns of a row as they are set: the ends of an interval share one.
std::vector<std::string> columns_of(const DataTable& table, const std::vector<std::string>& cells,
                                    bool heading) {
    std::vector<std::string> out = cells;
    if (table.interval < 0) return out;
    const auto at = static_cast<size_t>(table.interval);
    if (heading)
        out[at] = out[at].substr(0, out[at].rfind(" from"));
    else if (!cells[at].empty())
        out[at] = fmt::format("[{}, {}]", cells[at], cells[at + 1]);
    out.erase(out.begin() + static_cast<std::ptrdiff_t>(at) + 1);
    return out;
}

std::string cell_text(const Cell& cell) {
    if (cell.tone != "best") return latex_text(cell.text);
    // As on the page, only the mean is strong and not its error.
    const size_t at = std::min({cell.text.find(" ±"), cell.text.find(" ("), cell.text.size()});
    return fmt::format("\\textbf{{{}}}{}", latex_text(cell.text.substr(0, at)),
                       latex_text(cell.text.substr(at)));
}

std::string line_of(const std::vector<std::string>& cells) {
    // A bracket after \\ would be its argument.
    const char* guard = !cells[0].empty() && cells[0][0] == '[' ? "{}" : "";
    return fmt::format("    {}{} \\\\\n", guard, join(cells, " & "));
}

}  // namespace

std::string latex_text(std::string_view text) {
    std::string out;
    while (!text.empty()) {
        const auto found = std::find_if(replaced.begin(), replaced.end(),
                                        [&](const auto& r) { return text.starts_with(r.first); });
        if (found != replaced.end()) {
            out += found->second;
            text.remove_prefix(found->first == "--" ? 1 : found->first.size());
            continue;
        }
        const size_t length = utf8_sequence(text);
        const bool printable = length > 0 && static_cast<unsigned char>(text[0]) >= 0x20 && text[0] != 0x7F;
        out += printable ? text.substr(0, length) : std::string_view("?");
        text.remove_prefix(std::max<size_t>(length, 1));
    }
    return out;
}

std::string latex(const DataTable& table) {
    std::string form, rows;
    for (size_t i = 0; i < table.header.size(); ++i) {
        if (table.interval >= 0 && i == static_cast<size_t>(table.interval) + 1) continue;
        const bool number = !table.rows.empty() && i < table.rows[0].size() && table.rows[0][i].number;
        form += number ? 'r' : 'l';
    }
    std::vector<std::string> header;
    for (const std::string& name : table.header) header.push_back(latex_text(name));
    for (const std::vector<Cell>& row : table.rows) {
        std::vector<std::string> cells;
        for (const Cell& cell : row) cells.push_back(cell_text(cell));
        rows += line_of(columns_of(table, cells, false));
    }
    return fmt::format(
        "\\begin{{table}}\n  \\centering\n  \\caption{{{}}}\n  \\label{{tab:{}}}\n  "
        "\\begin{{tabular}}{{{}}}\n"
        "    \\toprule\n{}    \\midrule\n{}    \\bottomrule\n  \\end{{tabular}}\n\\end{{table}}\n",
        latex_text(table.caption), table.name, form, line_of(columns_of(table, header, true)), rows);
}

}  // namespace longreach::table
