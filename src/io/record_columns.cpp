#include "io/record_columns.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/text.h"

namespace longreach::io {

std::string cell_text(int64_t value, Column) {
    return fmt::format("{}", value);
}

std::string cell_text(double value, Column kind) {
    return kind == Column::blank && std::isnan(value) ? "" : fmt::format("{}", value);
}

std::string cell_text(const std::string& value, Column) {
    std::string text = one_line(value);
    std::replace(text.begin(), text.end(), ',', ';');
    return text;
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

namespace {

std::vector<std::string_view> cells_of(std::string_view line) {
    std::vector<std::string_view> cells;
    for (size_t end; (end = line.find(',')) != line.npos; line.remove_prefix(end + 1))
        cells.push_back(line.substr(0, end));
    cells.push_back(line);
    return cells;
}

}  // namespace

std::vector<size_t> known_columns(std::string_view header, std::string_view newest, size_t fewest) {
    const std::vector<std::string_view> names = cells_of(header), all = cells_of(newest);
    std::vector<size_t> places;
    for (size_t at = 0; at < all.size() && places.size() < names.size(); ++at) {
        if (names[places.size()] == all[at])
            places.push_back(at);
        else if (at < fewest)
            return {};
    }
    return places.size() < std::max(names.size(), fewest) ? std::vector<size_t>() : places;
}

std::string cells_at(std::string_view line, const std::vector<size_t>& places) {
    const std::vector<std::string_view> cells = cells_of(line);
    std::string out;
    for (const size_t place : places) {
        if (place != places.front()) out += ',';
        out += cells.at(place);
    }
    return out;
}

void put_member(json::Value& object, const char* name, int64_t value) {
    object.set(name, value);
}

void put_member(json::Value& object, const char* name, double value) {
    object.set(name, std::isfinite(value) ? json::Value(value) : json::Value());
}

void put_member(json::Value& object, const char* name, const std::string& value) {
    object.set(name, value);
}

void put_member(json::Value& object, const char* name, const std::vector<double>& value) {
    if (value.empty()) return;
    json::Value list = json::Value::array();
    for (const double x : value) list.push(std::isfinite(x) ? json::Value(x) : json::Value());
    object.set(name, list);
}

void read_member(const json::Value& member, int64_t& value) {
    value = member.to_int64().value_or(value);
}

void read_member(const json::Value& member, double& value) {
    value = member.to_number().value_or(value);
}

void read_member(const json::Value& member, std::string& value) {
    if (const std::string* text = member.to_string()) value = *text;
}

void read_member(const json::Value& member, std::vector<double>& value) {
    if (!member.is_array()) return;
    for (const json::Value& x : member.as_array()) value.push_back(x.to_number().value_or(NAN));
}

void each_json_line(const std::string& path, const std::function<void(const json::Value&)>& visit) {
    if (kind_of(path, Links::follow) == PathKind::missing) return;
    const std::string text = read_file(path, uint64_t{1} << 30, Links::follow);
    size_t number = 0;
    for (size_t begin = 0, end; (end = text.find('\n', begin)) != std::string::npos; begin = end + 1) {
        ++number;
        if (end > begin)
            visit(json::parse(std::string_view(text).substr(begin, end - begin),
                              fmt::format("{}:{}", path, number), {.code = ExitCode::data}));
    }
}

std::string file_end(const std::string& path) {
    const File file = File::open(path, Links::refuse);
    const uint64_t size = file.size(), bytes = std::min(size, uint64_t{1} << 16);
    std::string text(static_cast<size_t>(bytes), '\0');
    file.read_at(text.data(), text.size(), size - bytes);
    return text;
}

std::string last_line(const std::string& path) {
    std::string text = file_end(path);
    text.resize(std::max<size_t>(text.rfind('\n') + 1, 1) - 1);  // npos + 1 is 0
    return text.substr(text.rfind('\n') + 1);
}

}  // namespace longreach::io
