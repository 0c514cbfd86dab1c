#include "data/shard.h"

#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>

#include "data/shard_fixtures.h"
#include "data/token_stream.h"

using namespace longreach;
using namespace longreach::test;

namespace {

Tokens read_all(const data::Shard& shard) {
    Tokens tokens(shard.info().tokens);
    shard.read(0, tokens.size(), tokens.data());
    return tokens;
}

std::string open_error(const std::string& path, const data::ShardOptions& options = {}) {
    return anonymous(error_of([&] { data::Shard::open(path, options); }), path);
}

}  // namespace

TEST_CASE("every format is told by its first bytes and read back") {
    const TempDir dir;
    const Tokens tokens = counting(20001, 30000, 5), wide = counting(20001, 1 << 20, 70000);
    put(dir / "v1.bin", llmc_v1(tokens));
    put(dir / "v7.bin", llmc_v7(wide));
    put(dir / "llmq1.bin", llmq(wide, 1, 1 << 20, 0x2a2a2a2a));
    put(dir / "llmq2.bin", llmq(wide, 2, 1 << 20, 0));
    put(dir / "masks.bin", llmq(wide, 2, 1 << 20, 1));
    put(dir / "raw2", packed<uint16_t>(tokens));
    put(dir / "raw4", packed<uint32_t>(wide));

    const data::Shard v1 = data::Shard::open(dir / "v1.bin", {});
    CHECK(v1.info().format == data::ShardFormat::llmc_v1);
    CHECK(v1.info().boundary_token == 50256);
    CHECK(v1.info().side == data::BoundarySide::before);
    CHECK(read_all(v1) == tokens);
    const data::Shard v7 = data::Shard::open(dir / "v7.bin", {});
    CHECK(v7.info().format == data::ShardFormat::llmc_v7);
    CHECK(v7.info().boundary_token == 128000);
    CHECK(read_all(v7) == wide);
    for (const char* name : {"llmq1.bin", "llmq2.bin", "masks.bin"}) {
        const data::Shard q = data::Shard::open(dir / name, {});
        CHECK(q.info().format == data::ShardFormat::llmq);
        CHECK(q.info().vocab == 1 << 20);
        CHECK(q.info().boundary_token == -1);
        CHECK(read_all(q) == wide);
    }
    CHECK(read_all(data::Shard::open(dir / "raw2", {.raw = true, .width = 2})) == tokens);
    CHECK(read_all(data::Shard::open(dir / "raw4", {.raw = true, .width = 4})) == wide);
    CHECK(v1.stored_value(3) == tokens[3]);
}

