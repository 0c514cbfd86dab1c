// A table whose cells carry two texts: a rounded one for people and the exact one for programs.
#pragma once

#include <string>
#include <vector>

#include "table/text_table.h"

namespace longreach::table {

struct Cell {
    std::string text;        // shown
    std::string exact = {};  // in CSV; empty: the text itself
    bool number = true;      // aligned right
    std::string tone = {};   // CSS class: "best", "same"
    bool heading = false;    // names its row

    Cell(std::string shown, std::string full = {}, bool is_number = true)
        : text(std::move(shown)), exact(std::move(full)), number(is_number) {}
    Cell(const char* shown) : text(shown) {}
    // Five significant digits, whole numbers in full; empty if NaN.
    Cell(double value);
};
Cell text_cell(std::string text);
Cell name_cell(std::string text);
Cell count_cell(int64_t value);                             // "4,096"
Cell number_cell(double value, int decimals);               // empty if NaN
Cell significant_cell(double value);                        // empty if NaN
Cell spread_cell(double mean, double error, int decimals);  // "2.5 ± 0.1"; without the error if that is NaN

struct DataTable {
    std::string name = {};  // of its file, without ".csv"
    std::string caption = {};
    std::vector<std::string> header = {};
    std::vector<std::vector<Cell>> rows = {};
    int interval = -1;  // the column with the lower ends of an interval, whose upper ends follow; -1: none
};

// The caption, then the table with "-" in empty cells.
std::string text_table(const DataTable& table, const Terminal& terminal = {});
// Exact texts; fields with a comma, quote or line break are quoted.
std::string csv(const DataTable& table);

}  // namespace longreach::table
