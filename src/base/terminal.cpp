#include "base/terminal.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "base/text.h"

namespace longreach {

namespace {

// Bytes of the escape sequence or the character at the front of `text`, and the columns that it takes.
struct Glyph {
    size_t bytes, columns;
};
Glyph glyph_of(std::string_view text) {
    if (text.starts_with("\x1b[")) {
        const size_t end = text.find_first_not_of("0123456789;", 2);
        return {std::min(end, text.size() - 1) + 1, 0};
    }
    return {std::max<size_t>(utf8_sequence(text), 1), 1};
}

size_t columns_of(std::string_view text) {
    size_t columns = 0;
    while (!text.empty()) {
        const Glyph glyph = glyph_of(text);
        columns += glyph.columns;
        text.remove_prefix(glyph.bytes);
    }
    return columns;
}

// Where a line goes on after a break, and the widest gap that it keeps.
struct Shape {
    size_t indent, gap;
};
Shape shape_of(std::string_view line, size_t width) {
    const size_t begin = std::min(line.find_first_not_of(' '), line.size());
    const size_t indent = std::min(begin >= 8 ? begin : begin + 2, width / 2);
    const size_t gap = line.find("  ", begin);
    if (gap == line.npos) return {indent, line.size()};
    const size_t second = columns_of(line.substr(0, line.find_first_not_of(' ', gap)));
    return second <= width / 2 ? Shape{second, line.size()} : Shape{indent, 2};
}

// Where the word at `begin` ends: a number stays with its unit.
size_t word_end(std::string_view line, size_t begin) {
    const size_t end = std::min(line.find(' ', begin), line.size());
    const bool number = line.substr(begin, end - begin).find_first_not_of("0123456789.,") == line.npos &&
                        line[end - 1] != ',';
    const bool unit = end + 1 < line.size() && line[end + 1] != ' ';
    return number && unit ? std::min(line.find(' ', end + 1), line.size()) : end;
}

void add_wrapped(std::string_view line, size_t width, std::string& out) {
    const Shape shape = shape_of(line, width);
    size_t column = 0;
    bool first = true;
    for (size_t at = 0; at < line.size();) {
        const size_t word = line.find_first_not_of(' ', at);
        if (word == line.npos) return;
        const size_t end = word_end(line, word), columns = columns_of(line.substr(word, end - word));
        const size_t gap = first ? word - at : std::min(word - at, shape.gap);
        if (!first && column + gap + columns > width) {
            out += "\n" + std::string(shape.indent, ' ');
            column = shape.indent;
        } else {
            out.append(gap, ' ');
            column += gap;
        }
        out += line.substr(word, end - word);
        column += columns;
        first = false;
        at = end;
    }
}

}  // namespace

int terminal_width(int fd) {
    if (::isatty(fd) == 0) return 0;
    if (const char* columns = std::getenv("COLUMNS")) {
        int width = 0;
        const auto [end, error] = std::from_chars(columns, columns + std::strlen(columns), width);
        if (error == std::errc() && *end == 0 && width > 0) return width;
    }
    winsize size{};
    return ::ioctl(fd, TIOCGWINSZ, &size) == 0 ? size.ws_col : 0;
}

std::string wrapped(std::string_view text, int width) {
    if (width <= 0) return std::string(text);
    const auto limit = static_cast<size_t>(width);
    std::string out;
    for (size_t begin = 0; begin <= text.size();) {
        const size_t end = std::min(text.find('\n', begin), text.size());
        const std::string_view line = text.substr(begin, end - begin);
        if (columns_of(line) <= limit)
            out += line;
        else
            add_wrapped(line, limit, out);
        if (end < text.size()) out += '\n';
        begin = end + 1;
    }
    return out;
}

std::string cut(std::string_view line, int width) {
    size_t end = 0;
    auto left = static_cast<size_t>(std::max(width, 0));
    while (width > 0 && end < line.size()) {
        const Glyph glyph = glyph_of(line.substr(end));
        if (glyph.columns > left) break;
        left -= glyph.columns;
        end += glyph.bytes;
    }
    return std::string(width > 0 ? line.substr(0, end) : line);
}

void print_lines(std::string_view text) {
    fmt::print("{}", wrapped(text, terminal_width(STDOUT_FILENO)));
}

}  // namespace longreach
