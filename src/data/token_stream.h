// All tokens of a data set as one sequence of 64-bit positions.
//
// A stream is the concatenation of its shards in the order given (inside a directory or a pattern: byte
// order of the names). Everything read is checked: a token outside the vocabulary is an Error that
// names shard and position.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "data/shard.h"

namespace longreach::data {

struct StreamOptions {
    ShardOptions shard = {};
    int64_t vocab = 0;            // of the model: every token must be below; 0: only the headers' own bound
    int64_t boundary_token = -1;  // where documents begin; -1: as the shards say
    BoundarySide side = BoundarySide::before;  // with boundary_token
    bool need_documents = false;               // refuse shards whose documents are unknown

    // Our own shards are checked in full at open when all of them together hold at most this many bytes (a
    // fraction of a second); larger sets are checked by `data verify`.
    uint64_t verify_limit = uint64_t{256} << 20;
};

// The tokens of a stream that came from one list of paths: positions [begin, begin + tokens).
struct Source {
    uint64_t begin = 0, tokens = 0;
    bool operator==(const Source&) const = default;
};

class TokenStream {
  public:
    // Each path is a shard, a directory of shards (*.bin, *.idx) or a shell pattern.
    static TokenStream open(const std::vector<std::string>& paths, const StreamOptions& options);

    // The same of several sources, one after the other. No shard may be in two.
    static TokenStream open_sources(const std::vector<std::vector<std::string>>& sources,
                                    const StreamOptions& options);

    // A stream without tokens, for planning without the data.
    static TokenStream absent() { return {}; }

    uint64_t tokens() const { return first_.back(); }
    const std::vector<Source>& sources() const { return sources_; }

    // Tokens [begin, begin + count), which must be inside the stream. Safe to call from several threads.
    void read(uint64_t begin, int64_t count, int32_t* out) const;

    // For each of the positions [begin, begin + count), whose tokens the caller has read: the start of its
    // document, as an offset from `begin`. A document that began before `begin` starts at 0.
    //   doc_start[i] = max { j <= i : j == 0 or a document begins at begin + j }
    void document_starts(uint64_t begin, int64_t count, const int32_t* tokens, int32_t* doc_start) const;
    // Where documents begin, ascending, the first at 0. Taken from the shards' tables; a shard without one is read.
    std::vector<uint64_t> document_begins() const;
    bool knows_documents() const { return knows_documents_; }

    uint64_t fingerprint() const { return fingerprint_; }    // of the content, independent of paths
    uint64_t source_bytes() const { return source_bytes_; }  // of text of all tokens; 0: unknown
    double bytes_per_token() const;                          // 0: unknown
    uint64_t tokenizer() const { return tokenizer_; }        // fingerprint, one for all shards; 0: unknown
    int64_t largest_token_bound() const {
        return bound_;
    }  // the largest vocabulary a header states; 0: none does

    size_t shard_count() const { return shards_.size(); }
    const Shard& shard(size_t index) const { return shards_[index]; }
    uint64_t shard_begin(size_t index) const { return first_[index]; }

  private:
    // How the documents of one shard are found.
    struct Rule {
        enum class Kind { unknown, before, after, table } kind = Kind::unknown;
        int32_t token = -1;
        bool tabled = false;  // the shard's own table has the same documents
    };
    TokenStream() = default;
    size_t shard_of(uint64_t position) const;
    void find_documents(uint64_t from, uint64_t end, std::vector<uint64_t>& begins) const;
    [[noreturn]] void fail_token(size_t shard, uint64_t position) const;

    std::vector<Shard> shards_;
    std::vector<Source> sources_;
    std::vector<Rule> rules_;         // one per shard
    std::vector<int64_t> limits_;     // one per shard: tokens must be below
    std::vector<uint64_t> first_{0};  // position of each shard's first token, then the total
    uint64_t fingerprint_ = 0, source_bytes_ = 0, tokenizer_ = 0;
    int64_t bound_ = 0;
    bool knows_documents_ = false;
};

// The shard files that `paths` name, in stream order.
std::vector<std::string> find_shards(const std::vector<std::string>& paths);

}  // namespace longreach::data