TEST_CASE("Megatron data are read through their index, in every integer type") {
    const TempDir dir;
    const Tokens tokens = counting(100, 100, 1);
    const std::vector<std::vector<int32_t>> lengths{{30, 10}, {}, {0}, {25}, {35}};
    const auto check_type = [&](int code, int width, const std::string& data) {
        put(dir / "m.bin", data);
        put(dir / "m.idx", megatron_index(code, width, lengths));
        const data::Shard shard = data::Shard::open(dir / "m.idx", {});
        CHECK(shard.info().format == data::ShardFormat::megatron);
        CHECK(shard.info().path == dir / "m.bin");
        CHECK(shard.info().documents == std::vector<uint64_t>{0, 40, 65});
        CHECK(read_all(shard) == tokens);
    };
    check_type(1, 1, packed<uint8_t>(tokens));
    check_type(2, 1, packed<int8_t>(tokens));
    check_type(3, 2, packed<int16_t>(tokens));
    check_type(4, 4, packed<int32_t>(tokens));
    check_type(5, 8, packed<int64_t>(tokens));
    check_type(8, 2, packed<uint16_t>(tokens));

    const std::string good = megatron_index(8, 2, lengths);
    put(dir / "m.bin", packed<uint16_t>(tokens));
    const auto outcome = [&](const std::string& index) {
        put(dir / "m.idx", index);
        return open_error(dir / "m.idx");
    };
    const auto with = [&](size_t at, const std::string& bytes) {
        std::string index = good;
        return index.replace(at, bytes.size(), bytes);
    };
    const size_t lengths_at = 34, offsets_at = 34 + 5 * 4, documents_at = offsets_at + 5 * 8;
    CHECK(outcome(good) == "no error");
    CHECK(outcome(good + std::string(5, '\0')) == "no error");  // modes
    CHECK(outcome(good + std::string("\0\0\1\0\0", 5)) == "3: x: sequence 2 has mode 1: not text");
    CHECK(contains(outcome(good + "x"), "something follows the data"));
    CHECK(contains(outcome(good.substr(0, good.size() - 1)), "it is cut short"));
    CHECK(contains(outcome(good.substr(0, 20)), "20 bytes are too few for the header of 34"));
    CHECK(outcome(with(9, bytes_of(uint64_t{2}))) == "3: x: Megatron index version 2; version 1 is read");
    CHECK(outcome(with(17, "\7")) == "3: x: type code 7 is floating point, not tokens");
    CHECK(outcome(with(17, "\11")) == "3: x: type code 9 is unknown");
    CHECK(contains(outcome(with(18, bytes_of(~uint64_t{0}))), "do not fit into"));
    CHECK(contains(outcome(with(18, bytes_of(uint64_t{6}))), "it is cut short"));
    CHECK(contains(outcome(with(26, bytes_of(uint64_t{1} << 61))), "do not fit into"));
    CHECK(contains(outcome(with(lengths_at, bytes_of(int32_t{-1}))), "sequence 0 has length -1"));
    CHECK(contains(outcome(with(lengths_at, bytes_of(int32_t{31}))), "the lengths before it put it at 62"));
    CHECK(contains(outcome(with(offsets_at, bytes_of(int64_t{-2}))), "sequence 0 is at byte -2"));
    CHECK(contains(outcome(with(documents_at, bytes_of(int64_t{1}))), "entry 0 of the document index, 1,"));
    CHECK(contains(outcome(with(documents_at + 16, bytes_of(int64_t{1}))),
                   "entry 2 of the document index, 1,"));
    CHECK(contains(outcome(with(documents_at + 40, bytes_of(int64_t{4}))), "ends at sequence 4 of 5"));
    CHECK(contains(outcome(with(documents_at + 40, bytes_of(int64_t{6}))), "beyond the 5 sequences"));
    put(dir / "m.bin", packed<uint16_t>(counting(99, 100)));
    CHECK(contains(outcome(good), "100 tokens of the index * 2 = 200 bytes are expected (it is cut short)"));
    std::filesystem::remove(dir / "m.bin");
    CHECK(contains(outcome(good), "3: cannot open"));
}

TEST_CASE("foreign headers: every field is checked and the size to the byte") {
    const TempDir dir;
    const Tokens tokens = counting(10, 100);
    const auto outcome = [&](const std::string& bytes, const data::ShardOptions& options = {}) {
        put(dir / "x", bytes);
        return open_error(dir / "x", options);
    };
    const auto with = [](std::string bytes, size_t word, int32_t value) {
        return bytes.replace(4 * word, 4, bytes_of(value));
    };
    const std::string v1 = llmc_v1(tokens), v7 = llmc_v7(tokens), q = llmq(tokens, 2, 100, 1);
    CHECK(outcome(v1) == "no error");
    CHECK(outcome(with(v1, 1, 2)) == "3: x: llm.c version 2 with magic 20240520; version 1 was expected");
    CHECK(outcome(with(v7, 1, 1)) == "3: x: llm.c version 1 with magic 20240801; version 7 was expected");
    CHECK(outcome(with(v1, 2, -1)) == "3: x: the header gives -1 tokens");
    CHECK(outcome(with(v1, 2, 11)) ==
          "3: x: the file has 1044 bytes, but 1024 + 11 tokens * 2 = 1046 bytes are expected (it is cut "
          "short)");
    CHECK(contains(outcome(with(v1, 2, 9)), "1042 bytes are expected (something follows the data)"));
    CHECK(outcome(v1.substr(0, 500)) == "3: x: 500 bytes are too few for the 1024-byte header of llm.c");
    CHECK(outcome(llmc_v1({})) == "no error");
    CHECK(outcome(q) == "no error");
    CHECK(outcome(with(q, 2, 3)) == "3: x: llmq version 3; versions 1 and 2 are read");
    CHECK(outcome(with(q, 3, 2)) == "3: x: llmq tokens of 2 bytes, not 4");
    CHECK(outcome(with(q, 4, -5)) == "3: x: the header gives -5 tokens");
    CHECK(outcome(with(q, 5, 0)) == "3: x: the header gives a vocabulary of 0");
    CHECK(outcome(with(q, 6, 7)) == "3: x: the mask flag is 7, not 0 or 1");
    CHECK(contains(outcome(with(q, 6, 0)), "something follows the data"));
    CHECK(outcome("abc", {.raw = true, .width = 2}) ==
          "3: x: 3 bytes are not a whole number of 2-byte tokens");
    CHECK(contains(outcome("abcd", {.raw = true, .width = 0}), "2: raw token files need data.width"));
    CHECK(contains(outcome(v1, {.raw = true, .width = 2}), "read as raw, its header would become tokens"));
    for (const std::string& good : {v1, v7, q})
        for (size_t size = 0; size < good.size(); ++size)
            CHECK(contains(outcome(good.substr(0, size)), "3: x"));
}

