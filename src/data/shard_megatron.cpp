// Megatron's indexed data set: a .bin of bare tokens and an .idx that says where
// sequences and documents begin.
//
//     0  "MMIDIDX\0\0"      18  u64 sequences       34  i32 length of each sequence
//     9  u64 version 1      26  u64 documents + 1       i64 byte offset of each sequence in the .bin
//    17  u8 type code                                   i64 first sequence of each document,
//                                                           then their number
//                                                       i8 mode of each sequence (optional; text has 0)
#include <algorithm>

#include "base/error.h"
#include "data/shard_format.h"

namespace longreach::data {

namespace {

constexpr std::string_view index_magic{"MMIDIDX\0\0", 9};
constexpr uint64_t index_header_bytes = 34;

// Reads a long array piece by piece.
template <class T, class Each>
void for_each_value(const io::File& file, uint64_t offset, uint64_t count, Each each) {
    std::array<T, 4096> buffer;
    for (uint64_t done = 0; done < count;) {
        const size_t part = static_cast<size_t>(std::min<uint64_t>(count - done, buffer.size()));
        file.read_at(buffer.data(), part * sizeof(T), offset + done * sizeof(T));
        for (size_t i = 0; i < part; ++i) each(done + i, buffer[i]);
        done += part;
    }
}

TokenType type_of_code(int code, const std::string& path) {
    switch (code) {
        case 1:
            return {1, false};
        case 2:
            return {1, true};
        case 3:
            return {2, true};
        case 4:
            return {4, true};
        case 5:
            return {8, true};
        case 8:
            return {2, false};
        default:
            fail(ExitCode::data, "{}: type code {} is {}", path, code,
                 code == 6 || code == 7 ? "floating point, not tokens" : "unknown");
    }
}

}  // namespace

bool is_megatron_index(const FileHead& head) {
    return head.starts_with(index_magic);
}

ShardInfo parse_megatron_shard(const io::File& index, const io::File& tokens) {
    const std::string& path = index.path();
    const uint64_t bytes = index.size();
    require(bytes >= index_header_bytes, ExitCode::data, "{}: {} bytes are too few for the header of {}",
            path, bytes, index_header_bytes);
    std::array<unsigned char, index_header_bytes> h;
    index.read_at(h.data(), h.size(), 0);
    const uint64_t version = load<uint64_t>(h.data() + 9);
    require(version == 1, ExitCode::data, "{}: Megatron index version {}; version 1 is read", path, version);
    ShardInfo info;
    info.format = ShardFormat::megatron;
    info.type = type_of_code(h[17], path);
    info.file_bytes = tokens.size();
    const uint64_t sequences = load<uint64_t>(h.data() + 18), entries = load<uint64_t>(h.data() + 26);
    require(sequences <= bytes && entries <= bytes, ExitCode::data,
            "{}: {} sequences and {} document entries do not fit into {} bytes", path, sequences, entries,
            bytes);
    const uint64_t base = index_header_bytes + 12 * sequences + 8 * entries;
    const bool has_modes = bytes == base + sequences && sequences > 0;
    if (!has_modes)
        require_size(index, base,
                     fmt::format("{} + {} sequences * 12 + {} document entries * 8", index_header_bytes,
                                 sequences, entries));

    // Starts in bytes of the .bin, checked against the running sum of the lengths: sequences are contiguous.
    std::vector<uint64_t> starts(static_cast<size_t>(sequences));
    const uint64_t width = static_cast<uint64_t>(info.type.bytes);
    uint64_t sum = 0;
    for_each_value<int32_t>(index, index_header_bytes, sequences, [&](uint64_t i, int32_t length) {
        require(length >= 0, ExitCode::data, "{}: sequence {} has length {}", path, i, length);
        starts[static_cast<size_t>(i)] = sum;
        sum += static_cast<uint64_t>(length);
    });
    for_each_value<int64_t>(
        index, index_header_bytes + 4 * sequences, sequences, [&](uint64_t i, int64_t offset) {
            const uint64_t expected = starts[static_cast<size_t>(i)] * width;
            require(offset >= 0 && static_cast<uint64_t>(offset) == expected, ExitCode::data,
                    "{}: sequence {} is at byte {} of the .bin, but the lengths before it put it at {}", path,
                    i, offset, expected);
        });
    info.tokens = sum;
    require_size(tokens, sum * width, fmt::format("{} tokens of the index * {}", sum, width));

    require(entries >= 1, ExitCode::data, "{}: the document index is empty", path);
    int64_t previous = 0;
    for_each_value<int64_t>(
        index, index_header_bytes + 12 * sequences, entries, [&](uint64_t i, int64_t first) {
            const bool in_order = i == 0 ? first == 0 : first >= previous;
            require(in_order && static_cast<uint64_t>(first) <= sequences, ExitCode::data,
                    "{}: entry {} of the document index, {}, is out of order or beyond the {} sequences",
                    path, i, first, sequences);
            previous = first;
            if (static_cast<uint64_t>(first) == sequences) return;
            // Documents without tokens share their start with the next one and are left out.
            const uint64_t start = starts[static_cast<size_t>(first)];
            if (start < sum && (info.documents.empty() || info.documents.back() < start))
                info.documents.push_back(start);
        });
    require(static_cast<uint64_t>(previous) == sequences, ExitCode::data,
            "{}: the document index ends at sequence {} of {}", path, previous, sequences);
    if (has_modes)
        for_each_value<int8_t>(index, base, sequences, [&](uint64_t i, int8_t mode) {
            require(mode == 0, ExitCode::data, "{}: sequence {} has mode {}: not text", path, i, mode);
        });
    info.has_documents = true;
    return info;
}

}  // namespace longreach::data
