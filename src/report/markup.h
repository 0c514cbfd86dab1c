// Pieces of HTML. Every text from outside passes escaped() exactly once, and every id identifier().
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace longreach::report {

// For text and for quoted attributes. Control characters and bytes that are not UTF-8 become U+FFFD.
std::string escaped(std::string_view text);

// For ids: letters, digits and - _ . only. Different texts have different identifiers.
std::string identifier(std::string_view text);

struct Cell {
    std::string text;        // shown
    std::string exact = {};  // copied as CSV; empty: the text itself
    bool number = true;      // aligned right
    std::string tone = {};   // CSS class: "best", "same"
    bool heading = false;    // names its row
};
Cell name_cell(std::string text);
Cell number_cell(double value, int decimals);               // empty if NaN
Cell significant_cell(double value);                        // empty if NaN
Cell spread_cell(double mean, double error, int decimals);  // mean +- error; without error if that is NaN

struct DataTable {
    std::string caption;
    std::vector<std::string> header;
    std::vector<std::vector<Cell>> rows;
};

// The table in a box that scrolls sideways, with the two buttons that copy it.
std::string table_html(const DataTable& table);
// The same, folded away under the word "Data".
std::string folded_table_html(const DataTable& table);

}  // namespace longreach::report
