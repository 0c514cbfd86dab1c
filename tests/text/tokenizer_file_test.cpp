// Shards of a tokenizer file's tokens.
#include "data/tokenizer_file.h"

#include <doctest/doctest.h>

#include "data/shard_fixtures.h"
#include "data/token_stream.h"
#include "text/tokenize.h"
#include "tokenizer/byte_text.h"
#include "tokenizer/tiny_vocabulary.h"

using namespace longreach;
using namespace longreach::test;

namespace {

// A directory with a tokenizer that knows "ab" (256) and <|endoftext|> (257), and a text.
struct Workplace {
    TempDir dir;
    text::TokenizeOptions options;

    explicit Workplace(int64_t end_of_text = 257) {
        json::Value file = tiny_byte_level({{"a", "b"}});
        file.find("added_tokens")->push(added_token(end_of_text, "<|endoftext|>", true));
        put(dir / "tokenizer.json", json::write(file, json::Style::pretty));
        put(dir / "text.jsonl", "{\"text\": \"abc\"}\n{\"text\": \"<|endoftext|>ab\"}\n");
        options.source.inputs = {dir / "text.jsonl"};
        options.output = dir / "out";
        options.tokenizer.path = dir / "tokenizer.json";
    }
};

Tokens tokens_of(const data::TokenStream& stream) {
    Tokens tokens(stream.tokens());
    stream.read(0, static_cast<int64_t>(tokens.size()), tokens.data());
    return tokens;
}

}  // namespace

TEST_CASE("the tokenizer is kept next to its shards") {
    const Workplace work;
    const text::TokenizeResult result = text::tokenize(work.options);
    const auto kept = data::load_tokenizer(work.dir / "out");
    CHECK(kept->fingerprint() == data::TokenStream::open(result.train.shards, {}).tokenizer());
}

TEST_CASE("shards hold the tokens of a tokenizer file, its fingerprint and a boundary before each document") {
    const Workplace work;
    const text::TokenizeResult result = text::tokenize(work.options);
    const data::TokenStream stream = data::TokenStream::open(result.train.shards, {});
    CHECK(tokens_of(stream) ==
          Tokens{257, 256, 'c', 257, '<', '|', 'e', 'n', 'd', 'o', 'f', 't', 'e', 'x', 't', '|', '>', 256});
    const data::ShardInfo& info = stream.shard(0).info();
    CHECK(info.vocab == 258);
    CHECK(info.type.bytes == 2);
    CHECK(info.boundary_token == 257);
    CHECK(info.source_bytes == 3 + 15);
    CHECK(info.tokenizer == data::load_tokenizer(work.dir.path())->fingerprint());
    CHECK(stream.tokenizer() == info.tokenizer);
    CHECK(contains(text::to_text(result), "258 tokens, fingerprint " + format_hash64(info.tokenizer) +
                                              ", <|endoftext|> (257) before each document"));
}

TEST_CASE("a document is tokenized whole, however it is read") {
    Workplace work;
    // Documents are read in windows of 64 KiB; "ab" lies across the border of one.
    put(work.dir / "long.txt", std::string((1 << 16) - 1, ' ') + "ab" + std::string(1 << 16, 'b'));
    work.options.source.inputs = {work.dir / "long.txt"};
    const data::TokenStream stream = data::TokenStream::open(text::tokenize(work.options).train.shards, {});
    CHECK(tokens_of(stream)[1 << 16] == 256);
    CHECK(stream.source_bytes() == (1 << 17) + 1);
}

TEST_CASE("a vocabulary of more than 65536 takes four bytes per token") {
    const Workplace work(70000);
    const data::TokenStream stream = data::TokenStream::open(text::tokenize(work.options).train.shards, {});
    CHECK(stream.shard(0).info().type.bytes == 4);
    CHECK(stream.shard(0).info().vocab == 70001);
    CHECK(tokens_of(stream)[0] == 70000);
}

TEST_CASE("shards of different tokenizers do not make one stream") {
    Workplace work;
    const std::string tokens = text::tokenize(work.options).train.shards.at(0);
    work.options.output = work.dir / "bytes";
    work.options.tokenizer = {};
    const std::string bytes = text::tokenize(work.options).train.shards.at(0);
    CHECK(contains(
        error_of([&] {
            data::TokenStream::open({tokens, bytes}, {});
        }),
        bytes + " was made with another tokenizer (" + format_hash64(tokenizer::bytes_fingerprint())));
}

TEST_CASE("wrong choices of a tokenizer are named") {
    Workplace work;
    const auto error = [&] {
        return anonymous(error_of([&] { text::tokenize(work.options); }), work.dir.path());
    };
    work.options.tokenizer.boundary = "<s>";
    CHECK(error() == "2: x/tokenizer.json has no added token \"<s>\"");
    work.options.tokenizer = {.path = work.dir / "tokenizer.json", .pattern = "gpt2"};
    CHECK(error() == "2: x/tokenizer.json is not a rank file, so a pattern has no effect");
    work.options.tokenizer = {.boundary = "<s>"};
    CHECK(error() == "2: --pattern and --boundary have no effect without --tokenizer");
    put(work.dir / "tokenizer.model", std::string("\n\x0e\n\x05<unk>\x15\0\0\0\0\x18\x02", 15));
    work.options.tokenizer = {.path = work.dir / "tokenizer.model"};
    CHECK(error() == "3: x/tokenizer.model seems to be a SentencePiece model, which is not read");
    put(work.dir / "none.json", json::write(tiny_byte_level({}), json::Style::compact));
    work.options.tokenizer = {.path = work.dir / "none.json"};
    CHECK(error() == "2: x/none.json has none of the usual tokens that begin a document");
}
