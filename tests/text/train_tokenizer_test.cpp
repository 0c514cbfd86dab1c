#include "text/train_tokenizer.h"

#include <doctest/doctest.h>

#include "data/shard_fixtures.h"
#include "data/tokenizer_file.h"

using namespace longreach;
using namespace longreach::test;

TEST_CASE("a vocabulary learned from files is a tokenizer file, the same for any order of the documents") {
    const TempDir dir;
    put(dir / "a.txt", "one fish two fish red fish blue fish");
    put(dir / "b.jsonl", "{\"text\": \"fish and chips\"}\n{\"text\": \"chips\"}\n");
    text::TrainTokenizerOptions options{.source = {.inputs = {dir / "a.txt", dir / "b.jsonl"}},
                                        .learn = {.vocab = 264},
                                        .output = dir / "made/tokenizer.json"};
    const text::TrainTokenizerResult result = text::train_tokenizer(options);
    CHECK(result.documents == 3);
    CHECK(result.words == 8 + 3 + 1);
    CHECK(result.tokens == 264);
    CHECK(data::load_tokenizer(dir / "made/tokenizer.json")->fingerprint() == result.fingerprint);
    const std::string file = get(dir / "made/tokenizer.json");

    CHECK(contains(error_of([&] { text::train_tokenizer(options); }), "tokenizer.json exists"));
    options.replace = true;
    options.source.inputs = {dir / "b.jsonl", dir / "a.txt"};
    CHECK(text::train_tokenizer(options).fingerprint == result.fingerprint);
    CHECK(get(dir / "made/tokenizer.json") == file);
    options.threads = 3;
    const text::TrainTokenizerResult threaded = text::train_tokenizer(options);
    CHECK(threaded.words == result.words);
    CHECK(get(dir / "made/tokenizer.json") == file);

    options.learn.vocab = 1000;
    CHECK(contains(text::to_text(text::train_tokenizer(options)), "warning: 1000 tokens were wanted"));
    options.learn.vocab = 256;
    CHECK(
        contains(error_of([&] { text::train_tokenizer(options); }), "2: --vocab 256: 257 tokens are needed"));
}

TEST_CASE("a vocabulary is learned from the documents that data tokenize, split alike, leaves for training") {
    const TempDir dir;
    std::string lines, training;
    for (int i = 0; i < 40; ++i) {
        const std::string line = fmt::format("{{\"text\": \"word{} word{}\"}}\n", i, i * i);
        lines += line;
        if (i % 4 != 3) training += line;
    }
    put(dir / "all.jsonl", lines);
    put(dir / "training.jsonl", training);
    text::TrainTokenizerOptions options{.source = {.inputs = {dir / "all.jsonl"}},
                                        .learn = {.vocab = 270, .min_count = 1},
                                        .output = dir / "tokenizer.json",
                                        .split = {.every = 4}};
    const text::TrainTokenizerResult split = text::train_tokenizer(options);
    CHECK(split.documents == 30);
    CHECK(split.left_for_validation == 10);
    options.source.inputs = {dir / "training.jsonl"};
    options.split = {};
    options.replace = true;
    CHECK(text::train_tokenizer(options).fingerprint == split.fingerprint);
    options.source.inputs = {dir / "all.jsonl"};
    CHECK(text::train_tokenizer(options).fingerprint != split.fingerprint);
    options.split = {.fraction = 1};
    CHECK(contains(error_of([&] { text::train_tokenizer(options); }), "2: the validation fraction 1"));
}
