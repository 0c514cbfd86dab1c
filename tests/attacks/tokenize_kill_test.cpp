// `data tokenize` from outside: kills, two at once, links, standard input.
#include <doctest/doctest.h>

#include <filesystem>
#include <map>

#include "attacks/rounds.h"
#include "base/rng.h"
#include "commands/process.h"
#include "data/shard_list.h"
#include "data/shard_set.h"
#include "data/token_stream.h"
#include "tokenizer/byte_text.h"

using namespace longreach;
using namespace longreach::test;

namespace {

namespace fs = std::filesystem;
using Contents = std::map<std::string, std::string>;

Contents contents_of(const std::string& directory) {
    Contents contents;
    for (const auto& entry : fs::recursive_directory_iterator(directory))
        if (!entry.is_directory())
            contents[fs::relative(entry.path(), directory).string()] = get(entry.path().string());
    return contents;
}

// Standard input of the processes that are started while it lives.
class Input {
  public:
    explicit Input(const std::string& path) : before_(::dup(STDIN_FILENO)) {
        const int file = ::open(path.c_str(), O_RDONLY);
        check(file >= 0 && ::dup2(file, STDIN_FILENO) >= 0, "no standard input");
        ::close(file);
    }
    ~Input() {
        if (before_ >= 0) ::dup2(before_, STDIN_FILENO);
        ::close(before_ >= 0 ? before_ : STDIN_FILENO);
    }

  private:
    int before_;
};

struct Home {
    TempDir dir, output;
    Home() {
        std::string text;
        for (int i = 0; i < 6000; ++i)
            text += fmt::format("{{\"text\": \"document {}: {}\"}}\n", i, std::string(500, 'x'));
        put(dir / "text.jsonl", text);
    }
    std::vector<std::string> command(const std::string& out,
                                     const std::vector<std::string>& more = {}) const {
        std::vector<std::string> all{"data",        "tokenize", dir / "text.jsonl", "--out", dir / out,
                                     "--val-every", "5",        "--shard-tokens",   "20000"};
        all.insert(all.end(), more.begin(), more.end());
        return all;
    }
    Finished run(const std::vector<std::string>& arguments) const { return test::run(output, arguments); }
};

// The tokens of a directory as text, "|" for a boundary.
std::string shard_of(const std::string& directory) {
    std::string tokens;
    const data::TokenStream stream = data::TokenStream::open({directory}, {});
    std::vector<int32_t> ids(stream.tokens());
    stream.read(0, static_cast<int64_t>(ids.size()), ids.data());
    for (const int32_t id : ids) tokens += id == tokenizer::byte_boundary ? '|' : static_cast<char>(id);
    return tokens;
}

}  // namespace

TEST_CASE("tokenize: killed at random moments, the same call ends with the same files") {
    const Home home;
    const auto begin = std::chrono::steady_clock::now();
    REQUIRE(home.run(home.command("whole")).code == 0);
    double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    const Contents whole = contents_of(home.dir / "whole");
    CHECK(whole.size() > 100);
    const Rng rng(static_cast<uint64_t>(std::time(nullptr)), Purpose::test);
    uint64_t draws = 0;
    int killed = 0;
    for (int round = 0; round < attack_rounds(2) || killed == 0; ++round) {
        const bool replaces = round % 2 == 1;
        fs::remove_all(home.dir / "out");
        if (replaces) {
            REQUIRE(home.run(home.command("out", {"--max-bytes", "300000"})).code == 0);
            put(home.dir / "out/notes.txt", "precious");
        }
        const auto command = home.command(
            "out", replaces ? std::vector<std::string>{"--replace"} : std::vector<std::string>{});
        for (int kill = 0; kill < 3; ++kill) {
            Process process(home.output, command);
            sleep_for(seconds * rng.uniform(draws++));
            process.signal(SIGKILL);
            const int code = process.wait();
            CAPTURE(process.err());
            REQUIRE((code == -SIGKILL || code == 0));
            killed += code != 0;
            if (code == 0) {  // the first run took longer while others ran
                seconds /= 2;
                break;
            }
        }
        const bool complete = fs::exists(home.dir / "out/shards.json") && !replaces &&
                              !fs::exists(home.dir / "out/unfinished.json");
        if (!complete) {
            const Finished last = home.run(command);
            CAPTURE(last.err);
            REQUIRE(last.code == 0);
        }
        Contents expected = whole;
        if (replaces) expected["notes.txt"] = "precious";
        CHECK((contents_of(home.dir / "out") == expected));
    }
    CHECK(killed > 0);
}

