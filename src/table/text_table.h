// Tables of plain text, for a terminal or a file.
#pragma once

#include <string>
#include <vector>

namespace longreach::table {

// The properties of an output that determine the layout of text.
struct Terminal {
    int width = 0;        // characters in a line; 0: unlimited
    bool colour = false;  // whether escape sequences may be written

    // Of standard output: the width of the terminal (COLUMNS, or else from the
    // system), and colours unless NO_COLOR is set. A file or a pipe has neither.
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

// Aligned columns, the first one left and the others right, under the header lines[0]. Control
// characters are escaped. If the width is limited, long names in the first column are shortened in
// the middle, and columns that do not fit move to further blocks, which repeat the first column.
std::string text_table(const std::vector<TextLine>& lines, const Terminal& terminal = {});

}  // namespace longreach::table
