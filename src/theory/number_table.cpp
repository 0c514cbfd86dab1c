#include "theory/number_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/text.h"

namespace longreach::theory {

namespace {

std::string for_people(const Cell& cell) {
    if (!cell.text.empty()) return cell.text;
    const double x = cell.value;
    if (std::isnan(x)) return "-";
    if (x == std::floor(x) && std::abs(x) < 1e8) return fmt::format("{:.0f}", x);
    return fmt::format("{:.5g}", x);
}

// A field with a comma, quote or line break stands in quotes, its own quotes doubled.
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

std::string for_programs(const Cell& cell) {
    if (!cell.text.empty()) return field(cell.text);
    const double x = cell.value;
    return std::isnan(x) ? "" : fmt::format("{}", x);
}

void check_shape(const NumberTable& table) {
    for (const std::vector<Cell>& row : table.rows)
        check(row.size() == table.columns.size(), "table {}: {} cells under {} columns", table.name,
              row.size(), table.columns.size());
}

}  // namespace

std::string aligned(const NumberTable& table) {
    check_shape(table);
    std::vector<std::vector<std::string>> lines = {table.columns};
    for (const std::vector<Cell>& row : table.rows) {
        lines.emplace_back();
        for (const Cell& cell : row) lines.back().push_back(for_people(cell));
    }
    std::vector<size_t> widths(table.columns.size());
    for (const std::vector<std::string>& line : lines)
        for (size_t i = 0; i < line.size(); ++i) widths[i] = std::max(widths[i], line[i].size());
    std::string out = table.title + "\n";
    for (const std::vector<std::string>& line : lines) {
        for (size_t i = 0; i < line.size(); ++i) out += fmt::format("  {:>{}}", line[i], widths[i]);
        out += '\n';
    }
    return out;
}

std::string csv(const NumberTable& table) {
    check_shape(table);
    std::vector<std::string> fields;
    for (const std::string& column : table.columns) fields.push_back(field(column));
    std::string out = join(fields, ",") + "\n";
    for (const std::vector<Cell>& row : table.rows) {
        fields.clear();
        for (const Cell& cell : row) fields.push_back(for_programs(cell));
        out += join(fields, ",") + "\n";
    }
    return out;
}

}  // namespace longreach::theory