TEST_CASE("tokenize: of two calls at once into one directory the second ends with 10, whatever the path") {
    const Home home;
    fs::create_directory(home.dir / "out");
    fs::create_directory_symlink(home.dir / "out", home.dir / "link");
    REQUIRE(home.run(home.command("whole")).code == 0);
    int refused = 0;
    for (int round = 0; round < attack_rounds(2); ++round) {
        fs::remove_all(home.dir / "out");
        fs::create_directory(home.dir / "out");
        Process first(home.output, home.command("out"), {.name = "first"});
        Process second(home.output, home.command("link"), {.name = "second"});
        const int one = first.wait(), two = second.wait();
        CAPTURE(first.err());
        CAPTURE(second.err());
        CHECK((one == 0 || two == 0));
        for (const Process* process : {&first, &second})
            if (contains(process->err(), "is in use by another process that writes shards")) ++refused;
        for (const int code : {one, two})
            CHECK((code == 0 || code == 10 || code == 2));  // 2: it came after the end
        CHECK((contents_of(home.dir / "out") == contents_of(home.dir / "whole")));
    }
    CHECK(refused > 0);
    // A link to the directory is one like any other to replace through.
    CHECK(home.run(home.command("link", {"--replace"})).code == 0);
    CHECK(fs::is_symlink(home.dir / "link"));
    CHECK((contents_of(home.dir / "out") == contents_of(home.dir / "whole")));
}

TEST_CASE("tokenize: standard input is cut at --max-bytes, between characters") {
    const Home home;
    const std::string text = "ab\u00E9\u4E2D" + std::string(200000, 'z');
    put(home.dir / "input", text);
    for (const auto& [limit, bytes] : {std::pair<size_t, size_t>{1, 1},
                                       {2, 2},
                                       {3, 2},
                                       {4, 4},
                                       {6, 4},
                                       {7, 7},
                                       {70000, 70000},
                                       {text.size() - 1, text.size() - 1},
                                       {text.size(), text.size()}}) {
        const Input input(home.dir / "input");
        CAPTURE(limit);
        const Finished f = home.run({"data", "tokenize", "-", "--out", home.dir / "out", "--replace",
                                     "--max-bytes", std::to_string(limit)});
        CAPTURE(f.err);
        REQUIRE(f.code == 0);
        CHECK((shard_of(home.dir / "out") == "|" + text.substr(0, bytes)));
        CHECK(contains(f.out, "left out") == (limit < text.size()));
    }
    // Lines are documents of known sizes.
    put(home.dir / "input", "{\"text\": \"one\"}\n{\"text\": \"two\"}\n");
    const Input input(home.dir / "input");
    REQUIRE(home.run({"data", "tokenize", "-", "--jsonl", "--out", home.dir / "lines", "--max-bytes", "5"})
                .code == 0);
    CHECK(shard_of(home.dir / "lines") == "|one");
}

TEST_CASE("tokenize: files of others in the output stay, and a tokenizer that was there is not replaced") {
    const Home home;
    fs::create_directory(home.dir / "out");
    for (const char* name : {"notes.txt", "lock", "README.md", "train_000000.txt"})
        put(home.dir / "out/" + name, "precious");
    CHECK(home.run(home.command("out")).code == 0);
    const Finished again = home.run(home.command("out", {"--replace"}));
    CHECK(again.code == 0);
    CHECK(contains(again.out,
                   "not of this program, left as they are: README.md, lock, notes.txt, train_000000.txt\n"));
    for (const char* name : {"notes.txt", "lock", "README.md", "train_000000.txt"})
        CHECK(get(home.dir / "out/" + name) == "precious");
    const Finished learned = home.run({"data", "train-tokenizer", home.dir / "text.jsonl", "--vocab", "260",
                                       "--out", home.dir / "tokenizer.json"});
    if (learned.code == 2) return;  // built without regular expressions
    put(home.dir / "out/tokenizer.json", "{}");
    const std::vector<std::string> with{"--replace", "--tokenizer", home.dir / "tokenizer.json"};
    const Finished refused = home.run(home.command("out", with));
    CHECK(refused.code == 2);
    CHECK(contains(refused.err, "already holds another tokenizer.json"));
    CHECK(get(home.dir / "out/tokenizer.json") == "{}");
    fs::remove(home.dir / "out/tokenizer.json");
    CHECK(home.run(home.command("out", with)).code == 0);
    CHECK(get(home.dir / "out/tokenizer.json") == get(home.dir / "tokenizer.json"));
    // With the next tokenizer it goes: the list names it.
    CHECK(home.run(home.command("out", {"--replace"})).code == 0);
    CHECK(!fs::exists(home.dir / "out/tokenizer.json"));
}
