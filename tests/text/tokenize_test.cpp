#include "text/tokenize.h"

#include <doctest/doctest.h>

#include <filesystem>

#include "data/shard_fixtures.h"
#include "data/token_stream.h"
#include "tokenizer/byte_text.h"

using namespace longreach;
using namespace longreach::test;

namespace {

// The documents of shards, as text; each begins with its boundary token.
std::vector<std::string> documents_of(const data::SplitResult& split) {
    std::vector<std::string> documents;
    if (split.shards.empty()) return documents;
    const data::TokenStream stream = data::TokenStream::open(split.shards, {});
    Tokens tokens(stream.tokens());
    stream.read(0, static_cast<int64_t>(tokens.size()), tokens.data());
    for (const int32_t t : tokens) {
        if (t == tokenizer::byte_boundary) {
            documents.emplace_back();
        } else {
            documents.back() += static_cast<char>(t);
        }
    }
    return documents;
}

using Texts = std::vector<std::string>;

// A tree with two directories, a link and a binary file.
void make_tree(const std::string& root) {
    std::filesystem::create_directories(io::join_path(root, "b/deep"));
    std::filesystem::create_directories(io::join_path(root, "a"));
    put(io::join_path(root, "z.txt"), "last");
    put(io::join_path(root, "a/2.h"), "two");
    put(io::join_path(root, "a/10.h"), "ten");
    put(io::join_path(root, "b/deep/x.h"), "deep");
    put(io::join_path(root, "b/empty.h"), "");
    put(io::join_path(root, "b/object.o"), std::string("\x7f"
                                                       "ELF\0\0",
                                                       6));
    std::filesystem::create_symlink(io::join_path(root, "a/2.h"), io::join_path(root, "b/link.h"));
    std::filesystem::create_directory_symlink(root, io::join_path(root, "b/loop"));
}

}  // namespace

TEST_CASE("a directory is walked in byte order; links and binary files are left out") {
    const TempDir dir;
    make_tree(dir / "in");
    text::TokenizeOptions options{.source = {.inputs = {dir / "in"}}, .output = dir / "out"};
    const text::TokenizeResult all = text::tokenize(options);
    CHECK(documents_of(all.train) == Texts{"ten", "two", "deep", "last"});
    CHECK(all.files == 5);
    CHECK(all.binary_files == 1);
    CHECK(all.val.shards.empty());
    CHECK(all.train.tokens == 18);
    CHECK(all.train.source_bytes == 14);
    const data::TokenStream stream =
        data::TokenStream::open({dir / "out"}, {.vocab = 257, .need_documents = true});
    CHECK(stream.fingerprint() == all.train.fingerprint);
    CHECK(stream.source_bytes() == 14);

    options.output = dir / "out2";
    options.source.extensions = {".h"};
    options.source.exclude = {"b/*"};
    CHECK(documents_of(text::tokenize(options).train) == Texts{"ten", "two"});
}

TEST_CASE("tokenizing names what --exclude left out, and a pattern that matches nothing") {
    const TempDir dir;
    make_tree(dir / "in");
    text::TokenizeOptions options{.source = {.inputs = {dir / "in"}}, .output = dir / "out"};
    options.source.exclude = {"a/*", "a/2.h", "*.md"};
    const text::TokenizeResult result = text::tokenize(options);
    CHECK(documents_of(result.train) == Texts{"deep", "last"});
    CHECK(result.excluded.files == 2);
    CHECK(result.excluded.bytes == 6);
    CHECK(result.unmatched == Texts{"*.md"});
    CHECK(contains(text::to_text(result), "2 files excluded, 6 B of text\n"));
    CHECK(contains(text::to_text(result), "warning: --exclude \"*.md\" matches no file"));

    options.output = dir / "out2";
    options.source.exclude = {"*"};
    CHECK(contains(error_of([&] { text::tokenize(options); }), "no file to read (6 files are excluded)"));
}

