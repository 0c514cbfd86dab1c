// Long texts in parts: the ids of the whole, at every place where a cut is allowed.
#include "text/text_cutter.h"

#include <doctest/doctest.h>

#include "base/rng.h"
#include "base/text.h"
#include "data/shard_fixtures.h"
#include "data/token_stream.h"
#include "text/tokenize.h"
#include "tokenizer/tiny_vocabulary.h"

using namespace longreach;
using namespace longreach::test;
using json::Value;
using text::Cuts;

namespace {

constexpr const char* pieces[] = {"a",        "b",      "S",       "'s",     "'",      "'LL",    "1",
                                  "2",        "12",     ".",       "!",      " ",      " ",      " ",
                                  "  ",       "\n",     "\n",      "\r",     "\t",     "/",      "\u00E9",
                                  "\u0301",   "\u4E2D", "\u304C",  "\u017F", "\u00A0", "\u3000", "\xC3",
                                  "\xE4\xB8", "\u2581", "<|end|>", "\u0439", "\u05D0"};

Value split(const char* regex, const char* behaviour, bool invert) {
    return Value::object({{"type", "Split"},
                          {"pattern", Value::object({{"Regex", regex}})},
                          {"behavior", behaviour},
                          {"invert", invert}});
}

Value sequence(std::vector<Value> steps) {
    Value list = Value::array();
    for (Value& step : steps) list.push(std::move(step));
    return Value::object({{"type", "Sequence"}, {"pretokenizers", std::move(list)}});
}

const Value plain_bytes =
    Value::object({{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}});

// Byte-level with merges of any two bytes of the pieces and of many longer tokens: any other words give other ids.
Value file_with(Value pre_tokenizer) {
    std::string bytes;
    for (const std::string_view piece : pieces)
        for (const char c : piece)
            if (bytes.find(c) == std::string::npos) bytes += c;
    std::vector<std::pair<std::string, std::string>> merges;
    for (const char a : bytes)
        for (const char b : bytes) merges.emplace_back(std::string(1, a), std::string(1, b));
    for (const char c : bytes)
        for (const char* pair : {" a", "a ", "12", " 1", "\n\n", " \n", "  ", ".\n", "a\n", "ab", "'s"})
            merges.emplace_back(pair, std::string(1, c));
    Value file = tiny_byte_level(merges);
    file.find("added_tokens")->push(added_token(100000, "<|end|>", true));
    if (!pre_tokenizer.is_null()) file.set("pre_tokenizer", std::move(pre_tokenizer));
    return file;
}

// Of characters, with Metaspace.
Value metaspace_file(const char* scheme, bool splits) {
    Value vocab = Value::object({{"<unk>", 0}}), merges = Value::array();
    const std::vector<std::string> letters{"a", "b", "S", "'", "s", "1", "2", ".", "\n", "\u2581"};
    int64_t id = 1;
    for (const std::string& letter : letters) vocab.set(letter, id++);
    for (const std::string& a : letters)
        for (const std::string& b : letters) {
            vocab.set(a + b, id++);
            merges.push(Value::array({a, b}));
        }
    return Value::object(
        {{"version", "1.0"},
         {"added_tokens", Value::array()},
         {"pre_tokenizer", Value::object({{"type", "Metaspace"},
                                          {"replacement", "\u2581"},
                                          {"prepend_scheme", scheme},
                                          {"split", splits}})},
         {"model",
          Value::object({{"type", "BPE"}, {"unk_token", "<unk>"}, {"vocab", vocab}, {"merges", merges}})}});
}

constexpr const char* cl100k =
    R"('(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s)";
constexpr const char* o200k =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
    R"(\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* llama3 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

// Compares the ids of many random texts, cut at each allowed place, with those of the whole. Returns the cuts.
int compare(const std::shared_ptr<const tokenizer::Tokenizer>& tokenizer, int texts = 150) {
    const Cuts cuts = text::cuts_of(tokenizer->definition());
    const Rng rng(1, Purpose::test);
    uint64_t draws = 0;
    int count = 0;
    tokenizer::Encoder encoder(tokenizer);
    const auto add = [&](std::string_view text, std::vector<int32_t>& ids) {
        encoder.encode(text, tokenizer::SpecialTokens::as_text, ids);
    };
    for (int i = 0; i < texts; ++i) {
        std::string text;
        for (int k = 0; k < 40; ++k) text += pieces[rng.below(draws++, std::size(pieces))];
        std::vector<int32_t> whole;
        add(text, whole);
        for (size_t at = 0; at <= text.size(); ++at) {
            if (!text::may_cut(cuts, text, at)) continue;
            std::vector<int32_t> parts;
            add(std::string_view(text).substr(0, at), parts);
            add(std::string_view(text).substr(at), parts);
            CHECK_MESSAGE(parts == whole, "cut at ", at, " of ", longreach::quoted(text, 200));
            ++count;
        }
    }
    return count;
}

}  // namespace

