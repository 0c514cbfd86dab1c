#include "text/text_request.h"

#include <algorithm>
#include <filesystem>

#include "base/error.h"
#include "text/text_bytes.h"

namespace longreach::text {

namespace {

constexpr uint64_t end_bytes = uint64_t{1} << 20;  // read at the front and at the end of a text
constexpr uint64_t largest_inputs = uint64_t{1} << 30;
constexpr size_t line_bytes = 34;  // of the file: two hashes, a space, a newline

void add_bytes(const io::File& file, uint64_t begin, uint64_t end, Xxh64& hash) {
    std::string buffer(static_cast<size_t>(end - begin), '\0');
    file.read_at(buffer.data(), buffer.size(), begin);
    hash.update(buffer.data(), buffer.size());
}

uint64_t content_of(const SourceFile& source) {
    const io::File file =
        io::File::open(source.path, source.from_directory ? io::Links::refuse : io::Links::follow);
    std::error_code error;
    const int64_t modified = std::filesystem::last_write_time(source.path, error).time_since_epoch().count();
    const uint64_t size = file.size();
    Xxh64 hash;
    hash.update(&size, sizeof size);
    hash.update(&modified, sizeof modified);
    add_bytes(file, 0, std::min(size, end_bytes), hash);
    if (size > end_bytes) add_bytes(file, std::max(end_bytes, size - std::min(size, end_bytes)), size, hash);
    return hash.digest();
}

}  // namespace

TextRequest TextRequest::of(std::string_view options, const std::vector<SourceFile>& sources) {
    const auto is_stream = [](const SourceFile& source) { return source.path == standard_input; };
    if (std::any_of(sources.begin(), sources.end(), is_stream)) return {};
    TextRequest request;
    Xxh64 hash;
    hash.update(options.data(), options.size());
    for (const SourceFile& source : sources) {
        const Text text{xxh64(source.name), content_of(source)};
        hash.update(&text, sizeof text);
        request.texts.push_back(text);
        request.paths.push_back(source.path);
    }
    request.hash = std::max<uint64_t>(1, hash.digest());
    return request;
}

void TextRequest::write(const std::string& directory, io::Disk& disk) const {
    std::string lines;
    for (const Text& text : texts)
        lines += fmt::format("{} {}\n", format_hash64(text.name), format_hash64(text.content));
    io::write_file_atomically(io::join_path(directory, name), lines, disk);
}

std::string TextRequest::changed_since(const std::string& directory) const {
    const std::string path = io::join_path(directory, name);
    if (io::kind_of(path, io::Links::refuse) != io::PathKind::file) return {};
    const std::string lines = io::read_file(path, largest_inputs, io::Links::refuse);
    if (lines.size() != line_bytes * texts.size()) return {};
    std::string changed;
    for (size_t i = 0; i < texts.size(); ++i) {
        const std::string_view line = std::string_view(lines).substr(line_bytes * i, line_bytes);
        if (line.substr(0, 16) != format_hash64(texts[i].name)) return {};
        if (changed.empty() && line.substr(17, 16) != format_hash64(texts[i].content)) changed = paths[i];
    }
    return changed;
}

}  // namespace longreach::text
