// Words by automaton and by PCRE2: the same for every character and for texts drawn at random.
#include "tokenizer/split.h"

#include <doctest/doctest.h>

#include <array>

#include "base/rng.h"
#include "base/text.h"
#include "tokenizer/byte_text.h"
#include "tokenizer/formats.h"

using namespace longreach;
using namespace longreach::tokenizer;

namespace {

// Of GPT-2, cl100k, o200k, Llama 3, Qwen 2, DeepSeek 3, and of steps that split off digits.
constexpr std::array expressions = {
    gpt2_pattern,
    R"('(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s)",
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
    R"(\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
    R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|)"
    R"(\s*[\r\n]+|\s+(?!\S)|\s+)",
    R"(\p{N}{1,3})",
    R"(\p{Nd}+|[a-c]{2,3}|\p{Zs}?\S)"};

Splitter splitter_of(const std::string& expression) {
    return Splitter({PatternSplit{Pattern(expression, "test")}});
}

// Where the words end.
std::vector<size_t> ends_of(Splitter& splitter, std::string_view text) {
    std::vector<size_t> ends;
    splitter.split(text, true, [&](std::string_view, std::span<const size_t> bounds) {
        ends.insert(ends.end(), bounds.begin() + 1, bounds.end());
    });
    return ends;
}

// An automaton has no form for what stands in front.
std::string for_pcre2(const std::string& expression) {
    return "(?=)(?:" + expression + ")";
}

}  // namespace

TEST_CASE("the expressions of known tokenizers are automata, others are left to PCRE2") {
    for (const std::string expression : expressions) {
        CAPTURE(expression);
        CHECK(Pattern(expression, "test").has_automaton());
        CHECK(!Pattern(for_pcre2(expression), "test").has_automaton());
    }
    // Forms without a place in a table; matches of nothing; a search that could read to the end at each place.
    for (const char* expression :
         {"(?<=a)b", "\\p{Han}+", "a.", "a+?", "(?:ab)+", "(?i:k)", "a++a", "[\\x41]", "\u00E9", "a*", "$",
          "a+b", "a|(?=b)", "(?i:\\p{Lu})", "a{1,200}"}) {
        CAPTURE(expression);
        CHECK(!Pattern(expression, "test").has_automaton());
    }
}

TEST_CASE("every character between others makes the words that PCRE2 makes") {
    constexpr std::array<std::array<std::string_view, 2>, 4> neighbours = {
        {{"a", "B"}, {" ", "'"}, {"7", "\n"}, {"'s", " "}}};
    std::string text;
    // All planes that hold characters, and some of each block of the others.
    for (uint32_t point = 1; point < 0x110000; point += point < 0x32400 ? 1 : 61) {
        if (point >= 0xD800 && point < 0xE000) continue;
        for (const auto& [before, after] : neighbours) {
            text += before;
            append_utf8(text, point);
            text += after;
        }
    }
    for (const std::string expression : expressions) {
        CAPTURE(expression);
        Splitter ours = splitter_of(expression), theirs = splitter_of(for_pcre2(expression));
        CHECK(ends_of(ours, text) == ends_of(theirs, text));
    }
}

TEST_CASE("texts drawn at random are split as PCRE2 splits them, wherever they end") {
    constexpr std::array<std::string_view, 30> pieces = {
        "a",       "b",      "Z",          "S",      "s",      "'",      "'s",     "'LL",
        "'\u017F", "1",      "23",         " ",      "  ",     "\n",     "\r\n",   "\t",
        "/",       "-",      "\u00E9",     "\u00C9", "\u0301", "\u02B0", "\u4E2D", "\u00BD",
        "\u00A0",  "\u2028", "\U0001F600", "\u01C5", "!",      "\x1C"};
    const Rng rng(7, Purpose::test);
    uint64_t draw = 0;
    for (const std::string expression : expressions) {
        CAPTURE(expression);
        Splitter ours = splitter_of(expression), theirs = splitter_of(for_pcre2(expression));
        for (int round = 0; round < 3000; ++round) {
            std::string text;
            for (uint64_t left = rng.below(draw++, 30); left > 0; --left)
                text += pieces[rng.below(draw++, pieces.size())];
            REQUIRE(ends_of(ours, text) == ends_of(theirs, text));
        }
    }
}
