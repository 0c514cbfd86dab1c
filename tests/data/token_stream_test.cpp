#include "data/token_stream.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>

#include "data/shard_fixtures.h"

using namespace longreach;
using namespace longreach::test;

namespace {

// The definition, written down without thought for speed.
Tokens expected_starts(const std::vector<bool>& begins, uint64_t begin, size_t count) {
    Tokens starts(count);
    for (size_t i = 0; i < count; ++i) {
        starts[i] = 0;
        for (size_t j = 1; j <= i; ++j)
            if (begins[begin + j]) starts[i] = static_cast<int32_t>(j);
    }
    return starts;
}

// Compares document_starts over every interval with the definition.
void check_documents(const data::TokenStream& stream, const std::vector<bool>& begins) {
    REQUIRE(stream.tokens() == begins.size());
    for (uint64_t begin = 0; begin < begins.size(); ++begin)
        for (uint64_t end = begin; end <= begins.size(); ++end) {
            const size_t count = end - begin;
            Tokens tokens(count), starts(count, -1);
            stream.read(begin, static_cast<int64_t>(count), tokens.data());
            stream.document_starts(begin, static_cast<int64_t>(count), tokens.data(), starts.data());
            REQUIRE(starts == expected_starts(begins, begin, count));
        }
}

std::vector<bool> begins_at(size_t count, std::initializer_list<size_t> positions) {
    std::vector<bool> begins(count);
    for (const size_t p : positions) begins[p] = true;
    return begins;
}

}  // namespace

TEST_CASE("a stream is the concatenation of its shards, whatever their formats") {
    const TempDir dir;
    put(dir / "a.bin", llmc_v1(counting(7, 100)));
    put(dir / "b.bin", llmc_v1({}));
    put(dir / "c.bin", llmc_v7(counting(5, 100, 7)));
    put(dir / "d.bin", packed<uint16_t>(counting(3, 100, 12)));
    put(dir / "d.idx", megatron_index(8, 2, {{3}}));
    put(dir / "notes.txt", "not a shard");
    write_documents(dir / "e.bin", {.vocab = 100}, {counting(4, 100, 15)});
    const data::TokenStream stream =
        data::TokenStream::open({dir.path()}, {.vocab = 100, .boundary_token = 99});
    CHECK(stream.shard_count() == 5);
    const Tokens all = counting(19, 100);
    REQUIRE(stream.tokens() == all.size());
    for (uint64_t begin = 0; begin <= all.size(); ++begin)
        for (uint64_t end = begin; end <= all.size(); ++end) {
            Tokens out(end - begin);
            stream.read(begin, static_cast<int64_t>(end - begin), out.data());
            REQUIRE(std::equal(out.begin(), out.end(), all.begin() + static_cast<std::ptrdiff_t>(begin)));
        }
    CHECK(contains(error_of([&] { stream.read(18, 2, nullptr); }), "1: "));
}

TEST_CASE("shards are found in directories and by patterns, in byte order, none twice") {
    const TempDir dir;
    for (const char* name : {"b.bin", "a.bin", "Z.bin", "m.idx", "m.bin", "other.txt"}) put(dir / name, "");
    using Paths = std::vector<std::string>;
    CHECK(data::find_shards({dir.path()}) ==
          Paths{dir / "Z.bin", dir / "a.bin", dir / "b.bin", dir / "m.idx"});
    CHECK(data::find_shards({dir / "[ab].bin"}) == Paths{dir / "a.bin", dir / "b.bin"});
    CHECK(data::find_shards({dir / "b.bin", dir / "a.bin"}) == Paths{dir / "b.bin", dir / "a.bin"});
    CHECK(contains(error_of([&] {
                       data::find_shards({dir / "a.bin", dir / "*.bin"});
                   }),
                   "a.bin is listed twice"));
    CHECK(contains(error_of([&] { data::find_shards({dir / "x*.bin"}); }), "3: no file matches"));
    std::filesystem::create_directory(dir / "empty");
    CHECK(contains(error_of([&] { data::find_shards({dir / "empty"}); }), "holds no token shard"));
    CHECK(contains(error_of([&] { data::TokenStream::open({}, {}); }), "no token data is named"));
    CHECK(contains(error_of([&] { data::TokenStream::open({dir / "missing.bin"}, {}); }), "No such file"));
}

