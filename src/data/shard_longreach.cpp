// Our own shard format: reader and writer. Layout (little-endian; data/formats/shards.md is the reference):
//
//     0   magic "LRTOKENS"            48  documents            88  zero, reserved
//     8   u32 version 1               56  source bytes        120  XXH64 of bytes 0..119
//    12   u32 header bytes 128        64  tokenizer           128  tokens, then zeros up to a multiple of 8
//    16   u32 width   20 u32 side     72  checksum block           document table: u64 each
//    24   u64 tokens  32 u64 vocab    80  XXH64 of all after       XXH64 of each block of token data
//    40   i64 boundary token              the token data
#include <algorithm>
#include <limits>

#include "base/error.h"
#include "data/shard_format.h"
#include "data/shard_writer.h"

namespace longreach::data {

namespace {

constexpr std::string_view shard_magic = "LRTOKENS";
constexpr uint32_t version = 1;
using HeaderBytes = std::array<unsigned char, shard_header_bytes>;

uint64_t padding_of(uint64_t token_bytes) {
    return (8 - token_bytes % 8) % 8;
}

uint64_t blocks_of(uint64_t token_bytes) {
    return token_bytes / shard_block_bytes + (token_bytes % shard_block_bytes != 0);
}

// Reads `count` numbers from `offset` on; the caller has checked that the file holds them.
std::vector<uint64_t> read_table(const io::File& file, uint64_t offset, uint64_t count) {
    std::vector<uint64_t> table(static_cast<size_t>(count));
    file.read_at(table.data(), table.size() * sizeof(uint64_t), offset);
    return table;
}

}  // namespace

bool is_longreach_shard(const FileHead& head) {
    return head.starts_with(shard_magic);
}

ShardInfo parse_longreach_shard(const io::File& file) {
    const std::string& path = file.path();
    const uint64_t file_bytes = file.size();
    require(file_bytes >= shard_header_bytes, ExitCode::data, "{}: {} bytes are too few for a header of {}",
            path, file_bytes, shard_header_bytes);
    HeaderBytes h;
    file.read_at(h.data(), h.size(), 0);
    const auto u32 = [&](size_t at) { return load<uint32_t>(h.data() + at); };
    const auto u64 = [&](size_t at) { return load<uint64_t>(h.data() + at); };
    // The version comes before the checksum: a later version may place the checksum elsewhere.
    require(u32(8) == version, ExitCode::data, "{}: format version {}; this program reads version {}", path,
            u32(8), version);
    require(u64(120) == xxh64(h.data(), 120), ExitCode::data, "{}: the header does not match its checksum",
            path);
    require(u32(12) == shard_header_bytes, ExitCode::data, "{}: header of {} bytes, not {}", path, u32(12),
            shard_header_bytes);
    require(u32(16) == 2 || u32(16) == 4, ExitCode::data, "{}: tokens of {} bytes, not 2 or 4", path,
            u32(16));
    require(u32(20) <= 1, ExitCode::data, "{}: boundary side {} is neither 0 (before) nor 1 (after)", path,
            u32(20));
    require(u64(72) == shard_block_bytes, ExitCode::data, "{}: checksum blocks of {} bytes, not {}", path,
            u64(72), shard_block_bytes);
    const bool reserved =
        std::any_of(h.begin() + 88, h.begin() + 120, [](unsigned char b) { return b != 0; });
    require(!reserved, ExitCode::data, "{}: reserved header bytes are not zero", path);

    ShardInfo info;
    info.format = ShardFormat::longreach;
    info.type = {static_cast<int>(u32(16)), false};
    info.tokens = u64(24);
    info.data_offset = shard_header_bytes;
    info.file_bytes = file_bytes;
    info.side = u32(20) == 0 ? BoundarySide::before : BoundarySide::after;
    info.source_bytes = u64(56);
    info.tokenizer = u64(64);
    info.fingerprint = u64(120);  // covers the trailer's checksum, which covers the checksum of every block
    const uint64_t vocab = u64(32), documents = u64(48);
    const int64_t boundary = load<int64_t>(h.data() + 40);
    const uint64_t largest_vocab = info.type.bytes == 2 ? 65536 : uint64_t{1} << 31;
    require(vocab >= 1 && vocab <= largest_vocab, ExitCode::data, "{}: vocabulary {} is not in [1, {}]", path,
            vocab, largest_vocab);
    require(boundary >= -1 && boundary < static_cast<int64_t>(vocab), ExitCode::data,
            "{}: boundary token {} is not in [-1, {})", path, boundary, vocab);
    info.vocab = static_cast<int64_t>(vocab);
    info.boundary_token = boundary;

    // Both counts are bounded by the file's size first, so that no product below can overflow.
    require(info.tokens <= file_bytes && documents <= file_bytes, ExitCode::data,
            "{}: {} tokens and {} documents do not fit into {} bytes", path, info.tokens, documents,
            file_bytes);
    const uint64_t bytes = info.token_bytes(), padding = padding_of(bytes), blocks = blocks_of(bytes);
    require_size(file, shard_header_bytes + bytes + padding + 8 * documents + 8 * blocks,
                 fmt::format("{} + {} tokens * {} + {} padding + {} documents * 8 + {} checksums * 8",
                             shard_header_bytes, info.tokens, info.type.bytes, padding, documents, blocks));
    const uint64_t trailer = shard_header_bytes + bytes;
    std::array<unsigned char, 8> zeros{};
    file.read_at(zeros.data(), static_cast<size_t>(padding), trailer);
    info.documents = read_table(file, trailer + padding, documents);
    info.block_checksums = read_table(file, trailer + padding + 8 * documents, blocks);
    Xxh64 hash;
    hash.update(zeros.data(), static_cast<size_t>(padding));
    hash.update(info.documents.data(), info.documents.size() * 8);
    hash.update(info.block_checksums.data(), info.block_checksums.size() * 8);
    require(hash.digest() == u64(80), ExitCode::data,
            "{}: the document table or the checksums after the tokens are damaged", path);
    for (size_t i = 0; i < info.documents.size(); ++i) {
        const uint64_t at = info.documents[i];
        require(at < info.tokens && (i == 0 || at > info.documents[i - 1]), ExitCode::data,
                "{}: entry {} of the document table, {}, is out of order or beyond the {} tokens", path, i,
                at, info.tokens);
    }
    info.has_documents = true;
    return info;
}

ShardWriter::ShardWriter(const std::string& path, const ShardHeader& header, io::Disk& disk)
    : file_(path, disk), header_(header) {
    check(header.width == 2 || header.width == 4, "tokens of {} bytes", header.width);
    const int64_t largest = header.width == 2 ? 65536 : std::numeric_limits<int32_t>::max();
    check(header.vocab >= 1 && header.vocab <= largest, "vocabulary of {}", header.vocab);
    check(header.boundary_token >= -1 && header.boundary_token < header.vocab, "boundary token {} of {}",
          header.boundary_token, header.vocab);
    block_.reserve(shard_block_bytes);
    file_.write(HeaderBytes{}.data(), shard_header_bytes);  // its place; finish() fills it in
}

void ShardWriter::begin_document() {
    check(documents_.empty() || documents_.back() < tokens_, "an empty document at token {}", tokens_);
    documents_.push_back(tokens_);
}

void ShardWriter::append(const int32_t* tokens, size_t count) {
    const size_t width = static_cast<size_t>(header_.width);
    for (size_t i = 0; i < count; ++i) {
        check(tokens[i] >= 0 && tokens[i] < header_.vocab, "token {} of a vocabulary of {}", tokens[i],
              header_.vocab);
        std::array<unsigned char, 4> bytes;
        store(bytes.data(), tokens[i]);
        block_.insert(block_.end(), bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(width));
        if (block_.size() == shard_block_bytes) flush_block();
    }
    tokens_ += count;
}

void ShardWriter::flush_block() {
    checksums_.push_back(xxh64(block_.data(), block_.size()));
    file_.write(block_.data(), block_.size());
    block_.clear();
}

uint64_t ShardWriter::finish() {
    check(documents_.empty() || documents_.back() < tokens_, "the last document is empty");
    if (!block_.empty()) flush_block();
    const std::array<unsigned char, 8> zeros{};
    const size_t padding = static_cast<size_t>(padding_of(tokens_ * static_cast<uint64_t>(header_.width)));
    Xxh64 trailer;
    const auto write = [&](const void* data, size_t size) {
        file_.write(data, size);
        trailer.update(data, size);
    };
    write(zeros.data(), padding);
    write(documents_.data(), documents_.size() * 8);
    write(checksums_.data(), checksums_.size() * 8);

    HeaderBytes h{};
    std::memcpy(h.data(), shard_magic.data(), shard_magic.size());
    store<uint32_t>(h.data() + 8, version);
    store<uint32_t>(h.data() + 12, static_cast<uint32_t>(shard_header_bytes));
    store<uint32_t>(h.data() + 16, static_cast<uint32_t>(header_.width));
    store<uint32_t>(h.data() + 20, header_.side == BoundarySide::before ? 0 : 1);
    store<uint64_t>(h.data() + 24, tokens_);
    store<uint64_t>(h.data() + 32, static_cast<uint64_t>(header_.vocab));
    store<int64_t>(h.data() + 40, header_.boundary_token);
    store<uint64_t>(h.data() + 48, documents_.size());
    store<uint64_t>(h.data() + 56, source_bytes_);
    store<uint64_t>(h.data() + 64, header_.tokenizer);
    store<uint64_t>(h.data() + 72, shard_block_bytes);
    store<uint64_t>(h.data() + 80, trailer.digest());
    const uint64_t fingerprint = xxh64(h.data(), 120);
    store<uint64_t>(h.data() + 120, fingerprint);
    file_.file().write_at(h.data(), h.size(), 0);
    file_.commit();
    return fingerprint;
}

}  // namespace longreach::data
