#include "tokenizer/tokenizer.h"

#include <doctest/doctest.h>

#include <chrono>

#include "io/temp_dir.h"
#include "tokenizer/tiny_vocabulary.h"

using namespace longreach;
using namespace longreach::test;
using namespace longreach::tokenizer;

namespace {

using Ids = std::vector<int32_t>;

}  // namespace

TEST_CASE("letters stand for bytes as in GPT-2, and back") {
    CHECK(to_letters("a b\n") == "a\u0120b\u010A");
    CHECK(to_letters("\xAD") == "\u0143");
    std::string all;
    for (int byte = 0; byte < 256; ++byte) all += static_cast<char>(byte);
    CHECK(from_letters(to_letters(all)) == all);
    CHECK(!from_letters("a b"));
    CHECK(!from_letters("\u0144"));
}

TEST_CASE("base64 is read strictly") {
    CHECK(from_base64("SGVsbG8=") == "Hello");
    CHECK(from_base64("IQ==") == "!");
    for (const char* wrong : {"", "SGVsbG8", "SGV$", "====", "S=Vs"}) {
        CAPTURE(wrong);
        CHECK(!from_base64(wrong));
    }
}

TEST_CASE("pairs merge by rank, equal ranks from the left, in short words and in long ones") {
    const auto tokenizer = make(tiny_byte_level({{"b", "c"}, {"a", "b"}, {"a", "a"}, {"aa", "a"}}));
    CHECK(ids_of(tokenizer, "abc") == Ids{'a', 256});
    CHECK(ids_of(tokenizer, "abab") == Ids{257, 257});
    CHECK(ids_of(tokenizer, "aaaaa") == Ids{258, 259});
    // 300 symbols take the way of long words.
    Ids expected;
    for (int i = 0; i < 100; ++i) expected.insert(expected.end(), {'a', 256});
    std::string text;
    for (int i = 0; i < 100; ++i) text += "abc";
    CHECK(ids_of(tokenizer, text) == expected);
}

TEST_CASE("a word of a megabyte takes about the time of many short ones") {
    const auto tokenizer = make(tiny_byte_level({{"a", "a"}, {"aa", "aa"}, {"aaaa", "aaaa"}, {"b", "a"}}));
    const auto begin = std::chrono::steady_clock::now();
    CHECK(ids_of(tokenizer, std::string(1 << 20, 'a')).size() == (1 << 17));
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
    CHECK(seconds.count() < 20);  // quadratic: an hour
}

TEST_CASE("words are split as GPT-2 splits them") {
    // Merges that would join words show where words end.
    const auto tokenizer =
        make(tiny_byte_level({{" ", "b"}, {"a", " "}, {" ", " "}, {"'", "t"}, {"n", "'"}}));
    CHECK(ids_of(tokenizer, "a b") == Ids{'a', 256});
    CHECK(ids_of(tokenizer, "a   b") == Ids{'a', 258, 256});
    CHECK(ids_of(tokenizer, "n't") == Ids{'n', 259});
    CHECK(ids_of(tokenizer, "a\u180E b") == Ids{'a', 0xE1, 0xA0, 0x8E, 256});  // no space to Unicode
}

TEST_CASE("bytes that are not UTF-8 are words of their own, and every text decodes to itself") {
    const auto tokenizer = make(tiny_byte_level({{"\xFF", "\xFE"}, {"a", "\xFF"}, {"\xC3", "\xA9"}}));
    CHECK(ids_of(tokenizer, "a\xFF\xFE") == Ids{'a', 256});
    CHECK(ids_of(tokenizer, "\u00E9\xC3") == Ids{258, 0xC3});
    for (const std::string text :
         {"", "plain", "a\xFF\xFE z\n\n", "\xF0\x9F\x98", "\xF0\x9F\x98\x80 \u4E2D\xED\xA0\x80"})
        CHECK(tokenizer->decode(ids_of(tokenizer, text)) == text);
    CHECK(error_of([&] { tokenizer->decode(Ids{259}); }) == "3: token 259 is outside the vocabulary of 259");
}

TEST_CASE("a special token in a text is a token or text, as asked; others are always found") {
    json::Value file = tiny_byte_level({});
    file.find("added_tokens")->push(added_token(300, "<e>", true)).push(added_token(301, "xy", false));
    const auto tokenizer = make(file);
    CHECK(tokenizer->vocab_size() == 302);
    CHECK(ids_of(tokenizer, "a<e>xy") == Ids{'a', '<', 'e', '>', 301});
    CHECK(ids_of(tokenizer, "a<e>xy", SpecialTokens::as_tokens) == Ids{'a', 300, 301});
    CHECK(tokenizer->decode(Ids{'a', 300, 301}) == "axy");
    CHECK(tokenizer->decode(Ids{'a', 300, 301}, true) == "a<e>xy");
    CHECK(tokenizer->find_added("<e>") == 300);
    CHECK(!tokenizer->document_boundary());
}