TEST_CASE("a token outside the vocabulary is an error that names shard and position") {
    const TempDir dir;
    put(dir / "a.bin", llmc_v1(counting(5000, 50)));
    Tokens bad = counting(20000, 50);
    bad[17000] = 50;
    bad[18000] = 60000;
    put(dir / "b.bin", llmc_v1(bad));
    const data::TokenStream stream =
        data::TokenStream::open({dir.path()}, {.vocab = 50, .boundary_token = 0});
    Tokens out(25000);
    stream.read(0, 22000, out.data());
    CHECK(error_of([&] { stream.read(0, 25000, out.data()); }) ==
          "3: " + (dir / "b.bin") + ": token 50 at position 17000 is outside the vocabulary of 50");
    CHECK(error_of([&] { stream.read(22500, 2500, out.data()); }) ==
          "3: " + (dir / "b.bin") + ": token 60000 at position 18000 is outside the vocabulary of 50");

    const auto first_token = [&](const std::string& name, const std::string& bytes, int width) {
        put(dir / name, bytes);
        return error_of([&] {
            data::StreamOptions options{.vocab = 100};
            if (width > 0) options.shard = {.raw = true, .width = width};
            data::TokenStream::open({dir / name}, options).read(0, 1, out.data());
        });
    };
    CHECK(contains(first_token("raw4", bytes_of(~uint32_t{0}), 4), "token 4294967295 at position 0"));
    CHECK(contains(first_token("q.bin", llmq({-3}, 2, 100, 0), 0), "token -3 at position 0"));
    put(dir / "m.bin", bytes_of(int64_t{1} << 40));
    CHECK(
        contains(first_token("m.idx", megatron_index(5, 8, {{1}}), 0), "token 1099511627776 at position 0"));
    put(dir / "m.bin", bytes_of(int8_t{-1}));
    CHECK(contains(first_token("m.idx", megatron_index(2, 1, {{1}}), 0), "token -1 at position 0"));
}

TEST_CASE("vocabularies and markers that do not fit are refused at open") {
    const TempDir dir;
    write_documents(dir / "a.bin", {.vocab = 257}, {{1}});
    CHECK(contains(error_of([&] { data::TokenStream::open({dir / "a.bin"}, {.vocab = 256}); }),
                   "has tokens of a vocabulary of 257, the model only 256"));
    CHECK(data::TokenStream::open({dir / "a.bin"}, {.vocab = 50304}).largest_token_bound() == 257);
    CHECK(contains(error_of([&] { data::TokenStream::open({dir / "a.bin"}, {.boundary_token = 257}); }),
                   "boundary token 257 is outside the vocabulary of 257"));
    put(dir / "v1.bin", llmc_v1({1}));
    CHECK(contains(error_of([&] { data::TokenStream::open({dir / "v1.bin"}, {.vocab = 257}); }),
                   "boundary token 50256 is outside the vocabulary of 257"));
    put(dir / "q.bin", llmq({1}, 2, 100, 0));
    CHECK_FALSE(data::TokenStream::open({dir / "q.bin"}, {}).knows_documents());
    CHECK(contains(error_of([&] { data::TokenStream::open({dir / "q.bin"}, {.need_documents = true}); }),
                   "2: " + (dir / "q.bin") + ": a llmq shard does not say where documents begin"));
    CHECK(data::TokenStream::open({dir / "q.bin"}, {.boundary_token = 3, .need_documents = true})
              .knows_documents());
}

TEST_CASE("documents: a marker before, after, at both ends, doubled, and across shards") {
    const TempDir dir;
    // 9 is the marker. The cut lies after the fourth token.
    const Tokens tokens{9, 1, 2, 9, 3, 9, 9, 4, 5, 9};
    put(dir / "a.bin", llmc_v1({tokens.begin(), tokens.begin() + 4}));
    put(dir / "b.bin", llmc_v1({tokens.begin() + 4, tokens.end()}));
    data::StreamOptions options{.vocab = 10, .boundary_token = 9, .side = data::BoundarySide::before};
    check_documents(data::TokenStream::open({dir.path()}, options), begins_at(10, {0, 3, 5, 6, 9}));
    options.side = data::BoundarySide::after;
    check_documents(data::TokenStream::open({dir.path()}, options), begins_at(10, {1, 4, 6, 7}));
}

