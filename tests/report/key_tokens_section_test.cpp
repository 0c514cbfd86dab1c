// Losses on key tokens are shown together only where the tokens and the judge's choice of them are the same.
#include <doctest/doctest.h>

#include "measure/key_tokens.h"
#include "report/page_parts.h"
#include "sample_runs.h"

using namespace longreach;
using namespace longreach::test;

namespace {

bool contains(const std::string& text, const std::string& part) {
    return text.find(part) != std::string::npos;
}
size_t count(const std::string& text, const std::string& part) {
    size_t n = 0;
    for (size_t at = text.find(part); at != text.npos; at = text.find(part, at + 1)) ++n;
    return n;
}

struct Choice {
    std::string judge, name, fingerprint, parts;
    double scored = 100;  // key tokens; 900 others
};

// key_tokens.csv of a run at 256 and 1024: `loss` at 256 on key tokens, half as much at 1024.
void write(const std::string& run, const Choice& choice, double loss) {
    std::string rows = measure::key_tokens_file.header() + "\n";
    for (const int64_t length : {256, 1024})
        for (const bool key : {true, false})
            rows +=
                measure::key_tokens_file.line({.step = 10,
                                               .length = length,
                                               .part = key ? "key" : "other",
                                               .loss = key ? loss * 256 / static_cast<double>(length) : 1.5,
                                               .standard_error = key ? 0.25 : 0.0625,
                                               .scored = key ? choice.scored : 1000 - choice.scored,
                                               .from = 256,
                                               .to = 1024,
                                               .judge = choice.judge,
                                               .fingerprint = choice.fingerprint,
                                               .judge_name = choice.name,
                                               .parts = choice.parts}) +
                "\n";
    const std::string at = io::join_path(run, "eval/plain");
    io::make_directories(at);
    put(io::join_path(at, "key_tokens.csv"), rows);
}

const Choice referee{"file", "referee", "00000000000000aa", "0000000000000011"};

struct Shown {
    std::string html, notes;
    explicit Shown(const std::vector<std::string>& runs) {
        const report::Collection c = report::collect(runs);
        const report::Summary s = report::summarize(c);
        html = report::key_tokens_section({c, s}).html;
    }
};

}  // namespace

TEST_CASE("key tokens: one judge for all gives one chart per part, with paired differences") {
    const TempDir dir;
    std::vector<std::string> runs;
    for (const char* variant : {"a", "b"})
        for (const int seed : {1, 2}) {
            runs.push_back(dir / fmt::format("{}.seed{}", variant, seed));
            write(runs.back(), referee, (variant[0] == 'a' ? 4 : 3) + 0.5 * seed);
        }
    const std::string html = Shown(runs).html;
    CHECK(
        contains(html,
                 "100 of 1,000 scored tokens (10.00%) are key tokens: the loss of referee on them falls by 2 "
                 "nats or more from 256 to 1,024 tokens of context, to 2 or less."));
    CHECK(contains(html, "data-chart=\"key-tokens\""));
    CHECK(contains(html, "data-chart=\"other-tokens\""));
    CHECK(!contains(html, "<select"));
    CHECK(contains(html, "one standard error over seeds"));
    // b minus a is -1 at 256 for both seeds: the interval has no width.
    CHECK(contains(html, "\u22121.0000"));
    // Means at 1024: (4.5 + 5) / 8 and (3.5 + 4) / 8.
    CHECK(contains(html, "1.1875"));
    CHECK(contains(html, "0.9375"));
    CHECK(!contains(html, "flatters"));
}

TEST_CASE("key tokens: other tokens, or another choice of them, are never in the same chart") {
    const TempDir dir;
    std::vector<Choice> choices{referee, referee, referee, referee};
    choices[2].parts = "0000000000000012";        // another judge's choice
    choices[3].fingerprint = "00000000000000bb";  // other tokens
    std::vector<std::string> runs;
    for (size_t i = 0; i < choices.size(); ++i) {
        runs.push_back(dir / fmt::format("r{}", i));
        write(runs.back(), choices[i], 7.25 + static_cast<double>(i));
    }
    const std::string html = Shown(runs).html;
    CHECK(contains(html, "not comparable"));
    CHECK(count(html, "<option") == 3);
    CHECK(contains(html, "referee, 2 runs"));
    CHECK(count(html, "referee, 1 run<") == 2);
    // The first piece has the two runs that share their tokens, and only those.
    const std::string first = html.substr(0, html.find("data-chart=\"other-tokens\""));
    CHECK(contains(first, "7.2500"));
    CHECK(contains(first, "8.2500"));
    CHECK(!contains(first, "9.2500"));
    CHECK(!contains(first, "10.2500"));
    CHECK(contains(first, "bands are one standard error over documents"));
}

TEST_CASE(
    "key tokens: rows of an earlier version, which do not say which tokens are meant, compare with nothing") {
    const TempDir dir;
    Choice unknown = referee;
    unknown.parts = "";
    write(dir / "r1", unknown, 4);
    write(dir / "r2", unknown, 5);
    CHECK(count(Shown({dir / "r1", dir / "r2"}).html, "<option") == 2);
}

TEST_CASE("key tokens: models that judge themselves are counted, not compared") {
    const TempDir dir;
    for (const int i : {1, 2, 3})
        write(dir / fmt::format("r{}", i),
              {"self", fmt::format("r{}", i), "00000000000000aa", fmt::format("000000000000001{}", i),
               100.0 + i},
              7.25);
    const std::string html = Shown({dir / "r1", dir / "r2", dir / "r3"}).html;
    CHECK(contains(html, "Each of these models is its own judge"));
    for (const char* n : {"101", "102", "103"}) CHECK(contains(html, n));
    CHECK(!contains(html, "7.2500"));
    CHECK(!contains(html, "<svg"));
    // Alone, its losses are shown, with what is wrong about them.
    const std::string alone = Shown({dir / "r1"}).html;
    CHECK(contains(alone, "7.2500"));
    CHECK(contains(alone, "where it was lucky"));
    // Beside models that were scored on its tokens it is named as the judge.
    write(dir / "r4", {"file", "r1", "00000000000000aa", "0000000000000011", 101}, 6.5);
    const std::string beside = Shown({dir / "r1", dir / "r4"}).html;
    CHECK(contains(beside, "The judge is r1 (seed 0) itself"));
    CHECK(contains(beside, "6.5000"));
    CHECK(!contains(beside, "<select"));
}

TEST_CASE("key tokens: no file, no section; a part without tokens is said to be empty") {
    const TempDir dir;
    Choice none = referee;
    none.scored = 0;
    write(dir / "r1", none, NAN);
    CHECK(contains(Shown({dir / "r1"}).html, "There are no key tokens."));
    io::remove_file(dir / "r1/eval/plain/key_tokens.csv");
    put(dir / "r1/metrics.jsonl", "{\"step\":1,\"tokens\":1,\"context\":1,\"loss\":1}\n");
    CHECK(Shown({dir / "r1"}).html.empty());
}
