#include "text/inspect.h"

#include <doctest/doctest.h>

#include "data/shard_fixtures.h"
#include "data/shard_set.h"
#include "tokenizer/byte_text.h"

using namespace longreach;
using namespace longreach::test;

namespace {

const data::ShardHeader byte_header{.width = 2,
                                    .vocab = 257,
                                    .boundary_token = 256,
                                    .side = data::BoundarySide::before,
                                    .tokenizer = tokenizer::bytes_fingerprint()};

// Documents of lengths 1 to 100, in tokens, each begun by its marker.
std::vector<Tokens> hundred_documents() {
    std::vector<Tokens> documents;
    for (size_t length = 1; length <= 100; ++length) {
        Tokens document(length, 'x');
        document[0] = 256;
        documents.push_back(document);
    }
    return documents;
}

}  // namespace

TEST_CASE("inspect counts tokens and documents and shows how shards begin") {
    const TempDir dir;
    write_documents(dir / "a.bin", byte_header, hundred_documents(), 4950);
    write_documents(dir / "b.bin", byte_header, {{256, 'h', 'i', '\n', 0xe9}}, 4);
    const text::Inspection inspection = text::inspect({dir.path()}, {});
    CHECK(inspection.tokens == 5055);
    CHECK(inspection.source_bytes == 4954);
    const text::DocumentStatistics& d = inspection.documents;
    CHECK(d.known);
    CHECK(d.documents == 101);
    CHECK(d.mean == doctest::Approx(5055.0 / 101));
    CHECK(d.quantiles[0] == 1);
    CHECK(d.quantiles[3] == 50);
    CHECK(d.quantiles[6] == 100);
    const std::string text = text::to_text(inspection);
    CHECK(contains(text, "begins: <|document|>hi\\n\\xe9\n"));
    CHECK(contains(text, "documents: 101, mean length 50.0"));
    CHECK(contains(text,
                   "longreach, 2 bytes per token, 5 tokens, vocabulary 257, documents by token 256 before"));
    CHECK(contains(text, "0.9800 bytes of text per token"));
}

TEST_CASE("inspect agrees with the documents over many pieces, for markers after and for tables") {
    const TempDir dir;
    std::vector<Tokens> documents;
    size_t total = 0;
    for (size_t i = 0; total < 200'000; ++i) {
        Tokens document(1 + i * 37 % 5000, 1);
        document.back() = 9;
        total += document.size();
        documents.push_back(document);
    }
    write_documents(dir / "after.bin", {.vocab = 10, .boundary_token = 9, .side = data::BoundarySide::after},
                    documents);
    write_documents(dir / "table.bin", {.vocab = 10}, documents);
    for (const char* name : {"after.bin", "table.bin"}) {
        const text::Inspection inspection = text::inspect({dir / name}, {});
        CHECK(inspection.tokens == total);
        CHECK(inspection.documents.documents == documents.size());
    }
    const text::Inspection part = text::inspect({dir / "after.bin"}, {.scan_tokens = 70'000});
    CHECK(part.documents.scanned == 70'000);
    CHECK(contains(text::to_text(part), "in the first 70000 tokens"));
}

TEST_CASE("inspect shows numbers for other tokenizers and says when documents are unknown") {
    const TempDir dir;
    put(dir / "q.bin", llmq({5, 6, 7}, 2, 100, 0));
    const std::string text = text::to_text(text::inspect({dir / "q.bin"}, {}));
    CHECK(contains(text, "begins: 5 6 7\n"));
    CHECK(contains(text, "documents: unknown"));
    put(dir / "empty.bin", llmc_v1({}));
    CHECK(text::inspect({dir / "empty.bin"}, {}).documents.documents == 0);
}

TEST_CASE("verify says which MiB is damaged and which token is outside, and goes on") {
    const TempDir dir;
    Tokens document(1'500'000, 'a');
    document[0] = 256;
    write_documents(dir / "good.bin", byte_header, {document});
    write_documents(dir / "bad.bin", byte_header, {document});
    CHECK(text::verify({dir.path()}, {}).problems.empty());
    CHECK(contains(text::to_text(text::verify({dir.path()}, {})), "no problem"));

    std::string bytes = get(dir / "bad.bin");
    bytes[128 + (2 << 20) + 7] = 9;  // the high byte of a token
    put(dir / "bad.bin", bytes);
    put(dir / "short.bin", get(dir / "good.bin").substr(0, 2'000'000));
    put(dir / "v1.bin", llmc_v1({1, 2, 60000}));
    uint64_t seen = 0;
    const text::Verification result =
        text::verify({dir.path()}, {.vocab = 257}, [&](uint64_t done) { seen = done; });
    REQUIRE(result.problems.size() == 4);
    CHECK(result.problems[0].shard == dir / "bad.bin");
    CHECK(result.problems[0].what == "MiB 2 of the token data does not match its checksum");
    CHECK(result.problems[1].what == "token 2401 at position 1048579 is outside the vocabulary of 257");
    CHECK(contains(result.problems[2].what, "it is cut short"));
    CHECK(result.problems[3].what == "token 60000 at position 2 is outside the vocabulary of 257");
    CHECK(result.shards == 4);
    CHECK(result.checksums == 6);
    CHECK(seen == result.bytes);
    CHECK(contains(text::to_text(result), "4 problems"));
}

TEST_CASE("verify compares the document table with the boundary tokens") {
    const TempDir dir;
    const auto problems = [&](data::BoundarySide side, const std::vector<Tokens>& documents) {
        write_documents(dir / "x.bin", {.vocab = 10, .boundary_token = 9, .side = side}, documents);
        std::string text;
        for (const text::VerifyProblem& p : text::verify({dir / "x.bin"}, {}).problems) text += p.what + "\n";
        return text;
    };
    CHECK(problems(data::BoundarySide::before, {{9, 1}, {9}, {9, 2, 3}}).empty());
    CHECK(problems(data::BoundarySide::after, {{1, 9}, {9}, {2, 3, 9}, {4}}).empty());
    CHECK(problems(data::BoundarySide::before, {{9, 1}, {2, 3}}) ==
          "the table has a document at token 2, but no boundary token is there\n");
    CHECK(problems(data::BoundarySide::before, {{9, 1, 9}}) ==
          "the boundary tokens begin a document at token 2, the table does not\n");
    CHECK(problems(data::BoundarySide::after, {{1, 9, 2, 9}}) ==
          "the boundary tokens begin a document at token 2, the table does not\n");
    CHECK(problems(data::BoundarySide::after, {{1, 2}, {3, 9}}) ==
          "the table has a document at token 2, but no boundary token is there\n");
}

TEST_CASE("verify bounds the number of problems it lists") {
    const TempDir dir;
    put(dir / "x.bin", llmc_v1(Tokens(100, 500)));
    const text::Verification result = text::verify({dir / "x.bin"}, {.vocab = 257});
    CHECK(result.problems.size() == text::problems_per_shard + 1);
    CHECK(result.problems.back().what == "90 further problems");
}
