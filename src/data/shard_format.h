// The parsers of Shard::open, one per family of formats. Each fills everything of ShardInfo but the path
// and the sampled fingerprint, or throws an Error that names the file, the field and both values.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

#include "data/shard.h"

namespace longreach::data {

// A little-endian number at `p`.
template <class T>
T load(const void* p) {
    T value;
    std::memcpy(&value, p, sizeof value);
    return value;
}

template <class T>
void store(void* p, T value) {
    std::memcpy(p, &value, sizeof value);
}

// The first bytes of a file, zero-padded.
struct FileHead {
    std::array<unsigned char, 16> bytes{};
    uint64_t file_bytes = 0;

    static FileHead read(const io::File& file);
    bool starts_with(std::string_view magic) const;
};

bool is_longreach_shard(const FileHead& head);
bool is_megatron_index(const FileHead& head);
bool is_foreign_shard(const FileHead& head);  // llm.c or llmq

ShardInfo parse_longreach_shard(const io::File& file);
ShardInfo parse_foreign_shard(const io::File& file);
ShardInfo parse_raw_shard(const io::File& file, int width);
// `index` is the .idx file; `tokens` the .bin file of the same name.
ShardInfo parse_megatron_shard(const io::File& index, const io::File& tokens);

// What a file that is not a token shard seems to be ("a gzip archive"); empty if unknown.
std::string describe_other_file(const FileHead& head);

// Throws unless the file has exactly the size its header implies.
void require_size(const io::File& file, uint64_t expected, std::string_view why);

}  // namespace longreach::data
