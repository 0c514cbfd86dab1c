#include "io/record_columns.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace longreach::io {

std::string cell_text(int64_t value, Column) {
    return fmt::format("{}", value);
}

std::string cell_text(double value, Column kind) {
    return kind == Column::blank && std::isnan(value) ? "" : fmt::format("{}", value);
}

std::string cell_text(const std::string& value, Column) {
    return value;
}

void read_cell(const CsvTable& table, size_t row, size_t column, int64_t& value) {
    value = table.integer(row, column);
}

void read_cell(const CsvTable& table, size_t row, size_t column, double& value) {
    value = table.number(row, column);
}

void read_cell(const CsvTable& table, size_t row, size_t column, std::string& value) {
    value = table.text(row, column);
}

size_t known_columns(std::string_view header, std::string_view newest, size_t fewest) {
    if (!newest.starts_with(header)) return 0;
    if (header.size() < newest.size() && newest[header.size()] != ',') return 0;
    const size_t columns = static_cast<size_t>(std::count(header.begin(), header.end(), ',')) + 1;
    return columns < fewest ? 0 : columns;
}

std::string first_cells(const std::string& line, size_t columns) {
    for (size_t at = 0; at < line.size(); ++at)
        if (line[at] == ',' && --columns == 0) return line.substr(0, at);
    return line;
}

}  // namespace longreach::io
