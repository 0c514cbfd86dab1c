#include "text/text_source.h"

#include <fnmatch.h>

#include <algorithm>

#include "base/error.h"
#include "base/json.h"
#include "data/shard_format.h"
#include "text/text_bytes.h"

namespace longreach::text {

namespace {

constexpr size_t window = size_t{1} << 16;          // bytes read at a time; a licence header must fit
constexpr size_t longest_line = size_t{256} << 20;  // bytes of one JSONL line

bool has_extension(const SourceOptions& options, const std::string& name) {
    const auto ends = [&](const std::string& extension) { return name.ends_with(extension); };
    return options.extensions.empty() ||
           std::any_of(options.extensions.begin(), options.extensions.end(), ends);
}

// Counts the match for every pattern: a redundant pattern is not a mistake.
bool is_excluded(const SourceOptions& options, const std::string& name, Excluded& excluded) {
    bool any = false;
    for (size_t i = 0; i < options.exclude.size(); ++i) {
        if (::fnmatch(options.exclude[i].c_str(), name.c_str(), 0) != 0) continue;
        ++excluded.matches[i];
        any = true;
    }
    return any;
}

// An unreadable file may still be excluded.
uint64_t size_if_readable(const std::string& path) {
    try {
        return io::File::open(path, io::Links::refuse).size();
    } catch (const Error&) {
        return 0;
    }
}

void walk(const SourceOptions& options, const std::string& directory, const std::string& relative,
          std::vector<SourceFile>& files, Excluded& excluded) {
    for (const std::string& entry : io::list_directory(directory)) {
        const std::string path = io::join_path(directory, entry), name = io::join_path(relative, entry);
        const io::PathKind kind = io::kind_of(path, io::Links::refuse);
        if (kind == io::PathKind::directory) {
            walk(options, path, name, files, excluded);
            continue;
        }
        if (kind != io::PathKind::file) continue;
        const bool left_out = is_excluded(options, name, excluded);
        if (!has_extension(options, unpacked_name(name))) continue;
        if (left_out) {
            ++excluded.files;
            excluded.bytes += size_if_readable(path);
        } else {
            const io::File file = io::File::open(path, io::Links::refuse);
            files.push_back({path, unpacked_name(name), file.size(), true, is_packed(file)});
        }
    }
}

char lower(char c) {
    return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
}

bool mentions_licence(std::string_view comment) {
    std::string text(comment);
    std::transform(text.begin(), text.end(), text.begin(), lower);
    for (const char* word : {"copyright", "license", "licence", "spdx-"})
        if (text.find(word) != std::string::npos) return true;
    return false;
}

size_t skip_blank(std::string_view text, size_t at) {
    const size_t next = text.find_first_not_of(" \t\r\n", at);
    return next == std::string_view::npos ? text.size() : next;
}

// The end of the comment that begins at `at`: a block, or a run of // lines; `at` if there is none or
// it does not end.
size_t comment_end(std::string_view text, size_t at) {
    if (text.substr(at, 2) == "/*") {
        const size_t close = text.find("*/", at + 2);
        return close == std::string_view::npos ? at : close + 2;
    }
    size_t end = at;
    while (text.substr(end, 2) == "//") {
        const size_t line = text.find('\n', end);
        if (line == std::string_view::npos) return at;
        end = line + 1;
        const size_t indented = text.find_first_not_of(" \t", end);
        if (indented != std::string_view::npos && text.substr(indented, 2) == "//") end = indented;
    }
    return end;
}

std::unique_ptr<TextBytes> open_source(const SourceFile& source) {
    return open_text(source.path, source.from_directory ? io::Links::refuse : io::Links::follow);
}

// Bytes of the text as far as the sink must know them.
uint64_t size_of(const SourceFile& source, const DocumentSink& sink) {
    const uint64_t room = sink.room();
    if (source.path == standard_input) return 0;
    if (!source.packed) return source.bytes;
    if (room == std::numeric_limits<uint64_t>::max()) return 0;
    const std::unique_ptr<TextBytes> bytes = open_source(source);
    std::string buffer(window, '\0');
    uint64_t count = 0;
    for (size_t size = 1; size > 0 && count <= room; count += size) size = bytes->read(buffer.data(), window);
    return count;
}

// The front of `piece` that there is room for, without part of a character.
std::string_view fitting(std::string_view piece, uint64_t room) {
    if (piece.size() <= room) return piece;
    size_t end = static_cast<size_t>(room);
    for (size_t back = 0; back < 4 && back <= end; ++back)
        if ((static_cast<unsigned char>(piece[end - back]) & 0xC0) != 0x80)
            return piece.substr(0, end - back);
    return piece.substr(0, end);
}

SourceOutcome read_whole(const SourceFile& source, TextBytes& bytes, const SourceOptions& options,
                         DocumentSink& sink) {
    const bool is_stream = source.path == standard_input;
    std::string buffer(window, '\0');
    bool begun = false, first = true, cut = false;
    for (size_t size = 0; !cut && (size = bytes.read(buffer.data(), window)) > 0; first = false) {
        std::string_view piece(buffer.data(), size);
        if (first) {
            const bool binary = piece.substr(0, 8192).find('\0') != std::string_view::npos;
            if (binary && source.from_directory) return SourceOutcome::binary;
            if (options.strip_licence) piece.remove_prefix(licence_end(piece));
        }
        sink.at(bytes.position());
        const std::string_view taken = is_stream ? fitting(piece, sink.room()) : piece;
        cut = taken.size() < piece.size();
        if (taken.empty()) continue;
        if (!begun && !sink.begin(source.name, size_of(source, sink))) return SourceOutcome::stopped;
        begun = true;
        sink.text(taken);
    }
    if (begun) sink.end();
    return cut ? SourceOutcome::stopped : SourceOutcome::done;
}

// One document of a JSONL line; false if no more are needed.
bool read_line(const SourceFile& source, std::string_view line, uint64_t number, const SourceOptions& options,
               DocumentSink& sink) {
    if (skip_blank(line, 0) == line.size()) return true;
    const std::string where = fmt::format("{} line {}", source.path, number);
    json::ParseOptions parse;
    parse.max_bytes = longest_line;
    parse.code = ExitCode::data;
    const json::Value value = json::parse(line, where, parse);
    require(value.is_object(), ExitCode::data, "{} is not a JSON object", where);
    const json::Value* field = value.find(options.text_field);
    require(field != nullptr, ExitCode::data, "{} has no field {}", where, options.text_field);
    const std::string* text = field->to_string();
    require(text != nullptr, ExitCode::data, "{}: field {} is not a string", where, options.text_field);
    if (text->empty()) return true;
    if (!sink.begin(fmt::format("{}:{}", source.name, number), text->size())) return false;
    sink.text(*text);
    sink.end();
    return true;
}

SourceOutcome read_lines(const SourceFile& source, TextBytes& bytes, const SourceOptions& options,
                         DocumentSink& sink) {
    std::string buffer(window, '\0'), line;
    uint64_t number = 1;
    for (size_t size = 0; (size = bytes.read(buffer.data(), window)) > 0;) {
        sink.at(bytes.position());
        for (size_t begin = 0; begin < size;) {
            const size_t newline = std::string_view(buffer).substr(0, size).find('\n', begin);
            const size_t end = newline == std::string_view::npos ? size : newline;
            line.append(buffer, begin, end - begin);
            require(line.size() <= longest_line, ExitCode::data, "{} line {} has more than {} bytes",
                    source.path, number, longest_line);
            begin = end;
            if (newline == std::string_view::npos) break;
            if (!read_line(source, line, number, options, sink)) return SourceOutcome::stopped;
            line.clear();
            ++number;
            begin = newline + 1;
        }
    }
    return read_line(source, line, number, options, sink) ? SourceOutcome::done : SourceOutcome::stopped;
}

}  // namespace

std::vector<SourceFile> find_sources(const SourceOptions& options, Excluded& excluded) {
    std::vector<SourceFile> files;
    excluded = {};
    excluded.matches.resize(options.exclude.size());
    for (const std::string& input : options.inputs) {
        if (input == standard_input) {
            files.push_back({input, "stdin"});
        } else if (io::kind_of(input, io::Links::follow) == io::PathKind::directory) {
            walk(options, input, {}, files, excluded);
        } else {
            const io::File file = io::File::open(input, io::Links::follow);
            const data::FileHead head = data::FileHead::read(file);
            const std::string other = head.file_bytes > 0 ? data::describe_other_file(head) : std::string{};
            const bool packed = is_packed(file);
            const bool text = packed || other.empty() || head.bytes[0] == '{' || head.bytes[0] == '[';
            require(text, ExitCode::data, "{} is {}, not text", input, other);
            files.push_back({input, unpacked_name(io::base_name(input)), head.file_bytes, false, packed});
        }
    }
    return files;
}

size_t licence_end(std::string_view text) {
    size_t kept = 0;
    for (size_t at = skip_blank(text, 0);;) {
        const size_t end = comment_end(text, at);
        if (end == at) return kept;
        const size_t next = skip_blank(text, end);
        if (mentions_licence(text.substr(at, end - at))) kept = next;
        at = next;
    }
}

SourceOutcome read_source(const SourceFile& source, const SourceOptions& options, DocumentSink& sink) {
    const std::unique_ptr<TextBytes> bytes = open_source(source);
    return options.lines || source.name.ends_with(".jsonl") ? read_lines(source, *bytes, options, sink)
                                                            : read_whole(source, *bytes, options, sink);
}

}  // namespace longreach::text
