// Writing shards of our own format (data/formats/shards.md has the layout to the byte).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "data/shard.h"

namespace longreach::data {

inline constexpr uint64_t shard_header_bytes = 128;
inline constexpr uint64_t shard_block_bytes = uint64_t{1} << 20;  // token data under one checksum

struct ShardHeader {
    int width = 2;                // bytes per token: 2 or 4
    int64_t vocab = 0;            // every token is below
    int64_t boundary_token = -1;  // -1: documents are marked by the table alone
    BoundarySide side = BoundarySide::before;
    uint64_t tokenizer = 0;  // fingerprint of the tokenizer; 0: unknown
};

// Streams tokens into one shard. Memory: one block, 8 bytes per document and 8 bytes per MiB. The shard
// appears under its name, complete and durable, when finish() returns; without it nothing remains.
class ShardWriter {
  public:
    ShardWriter(const std::string& path, const ShardHeader& header, io::Disk& disk = io::Disk::system());

    void begin_document();  // the next token appended is the first of a document
    void append(const int32_t* tokens, size_t count);
    void add_source_bytes(uint64_t bytes) { source_bytes_ += bytes; }
    uint64_t tokens() const { return tokens_; }
    uint64_t finish();  // returns the shard's fingerprint

  private:
    void flush_block();
    io::AtomicFile file_;
    ShardHeader header_;
    std::vector<unsigned char> block_;  // token bytes not yet written, at most one block
    std::vector<uint64_t> documents_, checksums_;
    uint64_t tokens_ = 0, source_bytes_ = 0;
};

}  // namespace longreach::data
