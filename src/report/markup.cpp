#include "report/markup.h"

#include <fmt/format.h>

#include <cmath>

#include "base/hash.h"
#include "base/text.h"
#include "report/scale.h"

namespace longreach::report {

std::string escaped(std::string_view text) {
    std::string out;
    while (!text.empty()) {
        const size_t length = utf8_sequence(text);
        const unsigned char c = static_cast<unsigned char>(text[0]);
        if (length == 0 || (c < 0x20 && c != '\n' && c != '\t') || c == 0x7F)
            out += "\uFFFD";
        else if (c == '&')
            out += "&amp;";
        else if (c == '<')
            out += "&lt;";
        else if (c == '>')
            out += "&gt;";
        else if (c == '"')
            out += "&quot;";
        else if (c == '\'')
            out += "&#39;";
        else
            out += text.substr(0, length);
        text.remove_prefix(std::max<size_t>(length, 1));
    }
    return out;
}

std::string identifier(std::string_view text) {
    constexpr size_t longest = 64;
    std::string out;
    for (const char c : text.substr(0, longest)) {
        const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
        out += plain || c == '-' || c == '_' || c == '.' ? c : '-';
    }
    return out == text ? out : fmt::format("{}-{}", out, format_hash64(xxh64(text)));
}

Cell name_cell(std::string text) {
    Cell cell{std::move(text)};
    cell.number = false;
    cell.heading = true;
    return cell;
}

Cell number_cell(double value, int decimals) {
    if (std::isnan(value)) return {""};
    return {fixed(value, decimals), exact(value)};
}

Cell significant_cell(double value) {
    if (std::isnan(value)) return {""};
    return {significant(value), exact(value)};
}

Cell spread_cell(double mean, double error, int decimals) {
    if (std::isnan(error)) return number_cell(mean, decimals);
    return {fixed(mean, decimals) + " ± " + fixed(error, decimals), exact(mean) + " ± " + exact(error)};
}

namespace {

// The error of a mean, or the seeds behind it, a little quieter than the mean.
std::string toned(const std::string& text, bool number) {
    const size_t at = number ? std::min(text.find(" ± "), text.find(" (")) : std::string::npos;
    if (at == std::string::npos) return escaped(text);
    return fmt::format("{}<span class=\"pm\">{}</span>", escaped(text.substr(0, at)),
                       escaped(text.substr(at)));
}

}  // namespace

std::string table_html(const DataTable& table) {
    // The errors of many columns go under their means, or the table would be twice as wide as the page.
    constexpr size_t most_wide = 5;
    std::string out = std::string(table.header.size() > most_wide ? "<div class=\"table many\">"
                                                                  : "<div class=\"table\">") +
                      "<div class=\"copy\"><button type=\"button\" data-copy=\"csv\">Copy CSV</button>"
                      "<button type=\"button\" data-copy=\"markdown\">Copy Markdown</button></div>"
                      "<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"" +
                      escaped(table.caption) + "\"><table><caption>" + escaped(table.caption) +
                      "</caption><thead><tr>";
    for (size_t i = 0; i < table.header.size(); ++i) {
        const bool number = !table.rows.empty() && i < table.rows[0].size() && table.rows[0][i].number;
        out += fmt::format("<th scope=\"col\"{}>{}</th>", number ? " class=\"n\"" : "",
                           escaped(table.header[i]));
    }
    out += "</tr></thead><tbody>";
    for (const std::vector<Cell>& row : table.rows) {
        out += "<tr>";
        for (const Cell& cell : row) {
            std::string classes = cell.number ? "n" : "";
            if (!cell.tone.empty()) classes += (classes.empty() ? "" : " ") + cell.tone;
            const char* tag = cell.heading ? "th" : "td";
            out += fmt::format("<{}{}{}{}>{}</{}>", tag, cell.heading ? " scope=\"row\"" : "",
                               classes.empty() ? "" : " class=\"" + classes + "\"",
                               cell.exact.empty() || cell.exact == cell.text
                                   ? ""
                                   : " data-v=\"" + escaped(cell.exact) + "\"",
                               toned(cell.text, cell.number), tag);
        }
        out += "</tr>\n";
    }
    return out + "</tbody></table></div></div>\n";
}

std::string folded_table_html(const DataTable& table) {
    return "<details class=\"data\"><summary>Data</summary>" + table_html(table) + "</details>\n";
}

}  // namespace longreach::report
