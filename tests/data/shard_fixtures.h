// Shards of every format, written by hand from their documentation.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "data/shard_writer.h"
#include "io/temp_dir.h"

namespace longreach::test {

using Tokens = std::vector<int32_t>;

template <class T>
std::string bytes_of(T value) {
    std::string bytes(sizeof(T), '\0');
    std::memcpy(bytes.data(), &value, sizeof(T));
    return bytes;
}

template <class T>
std::string packed(const Tokens& tokens) {
    std::string bytes;
    for (const int32_t t : tokens) bytes += bytes_of(static_cast<T>(t));
    return bytes;
}

inline std::string foreign_header(const std::vector<int32_t>& words, char filler = '\0') {
    std::string header;
    for (const int32_t w : words) header += bytes_of(w);
    header.resize(1024, filler);
    return header;
}

inline std::string llmc_v1(const Tokens& tokens) {
    return foreign_header({20240520, 1, static_cast<int32_t>(tokens.size())}) + packed<uint16_t>(tokens);
}

inline std::string llmc_v7(const Tokens& tokens) {
    return foreign_header({20240801, 7, static_cast<int32_t>(tokens.size())}) + packed<uint32_t>(tokens);
}

inline std::string llmq(const Tokens& tokens, int32_t version, int32_t vocab, int32_t has_masks) {
    std::string header = "BIN.TOK\n";
    for (const int32_t w : {version, 4, static_cast<int32_t>(tokens.size()), vocab, has_masks})
        header += bytes_of(w);
    header.resize(1024, '*');
    return header + packed<int32_t>(tokens) +
           std::string(has_masks == 1 ? (tokens.size() + 7) / 8 : 0, '\xff');
}

// The index of a Megatron data set whose document d consists of the sequences with lengths[d].
inline std::string megatron_index(int type_code, int width,
                                  const std::vector<std::vector<int32_t>>& lengths) {
    std::string sizes, offsets, documents = bytes_of(int64_t{0});
    int64_t sequences = 0, offset = 0;
    for (const auto& document : lengths) {
        for (const int32_t length : document) {
            sizes += bytes_of(length);
            offsets += bytes_of(offset);
            offset += int64_t{length} * width;
            ++sequences;
        }
        documents += bytes_of(sequences);
    }
    return std::string("MMIDIDX\0\0", 9) + bytes_of(uint64_t{1}) + static_cast<char>(type_code) +
           bytes_of(static_cast<uint64_t>(sequences)) + bytes_of(static_cast<uint64_t>(lengths.size() + 1)) +
           sizes + offsets + documents;
}

// One of our own, made of whole documents.
inline uint64_t write_documents(const std::string& path, const data::ShardHeader& header,
                                const std::vector<Tokens>& documents, uint64_t source_bytes = 0) {
    data::ShardWriter writer(path, header);
    for (const Tokens& document : documents) {
        writer.begin_document();
        writer.append(document.data(), document.size());
    }
    writer.add_source_bytes(source_bytes);
    return writer.finish();
}

// 0, 1, 2, ... below `vocab`, repeated.
inline Tokens counting(size_t count, int32_t vocab, int32_t first = 0) {
    Tokens tokens(count);
    for (size_t i = 0; i < count; ++i)
        tokens[i] = static_cast<int32_t>((i + static_cast<size_t>(first)) % static_cast<size_t>(vocab));
    return tokens;
}

}  // namespace longreach::test
