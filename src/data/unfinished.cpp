#include "data/unfinished.h"

#include "base/error.h"
#include "base/hash.h"
#include "base/json.h"
#include "io/file.h"

namespace longreach::data {

namespace {

json::Value to_json(const SplitProgress& progress) {
    return json::Value::object({{"shards", static_cast<int64_t>(progress.shards)},
                                {"next_document", static_cast<int64_t>(progress.next_document)}});
}

uint64_t count_of(const json::Value& object, const char* name, const std::string& path) {
    const json::Value* value = object.is_object() ? object.find(name) : nullptr;
    const int64_t count = value != nullptr ? value->to_int64().value_or(-1) : -1;
    require(count >= 0, ExitCode::data, "{} is damaged: no {}", path, name);
    return static_cast<uint64_t>(count);
}

SplitProgress progress_of(const json::Value& root, const char* split, const std::string& path) {
    const json::Value* value = root.is_object() ? root.find(split) : nullptr;
    require(value != nullptr, ExitCode::data, "{} is damaged: no {}", path, split);
    return {count_of(*value, "shards", path), count_of(*value, "next_document", path)};
}

}  // namespace

std::string Unfinished::path_in(const std::string& directory) {
    return io::join_path(directory, name);
}

std::optional<Unfinished> Unfinished::read(const std::string& directory) {
    const std::string path = path_in(directory);
    if (io::kind_of(path, io::Links::refuse) == io::PathKind::missing) return std::nullopt;
    json::ParseOptions parse;
    parse.code = ExitCode::data;
    const json::Value root =
        json::parse(io::read_file(path, uint64_t{1} << 16, io::Links::refuse), path, parse);
    const json::Value* request = root.is_object() ? root.find("request") : nullptr;
    const std::string* text = request != nullptr ? request->to_string() : nullptr;
    uint64_t hash = 0;
    require(text != nullptr && parse_hash64(*text, hash), ExitCode::data, "{} is damaged: no request", path);
    const json::Value* publishing = root.find("publishing");
    return Unfinished{hash, progress_of(root, "train", path), progress_of(root, "val", path),
                      publishing != nullptr && publishing->to_bool().value_or(false)};
}

void Unfinished::write(const std::string& directory, io::Disk& disk) const {
    json::Value root = json::Value::object(
        {{"request", format_hash64(request)}, {"train", to_json(train)}, {"val", to_json(val)}});
    if (publishing) root.set("publishing", true);
    io::write_file_atomically(path_in(directory), json::write(root, json::Style::pretty) + "\n", disk);
}

}  // namespace longreach::data
