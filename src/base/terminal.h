// Lines for a terminal. Text on a terminal is broken at its width; a pipe or a file gets each line whole, so that the lines
// which grep and diff see do not depend on a window. JSON, Markdown and the manual, which programs read, are never broken:
// commands print them by fmt::print.
#pragma once

#include <fmt/format.h>

#include <string>
#include <string_view>
#include <utility>

namespace longreach {

// Columns of the terminal of a file descriptor: COLUMNS, or else as the system says. 0: no terminal, or not known.
int terminal_width(int fd);

// `text` with lines of at most `width` columns, broken at spaces; 0: as it is. A word that is longer stays whole. What follows
// a break is indented: to the second column of a line that has two ("name    what it is"), or a little further than its line.
// If the second column begins beyond the middle, columns are not aligned: two spaces are between them.
std::string wrapped(std::string_view text, int width);

// The beginning of a line that fits into `width` columns; 0: all of it.
std::string cut(std::string_view line, int width);

// On standard output, broken at the terminal's width.
void print_lines(std::string_view text);

template <class... Args>
void print_text(fmt::format_string<Args...> format, Args&&... args) {
    print_lines(fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace longreach
