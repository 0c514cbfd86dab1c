#include "io/manifest.h"

#include <algorithm>

#include "base/error.h"
#include "base/json.h"

namespace longreach::io {

namespace {

constexpr std::string_view format_name = "longreach checkpoint";
constexpr int64_t format_version = 1;
constexpr std::string_view no_checksum = "0000000000000000";

template <class... Args>
void refuse_unless(bool ok, const std::string& path, fmt::format_string<Args...> format, Args&&... args) {
    if (!ok) fail(ExitCode::checkpoint, "{}: {}", path, fmt::format(format, std::forward<Args>(args)...));
}

const json::Value& member(const json::Value& object, std::string_view key, const std::string& path) {
    const json::Value* value = object.find(key);
    refuse_unless(value != nullptr, path, "no member {}", key);
    return *value;
}

uint64_t hash_member(const json::Value& object, std::string_view key, const std::string& path) {
    const std::string* text = member(object, key, path).to_string();
    uint64_t hash = 0;
    refuse_unless(text != nullptr && parse_hash64(*text, hash), path, "{} is not 16 hexadecimal digits", key);
    return hash;
}

}  // namespace

bool is_checkpoint_file_name(std::string_view name) {
    const auto allowed = [](char c) {
        return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
               c == '_' || c == '-';
    };
    return !name.empty() && name.size() <= 200 && name.front() != '.' && name != manifest_name &&
           std::all_of(name.begin(), name.end(), allowed);
}

std::string format_manifest(int64_t step, const std::vector<ManifestEntry>& files) {
    json::Value list = json::Value::array();
    for (const ManifestEntry& file : files)
        list.push(json::Value::object(
            {{"name", file.name}, {"bytes", file.bytes}, {"xxh64", format_hash64(file.hash)}}));
    const json::Value root = json::Value::object({{"format", format_name},
                                                  {"version", format_version},
                                                  {"step", step},
                                                  {"files", std::move(list)},
                                                  {"checksum", no_checksum}});
    std::string text = json::write(root, json::Style::pretty);
    // The checksum is of the text with the checksum's own digits zero.
    const std::string checksum = format_hash64(xxh64(text));
    text.replace(text.rfind(no_checksum), checksum.size(), checksum);
    return text;
}

Checkpoint parse_manifest(const std::string& text, const std::string& path) {
    json::ParseOptions options;
    options.max_bytes = largest_manifest;
    options.max_depth = 4;
    options.code = ExitCode::checkpoint;
    const json::Value root = json::parse(text, path, options);
    const std::string* format = member(root, "format", path).to_string();
    refuse_unless(format != nullptr && *format == format_name, path,
                  "this is not the manifest of a checkpoint");
    const std::optional<int64_t> version = member(root, "version", path).to_int64();
    refuse_unless(version.has_value(), path, "version is not an integer");
    refuse_unless(*version == format_version, path, "format version {}; this program reads version {}",
                  *version, format_version);

    Checkpoint checkpoint;
    checkpoint.manifest_hash = hash_member(root, "checksum", path);
    std::string zeroed = text;
    // The digits may be missing from the text although the value has them: written with JSON escapes.
    const size_t digits = zeroed.rfind(format_hash64(checkpoint.manifest_hash));
    refuse_unless(digits != std::string::npos, path, "the checksum is not written as plain digits");
    zeroed.replace(digits, no_checksum.size(), no_checksum);
    refuse_unless(xxh64(zeroed) == checkpoint.manifest_hash, path,
                  "the manifest does not match its checksum");

    const std::optional<int64_t> step = member(root, "step", path).to_int64();
    refuse_unless(step && *step >= 0, path, "step is not a count");
    checkpoint.step = *step;
    const json::Array* files = member(root, "files", path).to_array();
    refuse_unless(files != nullptr, path, "files is not an array");
    for (const json::Value& file : *files) {
        const std::string* name = member(file, "name", path).to_string();
        refuse_unless(name != nullptr && is_checkpoint_file_name(*name), path,
                      "a file has no acceptable name");
        refuse_unless(!checkpoint.has(*name), path, "file {} is listed twice", *name);
        const std::optional<uint64_t> bytes = member(file, "bytes", path).to_uint64();
        refuse_unless(bytes.has_value(), path, "the size of {} is not a count", *name);
        checkpoint.files.push_back({*name, *bytes, hash_member(file, "xxh64", path)});
    }
    return checkpoint;
}

}  // namespace longreach::io
