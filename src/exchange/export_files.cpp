#include "exchange/export_files.h"

#include <algorithm>

#include "base/error.h"
#include "base/hash.h"
#include "base/json.h"
#include "io/file.h"
#include "io/manifest.h"

namespace longreach::exchange {

namespace {

constexpr uint64_t largest_marker = uint64_t{1} << 20;
constexpr int64_t marker_format = 1;

uint64_t hash_of(const io::File& file) {
    std::vector<char> buffer(static_cast<size_t>(std::min<uint64_t>(file.size(), uint64_t{1} << 20)));
    Xxh64 hash;
    for (uint64_t at = 0; at < file.size();) {
        const size_t part = static_cast<size_t>(std::min<uint64_t>(file.size() - at, buffer.size()));
        file.read_at(buffer.data(), part, at);
        hash.update(buffer.data(), part);
        at += part;
    }
    return hash.digest();
}

bool is_as_written(const std::string& path, const json::Value& entry) {
    if (io::kind_of(path, io::Links::refuse) != io::PathKind::file) return false;
    const io::File file = io::File::open(path, io::Links::refuse);
    const json::Value *bytes = entry.find("bytes"), *hash = entry.find("xxh64");
    uint64_t wanted = 0;
    return bytes != nullptr && bytes->to_int64() == static_cast<int64_t>(file.size()) && hash != nullptr &&
           hash->to_string() != nullptr && parse_hash64(*hash->to_string(), wanted) &&
           wanted == hash_of(file);
}

}  // namespace

void write_marker(const std::string& directory, const std::vector<std::string>& files) {
    json::Value list = json::Value::object();
    for (const std::string& name : files) {
        const io::File file = io::File::open(io::join_path(directory, name), io::Links::refuse);
        list.set(name, json::Value::object({{"bytes", static_cast<int64_t>(file.size())},
                                            {"xxh64", format_hash64(hash_of(file))}}));
    }
    io::write_file_atomically(
        io::join_path(directory, export_marker),
        json::write(json::Value::object({{"format", marker_format}, {"files", list}}), json::Style::pretty));
}

std::vector<std::string> exported_files(const std::string& directory) {
    const std::string path = io::join_path(directory, export_marker);
    std::vector<std::string> names;
    if (io::kind_of(path, io::Links::refuse) != io::PathKind::file) return names;
    const json::Value marker = json::parse(io::read_file(path, largest_marker, io::Links::refuse), path);
    json::require_format(marker, marker_format, path, ExitCode::data);
    const json::Value* files = marker.find("files");
    require(files != nullptr && files->is_object(), ExitCode::data, "{}: files is not an object", path);
    for (const json::Member& member : files->as_object())
        if (io::is_checkpoint_file_name(member.key) &&
            is_as_written(io::join_path(directory, member.key), member.value))
            names.push_back(member.key);
    names.emplace_back(export_marker);  // last: without it the others would be the user's
    return names;
}

}  // namespace longreach::exchange