TEST_CASE("a text that is cut where it may be gives the ids of the whole, for each sort of tokenizer") {
    const Value digits = Value::object({{"type", "Digits"}, {"individual_digits", true}});
    const Value byte_level = Value::object({{"type", "ByteLevel"}, {"add_prefix_space", false}});
    const Value prefixed = Value::object({{"type", "ByteLevel"}, {"add_prefix_space", true}});
    for (const Value& step :
         {byte_level, prefixed, sequence({split(cl100k, "Isolated", false), plain_bytes}),
          sequence({split(o200k, "Removed", true), plain_bytes}),
          sequence({split(llama3, "Isolated", false), plain_bytes}), sequence({digits, byte_level}),
          sequence(
              {split(R"(\p{N}{1,3})", "Isolated", false), split(llama3, "Isolated", false), prefixed})}) {
        CAPTURE(json::write(step, json::Style::compact));
        CHECK(compare(make(file_with(step))) > 200);
        for (const char* form : {"NFC", "NFD", "NFKC", "NFKD"}) {
            CAPTURE(form);
            Value file = file_with(step);
            file.set("normalizer", Value::object({{"type", form}}));
            CHECK(compare(make(file), 40) > 50);
        }
    }
    for (const char* scheme : {"always", "first", "never"})
        CHECK(compare(make(metaspace_file(scheme, true))) > 200);
}

TEST_CASE("where no cut is proven to keep the ids, a text is not cut") {
    const auto cuts = [](const Value& file) { return text::cuts_of(make(file)->definition()); };
    CHECK(cuts(file_with({})) == Cuts::before_spaces_and_newlines);
    CHECK(cuts(file_with(plain_bytes)) == Cuts::nowhere);
    CHECK(cuts(file_with(sequence({split(R"(\p{N})", "Isolated", false), plain_bytes}))) == Cuts::nowhere);
    CHECK(cuts(file_with(sequence({split(R"(\p{L}+|\s+|(?<=a) b)", "Isolated", false), plain_bytes}))) ==
          Cuts::nowhere);
    CHECK(cuts(file_with(sequence({split(llama3, "MergedWithNext", false), plain_bytes}))) == Cuts::nowhere);
    CHECK(cuts(file_with(sequence({split(llama3, "Removed", false), plain_bytes}))) == Cuts::nowhere);
    CHECK(cuts(metaspace_file("first", true)) == Cuts::before_spaces);
    CHECK(cuts(metaspace_file("first", false)) == Cuts::nowhere);
    Value file = file_with({});
    file.set("normalizer", Value::object({{"type", "Prepend"}, {"prepend", "_"}}));
    CHECK(cuts(file) == Cuts::nowhere);
    // Added tokens that reach across, as they are or in a normal form, and some that do not.
    for (const auto& [content, expected] : {std::pair{"a b", Cuts::nowhere},
                                            {"x\u4E2D\n", Cuts::nowhere},
                                            {"\uFF21\u00A0b", Cuts::nowhere},
                                            {"  ", Cuts::before_spaces_and_newlines},
                                            {". b", Cuts::before_spaces_and_newlines}}) {
        CAPTURE(content);
        file = file_with({});
        file.set("normalizer", Value::object({{"type", "NFKC"}}));
        Value token = added_token(100001, content, false);
        token.set("normalized", true);
        file.find("added_tokens")->push(token);
        CHECK(cuts(file) == expected);
        if (expected != Cuts::nowhere) compare(make(file), 40);
    }
    for (const char* flag : {"single_word", "lstrip", "rstrip"}) {
        file = file_with({});
        Value token = added_token(100001, "ab", false);
        token.set(flag, true);
        file.find("added_tokens")->push(token);
        CHECK(cuts(file) == Cuts::nowhere);
    }
}

TEST_CASE("a document of several parts gives the shards of the whole, with any number of threads") {
    const TempDir dir;
    put(dir / "tokenizer.json", json::write(file_with({}), json::Style::compact));
    const auto tokenizer = data::load_tokenizer(dir / "tokenizer.json");
    const Rng rng(2, Purpose::test);
    std::string text;
    for (uint64_t k = 0; text.size() < (size_t{3} << 19); ++k)
        text += pieces[rng.below(k, std::size(pieces))];
    put(dir / "a.txt", text);
    put(dir / "b.txt", std::string(size_t{5} << 18, 'a'));  // without a place to cut
    Tokens expected;
    for (const char* name : {"a.txt", "b.txt"}) {
        expected.push_back(100000);
        const Tokens ids = ids_of(tokenizer, get(dir / name));
        expected.insert(expected.end(), ids.begin(), ids.end());
    }
    for (const int threads : {1, 3}) {
        const text::TokenizeResult result =
            text::tokenize({.source = {.inputs = {dir / "a.txt", dir / "b.txt"}},
                            .output = dir / fmt::format("out{}", threads),
                            .tokenizer = {.path = dir / "tokenizer.json", .boundary = "<|end|>"},
                            .threads = threads});
        const data::TokenStream stream = data::TokenStream::open(result.train.shards, {});
        Tokens tokens(stream.tokens());
        stream.read(0, static_cast<int64_t>(tokens.size()), tokens.data());
        CHECK(tokens == expected);
        CHECK(result.train.documents == 2);
        CHECK(result.train.source_bytes == text.size() + (size_t{5} << 18));
        CHECK(result.longest_part == size_t{5} << 18);
    }
}
