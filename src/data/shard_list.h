// shards.json: which files of a directory this program wrote, so that nothing else is ever removed.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "io/disk.h"

namespace longreach::data {

// train_000007.bin: split "train", number 7.
struct ShardName {
    std::string split;
    uint64_t number = 0;

    std::string file() const;
    static std::optional<ShardName> parse(std::string_view name);  // nothing for every other name
};

struct ListedFile {
    std::string name;
    uint64_t hash = 0;  // of a shard: its fingerprint; of any other file: XXH64 of its bytes

    // Whether the file of that name in `directory` is still the one that was listed.
    bool is_in(const std::string& directory) const;
};

struct ShardList {
    std::vector<ListedFile> files = {};

    static constexpr const char* name = "shards.json";
    static constexpr int64_t format = 1;
    // Of a directory without a list: no files. Error(ExitCode::data) if it is damaged.
    static ShardList read(const std::string& directory);
    void write(const std::string& directory, io::Disk& disk) const;
    const ListedFile* find(std::string_view file) const;
};

// The names under which a tokenizer is kept with its shards.
bool is_tokenizer_file(std::string_view name);

}  // namespace longreach::data