TEST_CASE("a file that is not a token shard is refused by name") {
    const TempDir dir;
    const auto outcome = [&](const std::string& bytes) {
        put(dir / "x", bytes + std::string(64, '\1'));
        return open_error(dir / "x");
    };
    using namespace std::string_literals;
    CHECK(outcome(foreign_header({20240522, 1, 3, 4})) ==
          "3: x is an llm.c evaluation set, not a token shard");
    CHECK(contains(outcome(foreign_header({20240326, 3})), "an llm.c model checkpoint"));
    CHECK(contains(outcome(foreign_header({20240527, 1})), "an llm.c optimizer state"));
    CHECK(contains(outcome(foreign_header({20240328, 2})), "an llm.c tokenizer"));
    CHECK(contains(outcome("\x1f\x8b\x08"s), "a gzip archive"));
    CHECK(contains(outcome("\x28\xb5\x2f\xfd"s), "a Zstandard archive"));
    CHECK(contains(outcome("\xfd\x37zXZ\0"s), "an xz archive"));
    CHECK(contains(outcome("PK\x03\x04"s), "a zip archive"));
    CHECK(contains(outcome("\x93NUMPY\x01"s), "a NumPy array"));
    CHECK(contains(outcome("PAR1"s), "a Parquet table"));
    CHECK(contains(outcome("ARROW1"s), "an Arrow file"));
    CHECK(contains(outcome("GGUF"s), "a GGUF model"));
    CHECK(contains(outcome("\x89HDF\r\n\x1a\n"s), "an HDF5 file"));
    CHECK(contains(outcome(bytes_of(uint64_t{2}) + "{}"s), "a safetensors file"));
    CHECK(contains(outcome("{\"text\": \"x\"}"s), "JSON text"));
    CHECK(outcome("MMIDIDX\0\0"s).starts_with("3: x is a Megatron index, but its name does not end in .idx"));
    CHECK(outcome("hello world"s) == "3: x begins with no known magic number");
    put(dir / "x", "");
    CHECK(open_error(dir / "x") == "3: x is empty");
    CHECK(contains(open_error(dir.path()), "is not a regular file"));
}

