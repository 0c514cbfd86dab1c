// The columns of a record file (val.csv, positions.csv, ...), listed once: header, lines and reader follow from the list.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "io/csv.h"
#include "io/file.h"

namespace longreach::io {

enum class Column {
    required,  // an Error if a file lacks it
    plain,     // a file may lack it: the row keeps its default
    blank,     // plain, and NaN is an empty cell
};

// A number as the shortest text that reads back to the same bits.
std::string cell_text(int64_t value, Column kind);
std::string cell_text(double value, Column kind);
std::string cell_text(const std::string& value, Column kind);
template <class T>
std::string cell_text(const std::optional<T>& value, Column kind) {
    return value ? cell_text(*value, kind) : std::string();
}

void read_cell(const CsvTable& table, size_t row, size_t column, int64_t& value);
void read_cell(const CsvTable& table, size_t row, size_t column, double& value);
void read_cell(const CsvTable& table, size_t row, size_t column, std::string& value);
template <class T>
void read_cell(const CsvTable& table, size_t row, size_t column, std::optional<T>& value) {
    if (!table.text(row, column).empty()) read_cell(table, row, column, value.emplace());
}

// Number of columns in the header of a file, which may be from an earlier version: those of the newest header
// without some of the last ones. 0: another header, or fewer columns than `fewest`.
size_t known_columns(std::string_view header, std::string_view newest, size_t fewest);
// The first `columns` cells of a line.
std::string first_cells(const std::string& line, size_t columns);

template <class Row, class T>
struct RecordColumn {
    const char* name;
    T Row::*member;
    Column kind;
};
template <class Row, class T>
constexpr RecordColumn<Row, T> required(const char* name, T Row::*member) {
    return {name, member, Column::required};
}
template <class Row, class T>
constexpr RecordColumn<Row, T> plain(const char* name, T Row::*member) {
    return {name, member, Column::plain};
}
template <class Row, class T>
constexpr RecordColumn<Row, T> blank(const char* name, T Row::*member) {
    return {name, member, Column::blank};
}

template <class Row, class... T>
class RecordColumns {
  public:
    // fewest: columns of the first version of the file.
    constexpr RecordColumns(const char* file, size_t fewest, RecordColumn<Row, T>... columns)
        : file_(file), fewest_(fewest), columns_(columns...) {}

    constexpr const char* file() const { return file_; }
    std::string header() const {
        return joined([](const auto& column) { return std::string(column.name); });
    }
    std::string line(const Row& row) const {
        return joined([&](const auto& column) { return cell_text(row.*column.member, column.kind); });
    }
    std::vector<std::string> lines(const std::vector<Row>& rows) const {
        std::vector<std::string> out;
        for (const Row& row : rows) out.push_back(line(row));
        return out;
    }
    size_t known(std::string_view header_line) const { return known_columns(header_line, header(), fewest_); }

    // The finished lines of the file in `directory`; none if there is no such file. Columns are found by name.
    std::vector<Row> read(const std::string& directory) const {
        const std::optional<CsvTable> table = CsvTable::read(join_path(directory, file_));
        std::vector<Row> rows(table ? table->rows() : 0);
        const auto read_column = [&](const auto& column) {
            const size_t at =
                column.kind == Column::required ? table->required(column.name) : table->column(column.name);
            for (size_t i = 0; at != CsvTable::absent && i < rows.size(); ++i)
                read_cell(*table, i, at, rows[i].*column.member);
        };
        if (table) std::apply([&](const auto&... column) { (read_column(column), ...); }, columns_);
        return rows;
    }

  private:
    template <class F>
    std::string joined(const F& text) const {
        std::string out;
        std::apply([&](const auto&... column) { ((out += text(column), out += ','), ...); }, columns_);
        out.pop_back();
        return out;
    }

    const char* file_;
    size_t fewest_;
    std::tuple<RecordColumn<Row, T>...> columns_;
};

}  // namespace longreach::io
