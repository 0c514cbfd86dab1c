#include "io/written_files.h"

#include <algorithm>

#include "base/error.h"
#include "base/hash.h"
#include "base/json.h"
#include "io/file.h"
#include "io/manifest.h"

namespace longreach::io {

namespace {

constexpr uint64_t largest_list = uint64_t{1} << 20;
constexpr int64_t list_format = 1;

uint64_t hash_of(const File& file) {
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
    if (kind_of(path, Links::refuse) != PathKind::file) return false;
    const File file = File::open(path, Links::refuse);
    const json::Value *bytes = entry.find("bytes"), *hash = entry.find("xxh64");
    uint64_t wanted = 0;
    return bytes != nullptr && bytes->to_int64() == static_cast<int64_t>(file.size()) && hash != nullptr &&
           hash->to_string() != nullptr && parse_hash64(*hash->to_string(), wanted) &&
           wanted == hash_of(file);
}

}  // namespace

void write_file_list(const std::string& directory, const std::string& list,
                     const std::vector<std::string>& files) {
    json::Value entries = json::Value::object();
    for (const std::string& name : files) {
        const File file = File::open(join_path(directory, name), Links::refuse);
        entries.set(name, json::Value::object({{"bytes", static_cast<int64_t>(file.size())},
                                               {"xxh64", format_hash64(hash_of(file))}}));
    }
    write_file_atomically(
        join_path(directory, list),
        json::write(json::Value::object({{"format", list_format}, {"files", entries}}), json::Style::pretty));
}

std::vector<std::string> files_as_written(const std::string& directory, const std::string& list) {
    const std::string path = join_path(directory, list);
    std::vector<std::string> names;
    if (kind_of(path, Links::refuse) != PathKind::file) return names;
    const json::Value content = json::parse(read_file(path, largest_list, Links::refuse), path);
    json::require_format(content, list_format, path, ExitCode::data);
    const json::Value* files = content.find("files");
    require(files != nullptr && files->is_object(), ExitCode::data, "{}: files is not an object", path);
    for (const json::Member& member : files->as_object())
        if (is_checkpoint_file_name(member.key) &&
            is_as_written(join_path(directory, member.key), member.value))
            names.push_back(member.key);
    names.push_back(list);  // last: without it the others would be the user's
    return names;
}

}  // namespace longreach::io
