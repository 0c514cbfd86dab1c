// A CSV file of results, its columns looked up by name: files of older versions lack some.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace longreach {

class CsvTable {
  public:
    // The rows of a file whose first line names the columns. A last line without a newline is being written
    // right now and is left out. Error(ExitCode::data) if a row has more or fewer cells than there are
    // columns.
    static CsvTable read(const std::string& path);

    size_t rows() const { return cells_.size(); }
    bool has(std::string_view column) const;
    // "" where the file has no such column.
    const std::string& text(size_t row, std::string_view column) const;
    // Empty for a cell without text and for a missing column; Error(ExitCode::data) if it is no number.
    std::optional<double> number(size_t row, std::string_view column) const;
    std::optional<int64_t> integer(size_t row, std::string_view column) const;

    // Only the rows of the largest number in `column` (the newest step); all if there is no such column.
    void keep_largest(std::string_view column);

  private:
    std::string path_;
    std::vector<std::string> columns_;
    std::vector<std::vector<std::string>> cells_;
    std::vector<size_t> lines_;  // 1-based, of each row
};

}  // namespace longreach
