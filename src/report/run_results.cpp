#include "report/run_results.h"

#include <algorithm>
#include <charconv>
#include <map>

#include "base/error.h"
#include "eval/tables.h"
#include "io/file.h"

namespace longreach {

namespace {

constexpr uint64_t largest_csv = uint64_t{256} << 20;

std::vector<std::string_view> split(std::string_view text, char separator) {
    std::vector<std::string_view> parts;
    while (true) {
        const size_t at = text.find(separator);
        parts.push_back(text.substr(0, at));
        if (at == std::string_view::npos) return parts;
        text.remove_prefix(at + 1);
    }
}

template <class T>
T number(std::string_view text, const std::string& path, size_t line) {
    T value{};
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    require(error == std::errc() && end == text.data() + text.size(), ExitCode::data,
            "{}:{}: '{}' is not a number", path, line, text);
    return value;
}

}  // namespace

RunResults read_results(const std::string& path) {
    const std::string file = join_path(path, "val.csv");
    const std::string text = read_file(file, largest_csv, Links::follow);
    const std::vector<std::string_view> lines = split(text, '\n');
    const size_t columns = val_columns(lines[0]);
    require(columns > 0, ExitCode::data, "{}: the first line is not the header of a val.csv", file);
    RunResults results;
    results.path = path;
    results.name = base_name(path);
    std::map<int64_t, LengthLoss> newest;
    for (size_t i = 1; i < lines.size(); ++i) {
        // The last line has no newline yet if the run is writing it right now.
        if (lines[i].empty() || i + 1 == lines.size()) continue;
        const std::vector<std::string_view> cells = split(lines[i], ',');
        require(cells.size() == columns, ExitCode::data, "{}:{}: {} columns instead of {}", file, i + 1,
                cells.size(), columns);
        const int64_t step = number<int64_t>(cells[0], file, i + 1);
        if (step > results.step) newest.clear();
        results.step = std::max(results.step, step);
        const int64_t length = number<int64_t>(cells[2], file, i + 1);
        newest[length] = {length, number<double>(cells[3], file, i + 1),
                          number<double>(cells[4], file, i + 1)};
    }
    require(!newest.empty(), ExitCode::data, "{} holds no validation yet", file);
    for (const auto& [length, loss] : newest) results.lengths.push_back(loss);
    return results;
}

}  // namespace longreach
