#include "data/loader.h"

#include <doctest/doctest.h>

#include <vector>

#include "data/shard_fixtures.h"

using namespace longreach;
using namespace longreach::test;

namespace {

struct Copy {
    Tokens tokens, targets, doc_start;
    bool operator==(const Copy&) const = default;
};

Copy copy_of(const data::MicroBatch& batch) {
    const auto list = [](std::span<const int32_t> s) { return Tokens(s.begin(), s.end()); };
    return {list(batch.tokens), list(batch.targets), list(batch.doc_start)};
}

// 1000 tokens in documents of 13, the first of each being the marker 0; in two shards.
struct Fixture {
    TempDir dir;
    Tokens all;
    data::TokenStream stream;
    explicit Fixture(int32_t vocab = 2000) : stream(make(vocab)) {}

    data::TokenStream make(int32_t vocab) {
        for (int32_t i = 0; i < 1000; ++i) all.push_back(i % 13 == 0 ? 0 : i);
        put(dir / "a.bin", llmc_v1({all.begin(), all.begin() + 333}));
        put(dir / "b.bin", llmc_v1({all.begin() + 333, all.end()}));
        return data::TokenStream::open({dir.path()}, {.vocab = vocab, .boundary_token = 0});
    }
};

std::vector<Copy> load(const Fixture& f, const data::BatchPlan& plan,
                       const std::vector<data::BatchRequest>& requests, bool background, size_t ahead) {
    data::StreamBatches source(f.stream, plan);
    data::Loader loader(source, {.max_tokens = 256, .documents = true, .background = background});
    std::vector<Copy> copies;
    size_t next = 0;
    while (copies.size() < requests.size()) {
        while (next < requests.size() && loader.pending() < ahead) loader.request(requests[next++]);
        copies.push_back(copy_of(loader.take()));
    }
    return copies;
}

}  // namespace

TEST_CASE("a micro-batch is what the plan says: tokens, their successors and the starts of their documents") {
    const Fixture f;
    const data::BatchPlan plan(f.stream.tokens(), 64, 3, data::ShuffleKind::random);
    data::StreamBatches source(f.stream, plan);
    data::Loader loader(source, {.max_tokens = 192});
    loader.request({.consumed = 64, .batch = 3, .length = 64});
    const data::MicroBatch batch = loader.take();
    REQUIRE(batch.tokens.size() == 192);
    std::vector<data::Piece> pieces;
    for (size_t b = 0; b < 3; ++b) {
        plan.locate(64 + 64 * b, 64, pieces);
        REQUIRE(pieces.size() == 1);
        int32_t start = 0;
        for (size_t i = 0; i < 64; ++i) {
            const size_t at = pieces[0].begin + i, k = 64 * b + i;
            CHECK(batch.tokens[k] == f.all[at]);
            CHECK(batch.targets[k] == f.all[at + 1]);
            if (at % 13 == 0) start = static_cast<int32_t>(i);
            CHECK(batch.doc_start[k] == start);
        }
    }
}

TEST_CASE("a sequence of several pieces begins a document at each") {
    const Fixture f;
    const data::BatchPlan plan(f.stream.tokens(), 10, 3, data::ShuffleKind::random);
    std::vector<data::Piece> pieces;
    plan.locate(5, 25, pieces);
    REQUIRE(pieces.size() > 1);
    data::StreamBatches source(f.stream, plan);
    data::Loader loader(source, {.max_tokens = 25, .background = false});
    loader.request({.consumed = 5, .batch = 1, .length = 25});
    const data::MicroBatch batch = loader.take();
    size_t i = 0;
    for (const data::Piece& piece : pieces) {
        const size_t first = i;
        for (int64_t j = 0; j < piece.length; ++j, ++i) {
            const size_t at = piece.begin + static_cast<uint64_t>(j);
            CHECK(batch.tokens[i] == f.all[at]);
            CHECK(batch.targets[i] == f.all[at + 1]);
            CHECK(batch.doc_start[i] >= static_cast<int32_t>(first));
        }
        CHECK(batch.doc_start[first] == static_cast<int32_t>(first));
    }
}