TEST_CASE("documents: from tables, also where a document goes on in the next shard") {
    const TempDir dir;
    write_documents(dir / "a.bin", {.vocab = 10}, {{1, 2}, {3, 4, 5}});
    {
        data::ShardWriter writer(dir / "b.bin", {.vocab = 10});
        const Tokens rest{6, 7}, next{8};
        writer.append(rest.data(), 2);  // still the document of {3, 4, 5}
        writer.begin_document();
        writer.append(next.data(), 1);
        writer.finish();
    }
    put(dir / "c.bin", packed<uint16_t>({1, 2, 3, 4}));
    put(dir / "c.idx", megatron_index(8, 2, {{1}, {2, 1}}));
    check_documents(data::TokenStream::open({dir.path()}, {}), begins_at(12, {0, 2, 7, 8, 9}));
}

TEST_CASE("documents: shards with rules of their own side by side") {
    const TempDir dir;
    write_documents(dir / "a.bin", {.vocab = 10, .boundary_token = 9, .side = data::BoundarySide::after},
                    {{1, 9}, {2, 9}});
    write_documents(dir / "b.bin", {.vocab = 10, .boundary_token = 8, .side = data::BoundarySide::before},
                    {{8, 9}, {8, 1}});
    write_documents(dir / "c.bin", {.vocab = 10}, {{8, 9}, {9}});
    check_documents(data::TokenStream::open({dir.path()}, {}), begins_at(11, {2, 4, 6, 8, 10}));
}

TEST_CASE("bytes of text are known only if every shard knows them") {
    const TempDir dir;
    write_documents(dir / "a.bin", {.vocab = 10}, {{1, 2}}, 9);
    write_documents(dir / "b.bin", {.vocab = 10}, {{1, 2, 3}}, 6);
    const data::TokenStream both = data::TokenStream::open({dir.path()}, {});
    CHECK(both.source_bytes() == 15);
    CHECK(both.bytes_per_token() == 3.0);
    write_documents(dir / "c.bin", {.vocab = 10}, {{1}});
    CHECK(data::TokenStream::open({dir.path()}, {}).source_bytes() == 0);
    CHECK(data::TokenStream::open({dir.path()}, {}).bytes_per_token() == 0.0);
}

TEST_CASE("the fingerprint follows the content and not the place") {
    const TempDir dir, other;
    for (const TempDir* d : {&dir, &other}) {
        put(*d / "a.bin", llmc_v1(counting(100, 50)));
        write_documents(*d / "b.bin", {.vocab = 50}, {counting(300, 50)});
    }
    const auto fingerprint = [](const TempDir& d) {
        return data::TokenStream::open({d.path()}, {}).fingerprint();
    };
    const uint64_t original = fingerprint(dir);
    CHECK(fingerprint(other) == original);
    put(other / "a.bin", llmc_v1(counting(100, 51)));
    CHECK(fingerprint(other) != original);
    put(other / "a.bin", llmc_v1(counting(100, 50)));
    CHECK(fingerprint(other) == original);
    write_documents(other / "b.bin", {.vocab = 50}, {counting(300, 49)});
    CHECK(fingerprint(other) != original);
    CHECK(data::TokenStream::open({dir / "b.bin", dir / "a.bin"}, {}).fingerprint() != original);
}

TEST_CASE("shards larger than the limit are opened without reading them all") {
    const TempDir dir;
    write_documents(dir / "a.bin", {.vocab = 50}, {counting(300, 50)});
    std::string bytes = get(dir / "a.bin");
    bytes[200] = static_cast<char>(bytes[200] ^ 1);
    put(dir / "a.bin", bytes);
    CHECK(contains(error_of([&] { data::TokenStream::open({dir / "a.bin"}, {}); }),
                   "MiB 0 of the token data does not match its checksum"));
    CHECK(error_of([&] { data::TokenStream::open({dir / "a.bin"}, {.verify_limit = 599}); }) == "no error");
}
