// One file of tokens.
//
// A shard's header is read and checked in full before anything else: every field, and the file's size to the
// byte. Formats are recognised by their first bytes; data/formats/shards.md describes each of them. A recognised
// format other than a token shard is named in the error.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "io/file.h"

namespace longreach::data {

enum class ShardFormat { longreach, llmc_v1, llmc_v7, llmq, megatron, raw };
const char* name_of(ShardFormat format);

// The boundary token is the first token of its document (`before`) or the last (`after`).
enum class BoundarySide { before, after };

// How a token is stored: little-endian, `bytes` wide.
struct TokenType {
    int bytes = 0;
    bool is_signed = false;
};

struct ShardInfo {
    std::string path;  // of the file that holds the tokens
    ShardFormat format = ShardFormat::raw;
    TokenType type;
    uint64_t tokens = 0;
    uint64_t data_offset = 0;  // bytes before the first token
    uint64_t file_bytes = 0;
    int64_t vocab = 0;            // every token is below; 0: the header does not say
    int64_t boundary_token = -1;  // -1: the header does not say
    BoundarySide side = BoundarySide::before;
    uint64_t source_bytes = 0;  // bytes of text that the tokens encode; 0: unknown
    uint64_t tokenizer = 0;     // fingerprint of the tokenizer; 0: unknown
    uint64_t fingerprint = 0;   // of the content: complete for our own format, from samples for the others

    bool has_documents = false;             // the format carries a document table
    std::vector<uint64_t> documents;        // position of each document's first token, strictly ascending
    std::vector<uint64_t> block_checksums;  // our own format: XXH64 of each MiB of token data

    uint64_t token_bytes() const { return tokens * static_cast<uint64_t>(type.bytes); }
};

struct ShardOptions {
    bool raw = false;  // the files have no header
    int width = 0;     // bytes per token of a raw file: 2 or 4
};

class Shard {
  public:
    static Shard open(const std::string& path, const ShardOptions& options);

    const ShardInfo& info() const { return info_; }

    // Tokens [begin, begin + count) of this shard. A stored value that does not fit becomes negative, so that
    // the vocabulary check finds it. Safe to call from several threads.
    void read(uint64_t begin, uint64_t count, int32_t* out) const;

    // The value as stored, for messages.
    int64_t stored_value(uint64_t position) const;

    // Compares block `index` of our own format with its checksum.
    bool block_is_intact(size_t index) const;

  private:
    Shard(io::File file, ShardInfo info) : file_(std::move(file)), info_(std::move(info)) {}
    io::File file_;
    ShardInfo info_;
};

}  // namespace longreach::data
