#include "io/csv.h"

#include <charconv>
#include <cmath>

#include "base/error.h"
#include "base/text.h"
#include "io/file.h"

namespace longreach::io {

namespace {

constexpr uint64_t largest = uint64_t{1} << 30;

template <class T>
T parsed(std::string_view text, const std::string& path, size_t line) {
    T value{};
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    require(error == std::errc() && end == text.data() + text.size(), ExitCode::data, "{}:{}: {} is not {}",
            path, line, quoted(text), std::is_integral_v<T> ? "an integer" : "a number");
    return value;
}

}  // namespace

std::optional<CsvTable> CsvTable::read(const std::string& path) {
    if (kind_of(path, Links::follow) == PathKind::missing) return std::nullopt;
    CsvTable table;
    table.path_ = path;
    table.content_ = read_file(path, largest, Links::follow);
    const std::string& content = table.content_;
    size_t number = 0;
    for (size_t begin = 0; begin < content.size();) {
        const size_t end = content.find('\n', begin);
        if (end == std::string::npos) break;
        ++number;
        std::vector<std::pair<size_t, size_t>> cells;
        for (size_t at = begin; at <= end;) {
            const size_t stop = std::min(content.find(',', at), end);
            cells.emplace_back(at, stop - at);
            at = stop + 1;
        }
        if (table.header_.empty()) {
            for (const auto& [at, size] : cells) table.header_.push_back(content.substr(at, size));
        } else if (end > begin) {
            require(cells.size() == table.header_.size(), ExitCode::data, "{}:{}: {} columns instead of {}",
                    path, number, cells.size(), table.header_.size());
            table.rows_.push_back({number, std::move(cells)});
        }
        begin = end + 1;
    }
    return table;
}

size_t CsvTable::column(std::string_view name) const {
    for (size_t i = 0; i < header_.size(); ++i)
        if (header_[i] == name) return i;
    return absent;
}

size_t CsvTable::required(std::string_view name) const {
    const size_t at = column(name);
    // A file whose header is not finished yet has no rows, so no cell is read.
    require(at != absent || rows_.empty(), ExitCode::data, "{}: there is no column '{}'", path_, name);
    return at;
}

std::string_view CsvTable::text(size_t row, size_t column) const {
    if (column == absent) return {};
    const auto [at, size] = rows_[row].cells[column];
    return std::string_view(content_).substr(at, size);
}

int64_t CsvTable::integer(size_t row, size_t column) const {
    return parsed<int64_t>(text(row, column), path_, rows_[row].line);
}

std::optional<double> CsvTable::measured(size_t row, size_t column) const {
    const std::string_view cell = text(row, column);
    if (cell.empty()) return std::nullopt;
    return parsed<double>(cell, path_, rows_[row].line);
}

double CsvTable::number(size_t row, size_t column) const {
    return measured(row, column).value_or(NAN);
}

}  // namespace longreach::io
