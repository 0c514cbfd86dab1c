#include "data/shard_list.h"

#include <algorithm>
#include <array>
#include <charconv>

#include "base/error.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/text.h"
#include "data/shard_format.h"
#include "data/shard_writer.h"

namespace longreach::data {

namespace {

constexpr uint64_t largest_list = uint64_t{256} << 20, largest_listed = uint64_t{256} << 20;  // bytes

ListedFile entry_of(const json::Member& member, const std::string& path) {
    ListedFile file{member.key};
    const std::string* hash = member.value.to_string();
    const bool known = ShardName::parse(file.name) || is_tokenizer_file(file.name);
    require(known && hash != nullptr && parse_hash64(*hash, file.hash), ExitCode::data,
            "{} is damaged: the entry {}", path, shown(file.name));
    return file;
}

// The fingerprint in a shard's header; nothing for a file that is not a shard of our own format.
std::optional<uint64_t> fingerprint_of(const io::File& file) {
    std::array<unsigned char, shard_header_bytes> header;
    if (file.size() < header.size() || !is_longreach_shard(FileHead::read(file))) return std::nullopt;
    file.read_at(header.data(), header.size(), 0);
    return load<uint64_t>(header.data() + 120);
}

}  // namespace

std::string ShardName::file() const {
    return fmt::format("{}_{:06}.bin", split, number);
}

std::optional<ShardName> ShardName::parse(std::string_view name) {
    for (const std::string_view split : {"train", "val"}) {
        if (!name.starts_with(split)) continue;
        ShardName shard{std::string(split)};
        const size_t begin = split.size() + 1;
        if (name.size() <= begin) return std::nullopt;
        std::from_chars(name.data() + begin, name.data() + name.size(), shard.number);
        if (shard.file() == name) return shard;
    }
    return std::nullopt;
}

bool is_tokenizer_file(std::string_view name) {
    return name == "tokenizer.json" || name == "vocab.json" || name == "merges.txt";
}

bool ListedFile::is_in(const std::string& directory) const {
    const std::string path = io::join_path(directory, name);
    if (io::kind_of(path, io::Links::refuse) != io::PathKind::file) return false;
    const io::File file = io::File::open(path, io::Links::refuse);
    if (ShardName::parse(name)) return fingerprint_of(file) == hash;
    return file.size() <= largest_listed &&
           xxh64(io::read_file(path, largest_listed, io::Links::refuse)) == hash;
}

ShardList ShardList::read(const std::string& directory) {
    const std::string path = io::join_path(directory, name);
    ShardList list;
    if (io::kind_of(path, io::Links::refuse) == io::PathKind::missing) return list;
    json::ParseOptions parse;
    parse.code = ExitCode::data;
    parse.max_bytes = largest_list;
    const json::Value root = json::parse(io::read_file(path, largest_list, io::Links::refuse), path, parse);
    json::require_format(root, format, path, ExitCode::data);
    const json::Value* files = root.find("files");
    require(files != nullptr && files->is_object(), ExitCode::data, "{} is damaged: no files", path);
    for (const json::Member& member : files->as_object()) list.files.push_back(entry_of(member, path));
    return list;
}

void ShardList::write(const std::string& directory, io::Disk& disk) const {
    json::Object entries;
    for (const ListedFile& file : files) entries.push_back({file.name, format_hash64(file.hash)});
    const json::Value root =
        json::Value::object({{"format", format}, {"files", json::Value(std::move(entries))}});
    io::write_file_atomically(io::join_path(directory, name), json::write(root, json::Style::pretty) + "\n",
                              disk);
}

const ListedFile* ShardList::find(std::string_view file) const {
    const auto found = std::find_if(files.begin(), files.end(),
                                    [&](const ListedFile& listed) { return listed.name == file; });
    return found == files.end() ? nullptr : &*found;
}

}  // namespace longreach::data
