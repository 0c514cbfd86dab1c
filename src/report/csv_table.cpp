#include "report/csv_table.h"

#include <algorithm>
#include <charconv>

#include "base/error.h"
#include "io/file.h"

namespace longreach {

namespace {

constexpr uint64_t largest_csv = uint64_t{256} << 20;

std::vector<std::string> cells_of(std::string_view line) {
    std::vector<std::string> cells;
    for (size_t comma; (comma = line.find(',')) != std::string_view::npos; line.remove_prefix(comma + 1))
        cells.emplace_back(line.substr(0, comma));
    cells.emplace_back(line);
    return cells;
}

}  // namespace

CsvTable CsvTable::read(const std::string& path) {
    const std::string text = read_file(path, largest_csv, Links::follow);
    CsvTable table;
    table.path_ = path;
    size_t number = 0;
    for (size_t begin = 0, end; (end = text.find('\n', begin)) != std::string::npos; begin = end + 1) {
        ++number;
        std::vector<std::string> cells = cells_of(std::string_view(text).substr(begin, end - begin));
        if (number == 1) {
            table.columns_ = std::move(cells);
            continue;
        }
        require(cells.size() == table.columns_.size(), ExitCode::data, "{}:{}: {} columns instead of {}",
                path, number, cells.size(), table.columns_.size());
        table.cells_.push_back(std::move(cells));
        table.lines_.push_back(number);
    }
    require(number > 0, ExitCode::data, "{} has no header", path);
    return table;
}

bool CsvTable::has(std::string_view column) const {
    return std::find(columns_.begin(), columns_.end(), column) != columns_.end();
}

const std::string& CsvTable::text(size_t row, std::string_view column) const {
    static const std::string none;
    const auto it = std::find(columns_.begin(), columns_.end(), column);
    return it == columns_.end() ? none : cells_[row][static_cast<size_t>(it - columns_.begin())];
}

std::optional<double> CsvTable::number(size_t row, std::string_view column) const {
    const std::string& cell = text(row, column);
    if (cell.empty()) return std::nullopt;
    double value = 0;
    const auto [end, failed] = std::from_chars(cell.data(), cell.data() + cell.size(), value);
    require(failed == std::errc() && end == cell.data() + cell.size(), ExitCode::data,
            "{}:{}: '{}' is not a number", path_, lines_[row], cell);
    return value;
}

std::optional<int64_t> CsvTable::integer(size_t row, std::string_view column) const {
    const std::string& cell = text(row, column);
    if (cell.empty()) return std::nullopt;
    int64_t value = 0;
    const auto [end, failed] = std::from_chars(cell.data(), cell.data() + cell.size(), value);
    require(failed == std::errc() && end == cell.data() + cell.size(), ExitCode::data,
            "{}:{}: '{}' is not a whole number", path_, lines_[row], cell);
    return value;
}

void CsvTable::keep_largest(std::string_view column) {
    if (!has(column)) return;
    std::optional<int64_t> largest;
    for (size_t i = 0; i < rows(); ++i) largest = std::max(largest, integer(i, column));
    for (size_t i = rows(); i-- > 0;)
        if (integer(i, column) != largest) {
            cells_.erase(cells_.begin() + static_cast<std::ptrdiff_t>(i));
            lines_.erase(lines_.begin() + static_cast<std::ptrdiff_t>(i));
        }
}

}  // namespace longreach
