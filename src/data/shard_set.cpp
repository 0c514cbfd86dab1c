#include "data/shard_set.h"

#include "base/error.h"
#include "data/shard_list.h"
#include "tokenizer/byte_text.h"

namespace longreach::data {

ShardHeader byte_header() {
    return {.width = 2,
            .vocab = tokenizer::byte_vocabulary,
            .boundary_token = tokenizer::byte_boundary,
            .side = BoundarySide::before,
            .tokenizer = tokenizer::bytes_fingerprint()};
}

ShardSet::ShardSet(std::string directory, std::string name, uint64_t max_shard_tokens,
                   const ShardHeader& header, io::Disk& disk)
    : directory_(std::move(directory)),
      name_(std::move(name)),
      max_shard_tokens_(max_shard_tokens),
      header_(header),
      disk_(disk) {
    check(max_shard_tokens >= 1, "shards of no tokens");
    check(header.boundary_token >= 0, "documents without a boundary token");
}

std::string ShardSet::path_of(size_t shard) const {
    return io::join_path(directory_, ShardName{name_, shard}.file());
}

void ShardSet::resume(uint64_t shards) {
    for (uint64_t i = 0; i < shards; ++i) {
        const std::string path = path_of(i);
        const ShardInfo info = Shard::open(path, {}).info();
        require(info.tokenizer == header_.tokenizer, ExitCode::data,
                "{} was made with another tokenizer than this one", path);
        result_.shards.push_back(path);
        result_.tokens += info.tokens;
        result_.documents += info.documents.size();
        result_.source_bytes += info.source_bytes;
        result_.fingerprints.push_back(info.fingerprint);
    }
}

void ShardSet::begin_document() {
    if (!shard_) shard_.emplace(path_of(result_.shards.size()), header_, disk_);
    shard_->begin_document();
    const int32_t boundary = static_cast<int32_t>(header_.boundary_token);
    shard_->append(&boundary, 1);
    ++result_.documents;
    ++result_.tokens;
}

void ShardSet::append_bytes(std::string_view text) {
    tokens_.clear();
    for (const char c : text) tokens_.push_back(static_cast<unsigned char>(c));
    append_tokens(tokens_, text.size());
}

void ShardSet::append_tokens(const std::vector<int32_t>& tokens, uint64_t source_bytes) {
    shard_->append(tokens.data(), tokens.size());
    shard_->add_source_bytes(source_bytes);
    result_.tokens += tokens.size();
    result_.source_bytes += source_bytes;
}

bool ShardSet::end_document() {
    if (shard_->tokens() < max_shard_tokens_) return false;
    close_shard();
    return true;
}

void ShardSet::close_shard() {
    result_.fingerprints.push_back(shard_->finish());
    result_.shards.push_back(path_of(result_.shards.size()));
    shard_.reset();
}

SplitResult ShardSet::finish() {
    if (shard_) close_shard();
    const std::vector<uint64_t>& all = result_.fingerprints;
    if (!all.empty()) result_.fingerprint = xxh64(all.data(), all.size() * sizeof(uint64_t));
    return result_;
}

}  // namespace longreach::data
