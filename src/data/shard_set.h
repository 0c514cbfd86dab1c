// Writing one split of a data set: one or more shards of our own format.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "data/shard_writer.h"

namespace longreach::data {

ShardHeader byte_header();  // of shards of bytes

struct SplitResult {
    std::vector<std::string> shards;  // paths, in order
    uint64_t tokens = 0, documents = 0, source_bytes = 0;
    std::vector<uint64_t> fingerprints;  // of the shards
    uint64_t fingerprint =
        0;  // of them all: equals TokenStream::fingerprint() over these shards; 0 if there are none
};

// Writes documents to <directory>/<name>_000000.bin and so on, each after the boundary token of `header`.
// A shard is closed at the first end of a document at or past `max_shard_tokens`: documents are never cut.
// Without finish() the shard at hand is removed, and complete ones stay (ShardOutput).
class ShardSet {
  public:
    ShardSet(std::string directory, std::string name, uint64_t max_shard_tokens, const ShardHeader& header,
             io::Disk& disk = io::Disk::system());

    // Takes over the first `shards` shards, which an earlier call completed.
    void resume(uint64_t shards);

    void begin_document();
    void append_bytes(std::string_view text);  // of the byte-level tokenizer
    void append_tokens(const std::vector<int32_t>& tokens, uint64_t source_bytes);
    bool end_document();  // true if that completed a shard
    size_t complete() const { return result_.shards.size(); }
    SplitResult finish();

  private:
    std::string path_of(size_t shard) const;
    void close_shard();
    std::string directory_, name_;
    uint64_t max_shard_tokens_;
    ShardHeader header_;
    io::Disk& disk_;
    std::optional<ShardWriter> shard_;
    std::vector<int32_t> tokens_;  // scratch
    SplitResult result_;
};

}  // namespace longreach::data
