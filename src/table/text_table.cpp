#include "table/text_table.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "base/terminal.h"
#include "base/text.h"
#include "table/readable.h"

namespace longreach::table {

namespace {

constexpr size_t gap = 2, least_name = 12;

bool is_set(const char* variable) {
    const char* value = std::getenv(variable);
    return value && *value;
}

// lines[..][first] and the columns [begin, end).
std::string block(const std::vector<TextLine>& lines, const std::vector<size_t>& widths, size_t begin,
                  size_t end, const Terminal& terminal) {
    std::string out;
    for (size_t row = 0; row < lines.size(); ++row) {
        const TextLine& line = lines[row];
        std::string text;
        size_t pending = 0;  // spaces before the next text, dropped at the end of a line
        const auto add = [&](size_t column, bool left) {
            const std::string cell = column < line.size() ? line[column].text : std::string();
            const size_t space = widths[column] - utf8_length(cell);
            if (!left) pending += gap + space;
            // Trailing spaces of a cell are deferred as well.
            const size_t size = cell.find_last_not_of(' ') + 1;
            if (size > 0) {
                text.append(pending, ' ');
                pending = cell.size() - size;
                text += row == 0              ? terminal.faint(cell.substr(0, size))
                        : line[column].strong ? terminal.strong(cell.substr(0, size))
                                              : cell.substr(0, size);
            }
            if (left) pending += space;
        };
        add(0, true);
        for (size_t column = begin; column < end; ++column) add(column, false);
        out += text + "\n";
    }
    return out;
}

}  // namespace

Terminal Terminal::standard_output() {
    if (::isatty(STDOUT_FILENO) == 0) return {};
    const char* kind = std::getenv("TERM");
    const bool dumb = !kind || std::strcmp(kind, "dumb") == 0;
    return {terminal_width(STDOUT_FILENO), !dumb && !is_set("NO_COLOR")};
}

std::string Terminal::strong(const std::string& text) const {
    return colour ? "\x1b[1m" + text + "\x1b[0m" : text;
}

std::string Terminal::faint(const std::string& text) const {
    return colour ? "\x1b[2m" + text + "\x1b[0m" : text;
}

std::string text_table(const std::vector<TextLine>& given, const Terminal& terminal) {
    std::vector<TextLine> lines = given;
    std::vector<size_t> widths;
    for (TextLine& line : lines) {
        widths.resize(std::max(widths.size(), line.size()));
        for (size_t i = 0; i < line.size(); ++i) {
            line[i].text = one_line(line[i].text);
            widths[i] = std::max(widths[i], utf8_length(line[i].text));
        }
    }
    if (widths.empty()) return {};
    const size_t limit = terminal.width > 0 ? static_cast<size_t>(terminal.width) : 0;
    if (limit > 0) {
        size_t others = 0, widest = 0;
        for (size_t i = 1; i < widths.size(); ++i) {
            others += gap + widths[i];
            widest = std::max(widest, gap + widths[i]);
        }
        // Names shrink to make room for all columns, but not below a third of the line.
        const size_t room = limit > others ? limit - others : 0;
        const size_t name = std::max({room, limit / 3, least_name});
        if (widths[0] > name) {
            for (TextLine& line : lines)
                if (!line.empty()) line[0].text = shortened(line[0].text, name);
            widths[0] = name;
        }
    }
    std::string out;
    for (size_t begin = 1; begin < widths.size() || out.empty();) {
        size_t end = begin, used = widths[0];
        while (end < widths.size() && (end == begin || limit == 0 || used + gap + widths[end] <= limit))
            used += gap + widths[end++];
        if (!out.empty()) out += "\n";
        out += block(lines, widths, begin, end, terminal);
        begin = end;
        if (widths.size() == 1) break;
    }
    return out;
}

}  // namespace longreach::table
