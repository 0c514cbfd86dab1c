// Text out of archives, several threads that encode, and calls that are killed.
#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <map>

#include "data/shard_fixtures.h"
#include "text/text_bytes.h"
#include "data/token_stream.h"
#include "text/tokenize.h"
#include "text/unpacker.h"
#include "tokenizer/tiny_vocabulary.h"

using namespace longreach;
using namespace longreach::test;

namespace {

// A Zstandard frame of one block that is not compressed: magic, a descriptor (one segment, its size in a byte), the
// size, the block's header (last, raw, size), the text.
std::string zstandard(const std::string& text) {
    const size_t size = text.size(), header = size * 8 + 1;
    std::string frame = "\x28\xb5\x2f\xfd\x20";
    frame += static_cast<char>(size);
    for (const int shift : {0, 8, 16}) frame += static_cast<char>(header >> shift & 255);
    return frame + text;
}

void gzip(const std::string& path) {
    REQUIRE(std::system(fmt::format("gzip -f '{}'", path).c_str()) == 0);
}

bool unpacks(const char* kind) {
    return text::make_unpacker(kind) != nullptr;
}

// All shards of a directory, by name.
std::map<std::string, std::string> shards_of(const std::string& directory) {
    std::map<std::string, std::string> shards;
    for (const std::string& name : io::list_directory(directory))
        shards[name] = get(io::join_path(directory, name));
    return shards;
}

std::string many_lines(int count) {
    std::string text;
    for (int i = 0; i < count; ++i)
        text +=
            fmt::format("{{\"text\": \"{} abab {}\"}}\n", i, std::string(static_cast<size_t>(i % 50), 'a'));
    return text;
}

void make_tokenizer(const std::string& directory) {
    json::Value file = tiny_byte_level({{"a", "b"}});
    file.find("added_tokens")->push(added_token(257, "<|endoftext|>", true));
    put(directory + "/tokenizer.json", json::write(file, json::Style::pretty));
}

}  // namespace