TEST_CASE("NFC composes; characters without a token fall back to bytes or the unknown token") {
    json::Value vocab =
        json::Value::object({{"<unk>", 0}, {"\u2581", 1}, {"\u00E9", 2}, {"x", 3}, {"\u2581x", 4}});
    json::Value model =
        json::Value::object({{"type", "BPE"}, {"unk_token", "<unk>"}, {"fuse_unk", true}, {"vocab", vocab}});
    model.set("merges", json::Value::array({"\u2581 x"}));
    json::Value file = json::Value::object({{"model", model}});
    const json::Value prepend = json::Value::object({{"type", "Prepend"}, {"prepend", "\u2581"}});
    const json::Value replace = json::Value::object(
        {{"type", "Replace"}, {"pattern", json::Value::object({{"String", " "}})}, {"content", "\u2581"}});
    const json::Value nfc = json::Value::object({{"type", "NFC"}});
    file.set("normalizer",
             json::Value::object(
                 {{"type", "Sequence"}, {"normalizers", json::Value::array({nfc, prepend, replace})}}));
    CHECK(ids_of(make(file), "xe\u0301 x") == Ids{4, 2, 4});
    CHECK(ids_of(make(file), "xyzx") == Ids{4, 0, 3});

    json::Value& changed = *file.find("model");
    changed.set("byte_fallback", true);
    for (int byte = 0; byte < 256; ++byte)
        changed.find("vocab")->set(fmt::format("<0x{:02X}>", byte), 5 + byte);
    file.set("decoder", json::Value::object({{"type", "Metaspace"}, {"replacement", "\u2581"}}));
    CHECK(ids_of(make(file), "y") == Ids{1, 5 + 'y'});
    CHECK(make(file)->decode(ids_of(make(file), "x \u4E2D")) == "x <0xE4><0xB8><0xAD>");
    const json::Value steps =
        json::Value::array({*file.find("decoder"), json::Value::object({{"type", "ByteFallback"}})});
    file.set("decoder", json::Value::object({{"type", "Sequence"}, {"decoders", steps}}));
    CHECK(make(file)->decode(ids_of(make(file), "x \u4E2D")) == "x \u4E2D");
}

TEST_CASE("the fingerprint follows the meaning of a file and not its layout") {
    const json::Value file = tiny_byte_level({{"a", "b"}});
    const uint64_t fingerprint = make(file)->fingerprint();
    CHECK(Tokenizer(parse_tokenizer_json(json::write(file, json::Style::compact), "other.json"))
              .fingerprint() == fingerprint);
    CHECK(make(tiny_byte_level({{"a", "c"}}))->fingerprint() != fingerprint);
    json::Value spaced = file;
    spaced.find("pre_tokenizer")->set("add_prefix_space", true);
    CHECK(make(spaced)->fingerprint() != fingerprint);
    json::Value special = file;
    special.find("added_tokens")->push(added_token(257, "<s>", true));
    CHECK(make(special)->fingerprint() != fingerprint);
}

TEST_CASE("vocab.json and merges.txt are the same tokenizer as one file") {
    const json::Value file = tiny_byte_level({{"a", "b"}, {"ab", "c"}});
    const std::string vocab = json::write(*file.find("model")->find("vocab"), json::Style::compact);
    const Definition two =
        parse_vocab_and_merges(vocab, "vocab.json", "#version: 0.2\na b\nab c\n", "merges.txt");
    CHECK(Tokenizer(two).fingerprint() == make(file)->fingerprint());
}

TEST_CASE("ranks merge whatever two tokens make a token; a word that is a token needs no merges") {
    std::string ranks;
    constexpr std::string_view digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for (size_t byte = 0; byte < 256; ++byte)
        ranks += fmt::format("{}{}== {}\n", digits[byte >> 2], digits[(byte & 3) << 4], byte);
    ranks += "YWI= 256\nYWJj 257\nYmM= 258\neHl6 259\n";  // ab abc bc xyz
    const auto tokenizer = std::make_shared<const Tokenizer>(parse_rank_file(ranks, "some.tiktoken", "gpt2"));
    CHECK(ids_of(tokenizer, "abc") == Ids{257});
    CHECK(ids_of(tokenizer, "zbcabc") == Ids{'z', 258, 257});
    CHECK(ids_of(tokenizer, "xyz xyz") == Ids{259, ' ', 'x', 'y', 'z'});
    CHECK(tokenizer->document_boundary() == 260);
}
