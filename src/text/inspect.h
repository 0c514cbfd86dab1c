// `data inspect` and `data verify`: what a data set contains, and whether it is intact.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "data/token_stream.h"

namespace longreach::text {

struct DocumentStatistics {
    bool known = false;                   // the stream says where documents begin
    uint64_t scanned = 0;                 // tokens looked at
    uint64_t documents = 0;               // begun in them; the part of a document at position 0 counts as one
    double mean = 0;                      // tokens per document
    std::array<uint64_t, 7> quantiles{};  // of the lengths, at `quantile_levels`
};
inline constexpr std::array<double, 7> quantile_levels{0, 0.1, 0.25, 0.5, 0.75, 0.9, 1};

struct ShardSummary {
    data::ShardInfo info;
    std::vector<int32_t> first_tokens;
};

struct Inspection {
    std::vector<ShardSummary> shards;
    uint64_t tokens = 0, source_bytes = 0, fingerprint = 0;
    DocumentStatistics documents;
};

struct InspectOptions {
    data::StreamOptions stream = {};
    uint64_t scan_tokens = uint64_t{1} << 28;  // document lengths are measured in at most this many tokens
    size_t first_tokens = 32;                  // shown of each shard
};

Inspection inspect(const std::vector<std::string>& paths, const InspectOptions& options);
std::string to_text(const Inspection& inspection);

// Tokens as a line of text: bytes as they are where printable (byte-level shards), numbers otherwise.
std::string render_tokens(const data::ShardInfo& info, const std::vector<int32_t>& tokens);

struct VerifyProblem {
    std::string shard;
    std::string what;
};

struct Verification {
    uint64_t shards = 0, tokens = 0, bytes = 0;  // looked at; bytes of token data
    uint64_t checksums = 0;                      // blocks compared with a checksum
    std::vector<VerifyProblem> problems;  // in order; at most `problems_per_shard` of one shard, then a count
};
inline constexpr size_t problems_per_shard = 10;

// Reads every byte of every shard: header and size, all checksums, every token below its vocabulary (and
// `vocab` of the options), the document table against the boundary tokens. Problems with the data are
// collected, not thrown. `progress` may be empty; it is called with the bytes done so far.
Verification verify(const std::vector<std::string>& paths, const data::StreamOptions& options,
                    const std::function<void(uint64_t bytes)>& progress = {});
std::string to_text(const Verification& verification);

}  // namespace longreach::text