TEST_CASE("the thread delivers the bits of the synchronous loader, at any depth of requests") {
    const Fixture f;
    const data::BatchPlan plan(f.stream.tokens(), 64, 3, data::ShuffleKind::random);
    std::vector<data::BatchRequest> requests;
    uint64_t consumed = 0;
    for (int i = 0; i < 200; ++i) {
        const data::BatchRequest r{.consumed = consumed, .batch = 1 + i % 4, .length = i < 100 ? 32 : 64};
        requests.push_back(r);
        consumed += static_cast<uint64_t>(r.batch * r.length);
    }
    const std::vector<Copy> reference = load(f, plan, requests, false, 1);
    for (const size_t ahead : {1u, 2u, 3u, 50u, 200u})
        CHECK(load(f, plan, requests, true, ahead) == reference);
}

TEST_CASE("neither micro-batch nor rank changes what a step reads") {
    const Fixture f;
    const data::BatchPlan plan(f.stream.tokens(), 32, 3, data::ShuffleKind::random);
    const int64_t sequences = 8, length = 32;
    const auto step = [&](int64_t batch) {
        Copy total;
        for (int64_t b = 0; b < sequences; b += batch) {
            const data::BatchRequest r{
                .consumed = static_cast<uint64_t>(960 + b * length), .batch = batch, .length = length};
            const Copy part = load(f, plan, {r}, true, 1)[0];
            total.tokens.insert(total.tokens.end(), part.tokens.begin(), part.tokens.end());
            total.targets.insert(total.targets.end(), part.targets.begin(), part.targets.end());
            total.doc_start.insert(total.doc_start.end(), part.doc_start.begin(), part.doc_start.end());
        }
        return total;
    };
    const Copy whole = step(8);
    for (const int64_t batch : {1, 2, 4}) CHECK(step(batch) == whole);
}

TEST_CASE("a bad token surfaces at the take that would deliver it, and the loader goes on") {
    const Fixture f(900);  // tokens 900 and above are outside
    const data::BatchPlan plan(f.stream.tokens(), 100, 3, data::ShuffleKind::none);
    for (const bool background : {false, true}) {
        data::StreamBatches source(f.stream, plan);
        data::Loader loader(source, {.max_tokens = 100, .documents = true, .background = background});
        for (uint64_t i = 0; i < 10; ++i) loader.request({.consumed = 100 * i, .batch = 1, .length = 100});
        for (int i = 0; i < 10; ++i) {
            const std::string outcome = error_of([&] { loader.take(); });
            if (i == 8) CHECK(contains(outcome, "token 900 at position 567"));  // a target
            if (i < 8 || i == 9) CHECK(outcome == "no error");
        }
        CHECK(loader.pending() == 0);
        CHECK(contains(error_of([&] { loader.take(); }), "nobody requested"));
    }
}

TEST_CASE("documents are left out when nobody wants them, even where they are unknown") {
    const TempDir dir;
    put(dir / "raw", packed<uint16_t>(counting(101, 50)));
    const data::TokenStream stream =
        data::TokenStream::open({dir / "raw"}, {.shard = {.raw = true, .width = 2}});
    const data::BatchPlan plan(stream.tokens(), 50, 1, data::ShuffleKind::none);
    data::StreamBatches source(stream, plan);
    data::Loader loader(source, {.max_tokens = 50, .documents = false});
    loader.request({.consumed = 0, .batch = 1, .length = 50});
    CHECK(loader.take().doc_start.empty());
    CHECK(contains(error_of([&] { loader.request({.consumed = 0, .batch = 2, .length = 50}); }),
                   "in a loader for 50"));
}

TEST_CASE("a loader ends cleanly with requests outstanding") {
    const Fixture f;
    const data::BatchPlan plan(f.stream.tokens(), 100, 3, data::ShuffleKind::none);
    for (int i = 0; i < 50; ++i) {
        data::StreamBatches source(f.stream, plan);
        data::Loader loader(source, {.max_tokens = 100});
        for (int j = 0; j < i % 5; ++j) loader.request({.consumed = 0, .batch = 1, .length = 100});
        if (i % 3 == 1 && i % 5 > 0) loader.take();
    }
}
