// Tables of plain text, for a terminal or a file.
#pragma once

#include <string>
#include <vector>

namespace longreach::table {

// How text is laid out for the place where it will be read.
struct Terminal {
    int width = 0;        // characters in a line; 0: unlimited
    bool colour = false;  // whether escape sequences may be written

    // Standard output: the width of the terminal (COLUMNS, else what the system reports) and colours unless
    // NO_COLOR is set; a file or a pipe has neither.
    static Terminal standard_output();

    std::string strong(const std::string& text) const;
    std::string faint(const std::string& text) const;
};

struct TextCell {
    std::string text;
    bool strong = false;
    TextCell(std::string t, bool s = false) : text(std::move(t)), strong(s) {}
    TextCell(const char* t) : text(t) {}
};
using TextLine = std::vector<TextCell>;

// Columns lined up, the first to the left and the others to the right, under the header in lines[0]. Control
// characters are escaped. Where the width is limited, long names in the first column are shortened in the
// middle and columns that do not fit go into further blocks, each with the first column.
std::string text_table(const std::vector<TextLine>& lines, const Terminal& terminal = {});

}  // namespace longreach::table