TEST_CASE("our own shards: tokens, documents and facts come back") {
    const TempDir dir;
    for (const int width : {2, 4}) {
        const data::ShardHeader header{.width = width,
                                       .vocab = 60000,
                                       .boundary_token = 7,
                                       .side = data::BoundarySide::after,
                                       .tokenizer = 0x1234};
        const Tokens a = counting(3, 60000), b = counting(700'001, 60000, 9), c = counting(1, 60000, 40000);
        const uint64_t fingerprint = write_documents(dir / "s.bin", header, {a, b, c}, 12345);
        const data::Shard shard = data::Shard::open(dir / "s.bin", {});
        const data::ShardInfo& info = shard.info();
        CHECK(info.format == data::ShardFormat::longreach);
        CHECK(info.type.bytes == width);
        CHECK(info.vocab == 60000);
        CHECK(info.boundary_token == 7);
        CHECK(info.side == data::BoundarySide::after);
        CHECK(info.tokenizer == 0x1234);
        CHECK(info.source_bytes == 12345);
        CHECK(info.fingerprint == fingerprint);
        CHECK(info.documents == std::vector<uint64_t>{0, 3, 700'004});
        Tokens all = a;
        all.insert(all.end(), b.begin(), b.end());
        all.insert(all.end(), c.begin(), c.end());
        CHECK(read_all(shard) == all);
        CHECK(info.block_checksums.size() == (all.size() * static_cast<size_t>(width) + 1048575) / 1048576);
        for (size_t i = 0; i < info.block_checksums.size(); ++i) CHECK(shard.block_is_intact(i));
        CHECK(io::list_directory(dir.path()) == std::vector<std::string>{"s.bin"});
    }
    write_documents(dir / "empty.bin", {.vocab = 1}, {});
    CHECK(data::Shard::open(dir / "empty.bin", {}).info().tokens == 0);
}

TEST_CASE("our own shards: the bytes are the documented ones") {
    const TempDir dir;
    write_documents(
        dir / "s.bin",
        {.width = 2, .vocab = 257, .boundary_token = 256, .side = data::BoundarySide::before, .tokenizer = 5},
        {{256, 65, 66}, {256, 67}}, 3);
    const std::string bytes = get(dir / "s.bin");
    const std::string data = packed<uint16_t>({256, 65, 66, 256, 67});
    const std::string trailer =
        std::string(6, '\0') + bytes_of(uint64_t{0}) + bytes_of(uint64_t{3}) + bytes_of(xxh64(data));
    std::string header = "LRTOKENS" + bytes_of(uint32_t{1}) + bytes_of(uint32_t{128}) +
                         bytes_of(uint32_t{2}) + bytes_of(uint32_t{0}) + bytes_of(uint64_t{5}) +
                         bytes_of(uint64_t{257}) + bytes_of(int64_t{256}) + bytes_of(uint64_t{2}) +
                         bytes_of(uint64_t{3}) + bytes_of(uint64_t{5}) + bytes_of(uint64_t{1048576}) +
                         bytes_of(xxh64(trailer));
    header.resize(120, '\0');
    header += bytes_of(xxh64(header));
    CHECK(bytes == header + data + trailer);
}

TEST_CASE("our own shards: every flipped bit and every truncation is noticed at open") {
    const TempDir dir;
    write_documents(dir / "s.bin", {.vocab = 257, .boundary_token = 256}, {{256, 65, 66}, {256, 67}}, 3);
    const std::string good = get(dir / "s.bin");
    const auto outcome = [&](const std::string& bytes) {
        put(dir / "s.bin", bytes);
        return error_of([&] { data::TokenStream::open({dir / "s.bin"}, {}); });
    };
    CHECK(outcome(good) == "no error");
    for (size_t i = 0; i < good.size(); ++i)
        for (int bit = 0; bit < 8; ++bit) {
            std::string damaged = good;
            damaged[i] = static_cast<char>(damaged[i] ^ (1 << bit));
            INFO("byte ", i, " bit ", bit);
            CHECK(contains(outcome(damaged), "3: "));
        }
    for (size_t size = 0; size < good.size(); ++size) CHECK(contains(outcome(good.substr(0, size)), "3: "));
    CHECK(contains(outcome(good + '\0'), "something follows the data"));
}

TEST_CASE("our own shards: forged headers with a right checksum are refused by field") {
    const TempDir dir;
    write_documents(dir / "s.bin", {.vocab = 257, .boundary_token = 256}, {{256, 65, 66}, {256, 67}}, 3);
    const std::string good = get(dir / "s.bin");
    const auto forged = [&](size_t at, const std::string& value) {
        std::string bytes = good;
        bytes.replace(at, value.size(), value);
        bytes.replace(120, 8, bytes_of(xxh64(bytes.data(), 120)));
        put(dir / "s.bin", bytes);
        return open_error(dir / "s.bin");
    };
    CHECK(forged(8, bytes_of(uint32_t{2})) == "3: x: format version 2; this program reads version 1");
    CHECK(forged(12, bytes_of(uint32_t{64})) == "3: x: header of 64 bytes, not 128");
    CHECK(forged(16, bytes_of(uint32_t{3})) == "3: x: tokens of 3 bytes, not 2 or 4");
    CHECK(forged(20, bytes_of(uint32_t{2})) == "3: x: boundary side 2 is neither 0 (before) nor 1 (after)");
    CHECK(contains(forged(24, bytes_of(uint64_t{10})), "it is cut short"));
    CHECK(contains(forged(24, bytes_of(uint64_t{6})),
                   "are damaged"));  // a token for two bytes of padding: same size
    CHECK(contains(forged(24, bytes_of(uint64_t{1} << 63)), "do not fit into"));
    CHECK(forged(32, bytes_of(uint64_t{0})) == "3: x: vocabulary 0 is not in [1, 65536]");
    CHECK(forged(32, bytes_of(uint64_t{65537})) == "3: x: vocabulary 65537 is not in [1, 65536]");
    CHECK(forged(40, bytes_of(int64_t{257})) == "3: x: boundary token 257 is not in [-1, 257)");
    CHECK(forged(40, bytes_of(int64_t{-2})) == "3: x: boundary token -2 is not in [-1, 257)");
    CHECK(contains(forged(48, bytes_of(~uint64_t{0})), "do not fit into"));
    CHECK(contains(forged(48, bytes_of(uint64_t{1})), "something follows the data"));
    CHECK(forged(72, bytes_of(uint64_t{1})) == "3: x: checksum blocks of 1 bytes, not 1048576");
    CHECK(contains(forged(80, bytes_of(uint64_t{1})),
                   "the document table or the checksums after the tokens are damaged"));
    CHECK(forged(88, "x") == "3: x: reserved header bytes are not zero");
    // A document table out of order, with all checksums right.
    std::string bytes = good;
    const size_t table = 128 + 10 + 6;
    for (const auto& [first, second] : {std::pair<uint64_t, uint64_t>{3, 3}, {4, 3}, {0, 5}}) {
        bytes.replace(table, 16, bytes_of(first) + bytes_of(second));
        bytes.replace(80, 8, bytes_of(xxh64(bytes.substr(138))));
        bytes.replace(120, 8, bytes_of(xxh64(bytes.data(), 120)));
        put(dir / "s.bin", bytes);
        CHECK(contains(open_error(dir / "s.bin"), "of the document table"));
    }
}

TEST_CASE("a writer that is given up leaves nothing, and refuses nonsense") {
    const TempDir dir;
    {
        data::ShardWriter writer(dir / "s.bin", {.vocab = 10});
        const Tokens tokens{1, 2, 3};
        writer.append(tokens.data(), tokens.size());
        const Tokens bad{10};
        CHECK(contains(error_of([&] { writer.append(bad.data(), 1); }), "token 10 of a vocabulary of 10"));
    }
    CHECK(io::list_directory(dir.path()).empty());
    CHECK(contains(error_of([&] { data::ShardWriter writer(dir / "s.bin", {.width = 3, .vocab = 10}); }),
                   "tokens of 3 bytes"));
    CHECK(contains(error_of([&] { data::ShardWriter writer(dir / "s.bin", {.vocab = 65537}); }),
                   "vocabulary of 65537"));
    CHECK(io::list_directory(dir.path()).empty());
}

TEST_CASE("positions beyond 4 GiB: a sparse raw shard") {
    const TempDir dir;
    const uint64_t tokens = (uint64_t{5} << 30) / 2;
    std::ofstream(dir / "big", std::ios::binary).put('\0');
    std::filesystem::resize_file(dir / "big", tokens * 2);
    {
        std::fstream file(dir / "big", std::ios::binary | std::ios::in | std::ios::out);
        file.seekp(static_cast<std::streamoff>((tokens - 2) * 2));
        file.write("\x2a\0\x2b\0", 4);
    }
    const data::TokenStream stream =
        data::TokenStream::open({dir / "big"}, {.shard = {.raw = true, .width = 2}, .vocab = 100});
    CHECK(stream.tokens() == tokens);
    Tokens out(4);
    stream.read(tokens - 4, 4, out.data());
    CHECK(out == Tokens{0, 0, 42, 43});
    stream.read((uint64_t{1} << 31) + 1, 2, out.data());
    CHECK(out[0] == 0);
}
