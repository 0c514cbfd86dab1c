#include <algorithm>

#include "base/error.h"
#include "base/units.h"
#include "text/inspect.h"
#include "data/shard_writer.h"

namespace longreach::text {

namespace {

// Collects the problems of one shard, up to a bound.
class ShardProblems {
  public:
    ShardProblems(std::string shard, std::vector<VerifyProblem>& all) : shard_(std::move(shard)), all_(all) {}
    ~ShardProblems() {
        if (count_ > problems_per_shard)
            all_.push_back({shard_, fmt::format("{} further problems", count_ - problems_per_shard)});
    }
    ShardProblems(const ShardProblems&) = delete;
    ShardProblems& operator=(const ShardProblems&) = delete;

    void add(std::string what) {
        if (++count_ <= problems_per_shard) all_.push_back({shard_, std::move(what)});
    }

  private:
    std::string shard_;
    std::vector<VerifyProblem>& all_;
    size_t count_ = 0;
};

// Compares the document table of our own format with the boundary tokens, as they pass in order.
class TableCheck {
  public:
    TableCheck(const data::ShardInfo& info, ShardProblems& problems)
        : info_(info),
          problems_(problems),
          active_(info.format == data::ShardFormat::longreach && info.boundary_token >= 0) {}

    void token(uint64_t position, int32_t token) {
        if (!active_) return;
        const bool before = info_.side == data::BoundarySide::before;
        const bool marker = token == info_.boundary_token;
        const bool begins = before ? marker : after_marker_;
        after_marker_ = marker;
        const bool listed = next_ < info_.documents.size() && info_.documents[next_] == position;
        if (listed) ++next_;
        // With markers at the end, the first token begins a document or continues the last shard's.
        if (listed == begins || (!before && position == 0)) return;
        problems_.add(
            listed ? fmt::format("the table has a document at token {}, but no boundary token is there",
                                 position)
                   : fmt::format("the boundary tokens begin a document at token {}, the table does not",
                                 position));
    }

  private:
    const data::ShardInfo& info_;
    ShardProblems& problems_;
    bool active_, after_marker_ = false;
    size_t next_ = 0;
};

void verify_shard(const data::Shard& shard, int64_t vocab, Verification& result,
                  const std::function<void(uint64_t)>& progress) {
    const data::ShardInfo& info = shard.info();
    ShardProblems problems(info.path, result.problems);
    if (vocab > 0 && info.vocab > vocab)
        problems.add(fmt::format("its vocabulary is {}, the model's only {}", info.vocab, vocab));
    const int64_t own = info.vocab > 0 ? info.vocab : int64_t{1} << 31;
    const int64_t limit = vocab > 0 ? std::min(vocab, own) : own;
    TableCheck table(info, problems);
    const uint64_t step = data::shard_block_bytes / static_cast<uint64_t>(info.type.bytes);  // tokens per MiB
    std::vector<int32_t> tokens(static_cast<size_t>(std::min(step, info.tokens)));
    for (uint64_t at = 0, block = 0; at < info.tokens; at += step, ++block) {
        const uint64_t count = std::min(step, info.tokens - at);
        if (block < info.block_checksums.size()) {
            if (!shard.block_is_intact(static_cast<size_t>(block)))
                problems.add(fmt::format("MiB {} of the token data does not match its checksum", block));
            ++result.checksums;
        }
        shard.read(at, count, tokens.data());
        for (uint64_t i = 0; i < count; ++i) {
            const int32_t token = tokens[static_cast<size_t>(i)];
            if (token < 0 || token >= limit)
                problems.add(fmt::format("token {} at position {} is outside the vocabulary of {}",
                                         shard.stored_value(at + i), at + i, limit));
            table.token(at + i, token);
        }
        result.tokens += count;
        result.bytes += count * static_cast<uint64_t>(info.type.bytes);
        if (progress) progress(result.bytes);
    }
}

}  // namespace

Verification verify(const std::vector<std::string>& paths, const data::StreamOptions& options,
                    const std::function<void(uint64_t)>& progress) {
    Verification result;
    for (const std::string& path : data::find_shards(paths)) {
        ++result.shards;
        try {
            verify_shard(data::Shard::open(path, options.shard), options.vocab, result, progress);
        } catch (const Error& error) {
            if (error.code() != ExitCode::data) throw;
            result.problems.push_back({path, error.what()});
        }
    }
    return result;
}

std::string to_text(const Verification& verification) {
    std::string text;
    for (const VerifyProblem& problem : verification.problems)
        text += problem.shard + ": " + problem.what + "\n";
    text += fmt::format("{} shards, {} tokens, {} read, {} checksums compared: ", verification.shards,
                        verification.tokens, human_bytes(static_cast<int64_t>(verification.bytes)),
                        verification.checksums);
    if (verification.problems.empty()) return text + "no problem\n";
    return text + fmt::format("{} problems\n", verification.problems.size());
}

}  // namespace longreach::text