TEST_CASE("tokenizing is deterministic, wherever the text lies") {
    const TempDir a, b;
    make_tree(a / "here");
    make_tree(b / "there");
    const text::TokenizeResult first =
        text::tokenize({.source = {.inputs = {a / "here"}}, .output = a / "o", .split = {.fraction = 0.5}});
    const text::TokenizeResult again =
        text::tokenize({.source = {.inputs = {b / "there"}}, .output = b / "o", .split = {.fraction = 0.5}});
    CHECK(first.train.fingerprint == again.train.fingerprint);
    CHECK(first.val.fingerprint == again.val.fingerprint);
    for (const std::string& name : io::list_directory(a / "o"))
        CHECK(get(a / "o/" + name) == get(b / "o/" + name));
}

TEST_CASE("all 256 bytes, long files and full shards come through") {
    const TempDir dir;
    std::string text;
    for (int i = 0; i < 300'000; ++i) text += static_cast<char>(i * 7 + i / 256);
    put(dir / "long.bin.txt", text);
    put(dir / "b.txt", "b");
    put(dir / "c.txt", "c");
    const text::TokenizeResult result =
        text::tokenize({.source = {.inputs = {dir / "b.txt", dir / "long.bin.txt", dir / "c.txt"}},
                        .output = dir / "out",
                        .max_shard_tokens = 100'000});
    CHECK(documents_of(result.train) == Texts{"b", text, "c"});
    // A document is never cut: the first shard holds the long one whole.
    CHECK(result.train.shards == Texts{dir / "out/train_000000.bin", dir / "out/train_000001.bin"});
    CHECK(data::Shard::open(result.train.shards[0], {}).info().tokens == 300'003);
}

TEST_CASE("JSONL: one document per line, by field; errors name the line") {
    const TempDir dir;
    const auto run = [&](const std::string& text, const std::string& field = "text") {
        put(dir / "in.jsonl", text);
        return text::tokenize({.source = {.inputs = {dir / "in.jsonl"}, .text_field = field},
                               .output = dir / "out",
                               .replace = true});
    };
    CHECK(documents_of(
              run("{\"text\": \"one\\n\\u00e9\"}\n\n{\"id\": 2, \"text\": \"two\"}\n{\"text\": \"\"}\n")
                  .train) == Texts{"one\n\xc3\xa9", "two"});
    CHECK(documents_of(run("{\"body\": \"no newline at the end\"}", "body").train) ==
          Texts{"no newline at the end"});
    std::string many;
    for (int i = 0; i < 20000; ++i) many += fmt::format("{{\"text\": \"document {}\"}}\n", i);
    CHECK(run(many).train.documents == 20000);
    const auto outcome = [&](const std::string& text) { return error_of([&] { run(text); }); };
    const std::string shard = get(dir / "out/train_000000.bin");
    CHECK(contains(outcome("{\"text\": \"a\"}\n{\"text\": 3}\n"),
                   "in.jsonl line 2: field text is not a string"));
    CHECK(contains(outcome("{\"text\": \"a\"}\n{\"txt\": \"b\"}\n"), "in.jsonl line 2 has no field text"));
    CHECK(contains(outcome("[1]\n"), "in.jsonl line 1 is not a JSON object"));
    CHECK(contains(outcome("{\"text\": \"a\"\n"), "3: "));
    // A failed run leaves no shard, and the earlier ones as they were.
    CHECK(io::list_directory(dir / "out") == std::vector<std::string>{"shards.json", "train_000000.bin"});
    CHECK(get(dir / "out/train_000000.bin") == shard);
    std::filesystem::remove_all(dir / "out");
    CHECK(contains(outcome("{\"text\": \"a\"\n"), "3: "));
    CHECK(io::list_directory(dir / "out").empty());
}

TEST_CASE("validation documents: every n-th, or a fraction that does not depend on the others") {
    const TempDir dir;
    std::string lines;
    for (int i = 0; i < 1000; ++i) lines += fmt::format("{{\"text\": \"{}\"}}\n", i);
    put(dir / "in.jsonl", lines);
    text::TokenizeOptions options{.source = {.inputs = {dir / "in.jsonl"}},
                                  .output = dir / "out",
                                  .replace = true,
                                  .split = {.every = 10}};
    text::TokenizeResult result = text::tokenize(options);
    CHECK(result.train.documents == 900);
    CHECK(documents_of(result.val)[0] == "9");
    CHECK(documents_of(result.val)[99] == "999");
    options.split.every = 0;
    options.split.fraction = 0.1;
    result = text::tokenize(options);
    CHECK(result.val.documents > 60);
    CHECK(result.val.documents < 140);
    const Texts before = documents_of(result.val);
    put(dir / "in.jsonl", lines + "{\"text\": \"one more\"}\n");
    Texts after = documents_of(text::tokenize(options).val);
    after.resize(before.size());
    CHECK(after == before);
    options.split.every = 5;
    CHECK(contains(error_of([&] { text::tokenize(options); }),
                   "2: choose validation documents by number or by fraction"));
}

TEST_CASE("a limit of bytes, an occupied output, missing and wrong inputs") {
    const TempDir dir;
    make_tree(dir / "in");
    text::TokenizeOptions options{.source = {.inputs = {dir / "in"}}, .output = dir / "out", .max_bytes = 7};
    const text::TokenizeResult result = text::tokenize(options);
    CHECK(documents_of(result.train) == Texts{"ten", "two"});
    CHECK(result.limited);
    CHECK(contains(text::to_text(result), "the rest left out"));
    CHECK(contains(error_of([&] { text::tokenize(options); }),
                   "already holds token shards (train_000000.bin)"));
    options.replace = true;
    CHECK(error_of([&] { text::tokenize(options); }) == "no error");
    put(dir / "out/mine.bin", "precious");
    CHECK(contains(error_of([&] { text::tokenize(options); }), "already holds token shards (mine.bin)"));
    CHECK(get(dir / "out/mine.bin") == "precious");

    const auto outcome = [&](const std::vector<std::string>& inputs) {
        return error_of([&] { text::tokenize({.source = {.inputs = inputs}, .output = dir / "other"}); });
    };
    CHECK(contains(outcome({}), "2: no text is named"));
    CHECK(contains(outcome({dir / "missing"}), "3: cannot open"));
    std::filesystem::create_directory(dir / "nothing");
    CHECK(contains(outcome({dir / "nothing"}), "3: the inputs hold no file to read"));
    CHECK(contains(outcome({dir / "in/b/empty.h"}), "3: the inputs hold no text"));
    put(dir / "text.gz", "\x1f\x8b\x08");
    CHECK(contains(outcome({dir / "text.gz"}), "text.gz: the archive ends early"));
}

TEST_CASE("licence headers are dropped, other comments are kept") {
    const auto rest = [](const std::string& text) { return text.substr(text::licence_end(text)); };
    CHECK(rest("// Copyright 2020\n// All rights\n\nint x;\n") == "int x;\n");
    CHECK(rest("/* Copyright 2020 */\n/** @file */\nint x;\n") == "/** @file */\nint x;\n");
    CHECK(rest("// <algorithm> -*- C++ -*-\n\n// Copyright (C)\n//\n// text\n\n/** doc */\nint x;") ==
          "/** doc */\nint x;");
    CHECK(rest("  // SPDX-License-Identifier: MIT\n  // more\n x") == "x");
    CHECK(rest("// what this file does\nint x;\n// Copyright\n") ==
          "// what this file does\nint x;\n// Copyright\n");
    CHECK(rest("int x; // licence") == "int x; // licence");
    CHECK(rest("/* licence that never ends") == "/* licence that never ends");
    CHECK(rest("// licence without a newline") == "// licence without a newline");
    CHECK(rest("/* LICENCE */") == "");
    CHECK(rest("") == "");
    CHECK(rest("\n\n#include <x>\n") == "\n\n#include <x>\n");

    const TempDir dir;
    put(dir / "x.h", "// Copyright\nint x;\n");
    put(dir / "only.h", "// Copyright\n");
    const text::TokenizeResult result = text::tokenize(
        {.source = {.inputs = {dir / "only.h", dir / "x.h"}, .strip_licence = true}, .output = dir / "out"});
    CHECK(documents_of(result.train) == Texts{"int x;\n"});
    CHECK(result.train.source_bytes == 7);
}