TEST_CASE("packed text gives the shards of the text, also of the same documents for validation") {
    const TempDir dir;
    std::filesystem::create_directories(dir / "plain");
    std::filesystem::create_directories(dir / "packed");
    const std::string lines = many_lines(3000), text(200'000, 'x');
    for (const char* directory : {"plain", "packed"}) {
        put(dir / (std::string(directory) + "/lines.jsonl"), lines);
        put(dir / (std::string(directory) + "/text.txt"), text);
    }
    if (!unpacks("gzip")) return;
    gzip(dir / "packed/lines.jsonl");
    gzip(dir / "packed/text.txt");
    // Two archives one after the other are one text.
    put(dir / "plain/two.txt", "onetwo");
    put(dir / "packed/two.txt", "one");
    gzip(dir / "packed/two.txt");
    put(dir / "second", "two");
    gzip(dir / "second");
    put(dir / "packed/two.txt.gz", get(dir / "packed/two.txt.gz") + get(dir / "second.gz"));
    if (unpacks("Zstandard")) {
        put(dir / "plain/z.txt", "Zstandard text");
        put(dir / "packed/z.txt.zst", zstandard("Zstandard ") + zstandard("text"));
    }
    for (const char* directory : {"plain", "packed"})
        text::tokenize({.source = {.inputs = {dir / directory}},
                        .output = dir / (std::string(directory) + "-out"),
                        .split = {.fraction = 0.1}});
    CHECK(shards_of(dir / "plain-out") == shards_of(dir / "packed-out"));
    CHECK(shards_of(dir / "plain-out").size() == 3);  // one of each split, and their list
}

TEST_CASE("a limit of bytes holds for what an archive unpacks to") {
    if (!unpacks("gzip")) return;
    const TempDir dir;
    std::filesystem::create_directory(dir / "in");
    put(dir / "in/a.txt", std::string(300'000, 'a'));
    put(dir / "in/b.txt", std::string(300'000, 'b'));
    const auto tokenize = [&](const std::string& out, uint64_t limit) {
        return text::tokenize(
            {.source = {.inputs = {dir / "in"}}, .output = dir / out, .replace = true, .max_bytes = limit});
    };
    const std::vector<uint64_t> limits{300'000, 599'999, 600'000};
    std::vector<std::map<std::string, std::string>> plain;
    for (const uint64_t limit : limits) {
        tokenize("plain", limit);
        plain.push_back(shards_of(dir / "plain"));
    }
    gzip(dir / "in/a.txt");
    gzip(dir / "in/b.txt");
    for (size_t i = 0; i < limits.size(); ++i) {
        const text::TokenizeResult result = tokenize("packed", limits[i]);
        CHECK(result.limited == (limits[i] < 600'000));
        CHECK(result.train.source_bytes == (limits[i] < 600'000 ? 300'000 : 600'000));
        CHECK(shards_of(dir / "packed") == plain[i]);
    }
    CHECK(contains(error_of([&] { tokenize("none", 299'999); }),
                   "3: the inputs hold no text: the first document has more bytes than --max-bytes"));
}

TEST_CASE("archives that are damaged or end early are refused, at every length") {
    if (!unpacks("gzip")) return;
    const TempDir dir;
    put(dir / "text", std::string(3000, 'a') + std::string(3000, 'b'));
    gzip(dir / "text");
    const std::string whole = get(dir / "text.gz"), frame = zstandard("some text");
    const auto outcome = [&](const std::string& bytes) {
        put(dir / "cut.txt", bytes);
        return error_of([&] {
            text::tokenize({.source = {.inputs = {dir / "cut.txt"}}, .output = dir / "out", .replace = true});
        });
    };
    CHECK(outcome(whole) == "no error");
    for (size_t size = 2; size < whole.size(); ++size)
        CHECK(contains(outcome(whole.substr(0, size)), "cut.txt: the archive ends early"));
    std::string damaged = whole;
    damaged[whole.size() - 6] ^= 1;  // the checksum
    CHECK(contains(outcome(damaged), "cut.txt: the archive is damaged"));
    CHECK(contains(outcome(whole + "text"), "cut.txt: the archive is damaged"));
    if (!unpacks("Zstandard")) return;
    CHECK(outcome(frame) == "no error");
    for (size_t size = 4; size < frame.size(); ++size)
        CHECK(contains(outcome(frame.substr(0, size)), "cut.txt: the archive ends early"));
}

TEST_CASE("the shards do not depend on the threads that encode") {
    const TempDir dir;
    make_tokenizer(dir.path());
    // Several batches of documents, some of them large.
    std::string lines = many_lines(20'000);
    lines += fmt::format("{{\"text\": \"{}\"}}\n", std::string(9'000'000, 'a'));
    put(dir / "text.jsonl", lines + many_lines(20'000));
    const auto tokenize = [&](int threads) {
        const std::string out = dir / fmt::format("out{}", threads);
        text::tokenize({.source = {.inputs = {dir / "text.jsonl"}},
                        .output = out,
                        .tokenizer = {.path = dir / "tokenizer.json"},
                        .split = {.every = 7},
                        .max_shard_tokens = 100'000,
                        .threads = threads});
        return shards_of(out);
    };
    const auto one = tokenize(1);
    CHECK(one.size() > 10);
    CHECK(tokenize(2) == one);
    CHECK(tokenize(5) == one);
}

TEST_CASE("a call that is killed at any shard continues, and ends with the same files") {
    const TempDir dir;
    make_tokenizer(dir.path());
    put(dir / "text.jsonl", many_lines(4000));
    for (const bool bytes : {false, true}) {
        std::filesystem::remove_all(dir / "whole");
        text::TokenizeOptions options{.source = {.inputs = {dir / "text.jsonl"}},
                                      .output = dir / "whole",
                                      .replace = true,
                                      .split = {.every = 3},
                                      .max_shard_tokens = 20'000,
                                      .threads = bytes ? 1 : 2};
        if (!bytes) options.tokenizer.path = dir / "tokenizer.json";
        text::tokenize(options);
        const auto whole = shards_of(dir / "whole");
        options.output = dir / "killed";
        options.replace = false;
        for (int kills = 0; kills < 4; ++kills) {
            std::filesystem::remove_all(dir / "killed");
            for (int kill = 0; kill <= kills; ++kill) {
                const pid_t child = ::fork();
                REQUIRE(child >= 0);
                if (child == 0) {
                    // Dies while it reads, each time further on.
                    options.progress = [&](uint64_t done, uint64_t of) {
                        if (done * 5 >= of * static_cast<uint64_t>(kill + 1)) ::raise(SIGKILL);
                    };
                    try {
                        text::tokenize(options);
                    } catch (...) {
                    }
                    ::_exit(1);
                }
                int status = 0;
                REQUIRE(::waitpid(child, &status, 0) == child);
                REQUIRE(WIFSIGNALED(status));
                CHECK(
                    contains(error_of([&] { data::TokenStream::open({dir / "killed"}, {}); }), "unfinished"));
            }
            text::TokenizeOptions other = options;
            other.max_shard_tokens = 30'000;
            CHECK(contains(error_of([&] { text::tokenize(other); }),
                           "unfinished shards of other texts or options"));
            text::tokenize(options);
            const auto killed = shards_of(dir / "killed");
            for (const auto& [name, content] : killed)
                CHECK_MESSAGE((whole.contains(name) && whole.at(name) == content), name);
            CHECK(killed.size() == whole.size());
        }
    }
}
