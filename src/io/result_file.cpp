#include "io/result_file.h"

#include <algorithm>
#include <array>

#include "base/error.h"
#include "io/file.h"

namespace longreach::io {

namespace {

// Of a page, a PDF, a LaTeX file, and the tables of a sweep.
constexpr std::array<std::string_view, 4> marks{
    "· longreach</title>", "/Producer (longreach)",
    "% longreach report: ", "± standard error of the mean over seeds"};
constexpr size_t shortest_first_line = 4;  // a shorter one says too little

std::string beginning(const std::string& path) {
    const File file = File::open(path, Links::follow);
    std::string text(static_cast<size_t>(std::min<uint64_t>(file.size(), uint64_t{1} << 20)), '\0');
    file.read_at(text.data(), text.size(), 0);
    return text;
}

std::string first_line_without_numbers(std::string_view text) {
    std::string line(text.substr(0, text.find('\n')));
    std::erase_if(line, [](char c) { return (c >= '0' && c <= '9') || c == '.'; });
    return line;
}

bool marked(std::string_view text) {
    return std::any_of(marks.begin(), marks.end(),
                       [&](std::string_view mark) { return text.find(mark) != std::string_view::npos; });
}

}  // namespace

bool is_result(const std::string& path) {
    return marked(beginning(path));
}

void require_replaceable(const std::string& path, bool replace, std::string_view like) {
    const PathKind kind = kind_of(path, Links::follow);
    if (kind == PathKind::missing || (replace && kind == PathKind::file)) return;
    require(kind == PathKind::file, ExitCode::usage, "{} is not a regular file", path);
    const std::string text = beginning(path), line = first_line_without_numbers(like);
    if (text.empty() || marked(text)) return;
    if (!marked(like) && line.size() >= shortest_first_line && first_line_without_numbers(text) == line)
        return;
    throw Error(ExitCode::usage, fmt::format("{} exists, and this program did not write it", path),
                "name another file, or add --replace");
}

void write_result(const std::string& path, std::string_view content, bool replace) {
    require_replaceable(path, replace, content);
    write_file_atomically(path, content);
}

}  // namespace longreach::io
