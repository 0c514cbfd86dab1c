// Tables of results as this program appends them: a header, then lines of cells without quotes.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace longreach::io {

class CsvTable {
  public:
    // Empty if there is no such file. The last line counts only once it ends in a newline: until then the run
    // is still writing it. Error(ExitCode::data) for a line with too few or too many cells.
    static std::optional<CsvTable> read(const std::string& path);

    size_t rows() const { return rows_.size(); }
    // Columns are found by name, so that files with more or fewer of them can be read; `absent` if missing.
    static constexpr size_t absent = static_cast<size_t>(-1);
    size_t column(std::string_view name) const;
    size_t required(std::string_view name) const;  // an Error if missing

    std::string_view text(size_t row, size_t column) const;  // "" in an absent column
    int64_t integer(size_t row, size_t column) const;
    // Nothing if the cell is empty or its column absent: not measured. What was measured may be NaN too.
    std::optional<double> measured(size_t row, size_t column) const;
    double number(size_t row, size_t column) const;  // the same, with NaN for nothing

  private:
    std::string path_, content_;
    std::vector<std::string> header_;
    struct Row {
        size_t line;                                   // of the file
        std::vector<std::pair<size_t, size_t>> cells;  // (offset, size) in content_
    };
    std::vector<Row> rows_;
};

}  // namespace longreach::io
