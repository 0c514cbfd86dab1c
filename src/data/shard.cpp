#include "data/shard.h"

#include <algorithm>
#include <limits>

#include "base/error.h"
#include "data/shard_format.h"
#include "data/shard_writer.h"

namespace longreach::data {

const char* name_of(ShardFormat format) {
    switch (format) {
        case ShardFormat::longreach:
            return "longreach";
        case ShardFormat::llmc_v1:
            return "llm.c v1";
        case ShardFormat::llmc_v7:
            return "llm.c v7";
        case ShardFormat::llmq:
            return "llmq";
        case ShardFormat::megatron:
            return "Megatron";
        case ShardFormat::raw:
            return "raw";
    }
    return "?";
}

FileHead FileHead::read(const io::File& file) {
    FileHead head;
    head.file_bytes = file.size();
    file.read_at(head.bytes.data(),
                 static_cast<size_t>(std::min<uint64_t>(head.file_bytes, head.bytes.size())), 0);
    return head;
}

bool FileHead::starts_with(std::string_view magic) const {
    return file_bytes >= magic.size() && std::memcmp(bytes.data(), magic.data(), magic.size()) == 0;
}

void require_size(const io::File& file, uint64_t expected, std::string_view why) {
    const uint64_t actual = file.size();
    require(actual == expected, ExitCode::data,
            "{}: the file has {} bytes, but {} = {} bytes are expected ({})", file.path(), actual, why,
            expected, actual < expected ? "it is cut short" : "something follows the data");
}

namespace {

bool ends_with(std::string_view text, std::string_view tail) {
    return text.size() >= tail.size() && text.substr(text.size() - tail.size()) == tail;
}

// Formats without checksums are fingerprinted by their header and 64 samples of 4 KiB, the last bytes
// included: reading all of a 100 GB data set before step 0 would take too long.
uint64_t sampled_fingerprint(const io::File& file, const ShardInfo& info) {
    constexpr uint64_t samples = 64, sample_bytes = 4096;
    Xxh64 hash;
    const std::array<uint64_t, 3> facts{static_cast<uint64_t>(info.format),
                                        static_cast<uint64_t>(info.type.bytes), info.tokens};
    hash.update(facts.data(), sizeof facts);
    std::array<unsigned char, sample_bytes> buffer;
    const uint64_t bytes = info.token_bytes();
    for (uint64_t i = 0; i < samples; ++i) {
        const uint64_t last = bytes > sample_bytes ? bytes - sample_bytes : 0;
        const uint64_t at = last / (samples - 1) * i + last % (samples - 1) * i / (samples - 1);
        const size_t size = static_cast<size_t>(std::min(sample_bytes, bytes - at));
        file.read_at(buffer.data(), size, info.data_offset + at);
        hash.update(buffer.data(), size);
        if (last == 0) break;
    }
    return hash.digest();
}

template <class T>
void widen(const unsigned char* from, size_t count, int32_t* out) {
    for (size_t i = 0; i < count; ++i) {
        const T value = load<T>(from + i * sizeof(T));
        if constexpr (sizeof(T) > sizeof(int32_t)) {
            const bool fits = value >= 0 && value <= std::numeric_limits<int32_t>::max();
            out[i] = fits ? static_cast<int32_t>(value) : -1;
        } else {
            out[i] = static_cast<int32_t>(value);  // a uint32 of 2^31 and more turns negative
        }
    }
}

void widen(TokenType type, const unsigned char* from, size_t count, int32_t* out) {
    switch (type.bytes) {
        case 1:
            return type.is_signed ? widen<int8_t>(from, count, out) : widen<uint8_t>(from, count, out);
        case 2:
            return type.is_signed ? widen<int16_t>(from, count, out) : widen<uint16_t>(from, count, out);
        case 4:
            return widen<uint32_t>(from, count, out);
        case 8:
            return widen<int64_t>(from, count, out);
        default:
            check(false, "a token of {} bytes", type.bytes);
    }
}

}  // namespace

Shard Shard::open(const std::string& path, const ShardOptions& options) {
    io::File file = io::File::open(path, io::Links::follow);
    const FileHead head = FileHead::read(file);
    const bool known = is_longreach_shard(head) || is_megatron_index(head) || is_foreign_shard(head);
    if (options.raw) {
        require(!known, ExitCode::data,
                "{} has a known header: read as raw, its header would become tokens; use "
                "data.format = auto",
                path);
        ShardInfo info = parse_raw_shard(file, options.width);
        info.path = path;
        info.fingerprint = sampled_fingerprint(file, info);
        return Shard(std::move(file), std::move(info));
    }
    if (is_longreach_shard(head)) {
        ShardInfo info = parse_longreach_shard(file);
        info.path = path;
        return Shard(std::move(file), std::move(info));
    }
    if (is_foreign_shard(head)) {
        ShardInfo info = parse_foreign_shard(file);
        info.path = path;
        info.fingerprint = sampled_fingerprint(file, info);
        return Shard(std::move(file), std::move(info));
    }
    if (is_megatron_index(head)) {
        require(ends_with(path, ".idx"), ExitCode::data,
                "{} is a Megatron index, but its name does not end in .idx, so the tokens cannot be found",
                path);
        const std::string tokens_path = path.substr(0, path.size() - 4) + ".bin";
        io::File tokens = io::File::open(tokens_path, io::Links::follow);
        ShardInfo info = parse_megatron_shard(file, tokens);
        info.path = tokens_path;
        info.fingerprint = sampled_fingerprint(tokens, info);
        return Shard(std::move(tokens), std::move(info));
    }
    require(head.file_bytes > 0, ExitCode::data, "{} is empty", path);
    const std::string other = describe_other_file(head);
    require(other.empty(), ExitCode::data, "{} is {}, not a token shard", path, other);
    const bool has_index = ends_with(path, ".bin") && io::kind_of(path.substr(0, path.size() - 4) + ".idx",
                                                                  io::Links::follow) == io::PathKind::file;
    throw Error(ExitCode::data, fmt::format("{} begins with no known magic number", path),
                has_index ? "name its .idx file to read it as Megatron data"
                          : "for headerless tokens set data.format = raw and data.width = 2 or 4");
}

void Shard::read(uint64_t begin, uint64_t count, int32_t* out) const {
    check(begin <= info_.tokens && count <= info_.tokens - begin, "tokens {} + {} of a shard of {}", begin,
          count, info_.tokens);
    std::array<unsigned char, 32768> buffer;
    const uint64_t width = static_cast<uint64_t>(info_.type.bytes);
    while (count > 0) {
        const uint64_t part = std::min<uint64_t>(count, buffer.size() / width);
        file_.read_at(buffer.data(), static_cast<size_t>(part * width), info_.data_offset + begin * width);
        widen(info_.type, buffer.data(), static_cast<size_t>(part), out);
        begin += part;
        out += part;
        count -= part;
    }
}

int64_t Shard::stored_value(uint64_t position) const {
    std::array<unsigned char, 8> bytes{};
    const size_t width = static_cast<size_t>(info_.type.bytes);
    file_.read_at(bytes.data(), width, info_.data_offset + position * width);
    const int64_t value = load<int64_t>(bytes.data());  // zero-extended
    if (!info_.type.is_signed) return value;
    const int shift = 64 - 8 * info_.type.bytes;
    return static_cast<int64_t>(static_cast<uint64_t>(value) << shift) >> shift;
}

bool Shard::block_is_intact(size_t index) const {
    check(index < info_.block_checksums.size(), "block {} of {}", index, info_.block_checksums.size());
    std::array<unsigned char, 65536> buffer;
    const uint64_t begin = index * shard_block_bytes;
    uint64_t left = std::min(shard_block_bytes, info_.token_bytes() - begin);
    Xxh64 hash;
    for (uint64_t at = info_.data_offset + begin; left > 0;) {
        const size_t part = static_cast<size_t>(std::min<uint64_t>(left, buffer.size()));
        file_.read_at(buffer.data(), part, at);
        hash.update(buffer.data(), part);
        at += part;
        left -= part;
    }
    return hash.digest() == info_.block_checksums[index];
}

}  // namespace longreach::data
