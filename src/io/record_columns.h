// The columns of a record file (val.csv, results.csv, ...) or the members of its JSON objects (metrics.jsonl,
// timing.jsonl), listed once: header, lines and reader follow from the list.
#pragma once

#include <cmath>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <vector>

#include "base/json.h"
#include "io/csv.h"
#include "io/file.h"

namespace longreach::io {

enum class Column {
    required,  // an Error if a file lacks it
    plain,     // a file may lack it: the row keeps its default
    blank,     // plain, and NaN is an empty cell
};

// A number as the shortest text that reads back to the same bits; a text with ';'
// for each comma and control characters escaped, so that no name adds a cell.
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

// The columns of a file, as their places in the newest header, rising. The file may be from an earlier version: it has the
// first `fewest` columns of the newest header, and may lack others. Empty: another header.
std::vector<size_t> known_columns(std::string_view header, std::string_view newest, size_t fewest);
// The cells of a line at these places.
std::string cells_at(std::string_view line, const std::vector<size_t>& places);

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
    std::vector<size_t> known(std::string_view header_line) const {
        return known_columns(header_line, header(), fewest_);
    }

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

// A number that is not finite becomes null; an optional without a value and an empty list add no member.
void put_member(json::Value& object, const char* name, int64_t value);
void put_member(json::Value& object, const char* name, double value);
void put_member(json::Value& object, const char* name, const std::string& value);
void put_member(json::Value& object, const char* name, const std::vector<double>& value);
template <class T>
void put_member(json::Value& object, const char* name, const std::optional<T>& value) {
    if (value) put_member(object, name, *value);
}

// A value of another kind changes nothing; in a list it is NaN.
void read_member(const json::Value& member, int64_t& value);
void read_member(const json::Value& member, double& value);
void read_member(const json::Value& member, std::string& value);
void read_member(const json::Value& member, std::vector<double>& value);
template <class T>
void read_member(const json::Value& member, std::optional<T>& value) {
    if constexpr (std::is_floating_point_v<T>)
        read_member(member, value.emplace(NAN));
    else
        read_member(member, value.emplace());
}

// Calls visit() with each finished line of a JSON Lines file; a missing file has none.
void each_json_line(const std::string& path, const std::function<void(const json::Value& line)>& visit);
// The last 64 KiB of a file.
std::string file_end(const std::string& path);
// The last finished line of a text file, "" if there is
// none; the front of a line longer than 64 KiB is cut off.
std::string last_line(const std::string& path);

template <class Row, class... T>
class RecordMembers {
  public:
    constexpr RecordMembers(const char* file, RecordColumn<Row, T>... members)
        : file_(file), members_(members...) {}

    constexpr const char* file() const { return file_; }
    std::vector<std::string> names() const {
        return std::apply([](const auto&... member) { return std::vector<std::string>{member.name...}; },
                          members_);
    }
    // Without a newline.
    std::string line(const Row& row) const {
        json::Value out = json::Value::object();
        std::apply([&](const auto&... m) { (put_member(out, m.name, row.*m.member), ...); }, members_);
        return json::write(out, json::Style::compact);
    }
    // Members that are missing keep the row's default.
    Row row(const json::Value& line) const {
        Row out;
        const auto read_one = [&](const auto& m) {
            if (const json::Value* value = line.find(m.name)) read_member(*value, out.*m.member);
        };
        std::apply([&](const auto&... m) { (read_one(m), ...); }, members_);
        return out;
    }
    // The finished lines of the file in `directory`; none if there is no such file.
    std::vector<Row> read(const std::string& directory) const {
        std::vector<Row> rows;
        each_json_line(join_path(directory, file_),
                       [&](const json::Value& line) { rows.push_back(row(line)); });
        return rows;
    }
    // The last finished line; empty if there is none.
    std::optional<Row> last(const std::string& directory) const {
        const std::string path = join_path(directory, file_);
        if (kind_of(path, Links::refuse) == PathKind::missing) return std::nullopt;
        const std::string line = last_line(path);
        if (line.empty()) return std::nullopt;
        return row(json::parse(line, path + ", last line", {.code = ExitCode::data}));
    }

  private:
    const char* file_;
    std::tuple<RecordColumn<Row, T>...> members_;
};

}  // namespace longreach::io
