#include "table/data_table.h"

#include <fmt/format.h>

#include <cmath>

#include "base/error.h"
#include "base/text.h"
#include "table/readable.h"

namespace longreach::table {

namespace {

std::string for_people(double x) {
    if (std::isnan(x)) return {};
    if (x == std::floor(x) && std::abs(x) < 1e8) return fmt::format("{:.0f}", x);
    return fmt::format("{:.5g}", x);
}

std::string field(const std::string& text) {
    if (text.find_first_of(",\"\n\r") == std::string::npos) return text;
    std::string out(1, '"');
    for (char c : text) {
        if (c == '"') out += c;
        out += c;
    }
    out += '"';
    return out;
}

void check_shape(const DataTable& table) {
    for (const std::vector<Cell>& row : table.rows)
        check(row.size() == table.header.size(), "table {}: {} cells under {} columns", table.name,
              row.size(), table.header.size());
}

}  // namespace

Cell::Cell(double value) : text(for_people(value)), exact(table::exact(value)) {}

Cell text_cell(std::string text) {
    return {std::move(text), {}, false};
}

Cell name_cell(std::string text) {
    Cell cell = text_cell(std::move(text));
    cell.heading = true;
    return cell;
}

Cell count_cell(int64_t value) {
    return {grouped(value), std::to_string(value)};
}

Cell number_cell(double value, int decimals) {
    if (std::isnan(value)) return "";
    return {fixed(value, decimals), exact(value)};
}

Cell significant_cell(double value) {
    if (std::isnan(value)) return "";
    return {significant(value), exact(value)};
}

Cell spread_cell(double mean, double error, int decimals) {
    if (std::isnan(error)) return number_cell(mean, decimals);
    return {fixed(mean, decimals) + " ± " + fixed(error, decimals), exact(mean) + " ± " + exact(error)};
}

std::string text_table(const DataTable& table, const Terminal& terminal) {
    check_shape(table);
    std::vector<TextLine> lines{{table.header.begin(), table.header.end()}};
    for (const std::vector<Cell>& row : table.rows) {
        lines.emplace_back();
        for (const Cell& cell : row) lines.back().emplace_back(cell.text.empty() ? "-" : cell.text);
    }
    return one_line(table.caption) + "\n" + text_table(lines, terminal);
}

std::string csv(const DataTable& table) {
    check_shape(table);
    std::vector<std::string> fields;
    for (const std::string& column : table.header) fields.push_back(field(column));
    std::string out = join(fields, ",") + "\n";
    for (const std::vector<Cell>& row : table.rows) {
        fields.clear();
        for (const Cell& cell : row) fields.push_back(field(cell.exact.empty() ? cell.text : cell.exact));
        out += join(fields, ",") + "\n";
    }
    return out;
}

}  // namespace longreach::table
