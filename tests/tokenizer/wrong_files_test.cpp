// Each mistake in a tokenizer file has its own message.
#include <doctest/doctest.h>

#include "io/temp_dir.h"
#include "tokenizer/tiny_vocabulary.h"

using namespace longreach;
using namespace longreach::test;
using namespace longreach::tokenizer;

namespace {

json::Value from_text(std::string_view text) {
    return json::parse(text, "test");
}

// The message for a good file of which one part is replaced by `text`.
std::string error_with(const std::string& part, std::string_view text) {
    json::Value file = tiny_byte_level({{"a", "b"}});
    file.set(part, from_text(text));
    return error_of([&] { make(file); });
}

std::string error_with_model(const std::string& key, std::string_view text) {
    json::Value file = tiny_byte_level({{"a", "b"}});
    file.find("model")->set(key, from_text(text));
    return error_of([&] { make(file); });
}

}  // namespace

TEST_CASE("what tokenizer.json asks for and is missing is named with its path") {
    CHECK(error_with("version", R"("2.0")") == R"(3: t.json: version: "2.0" is not supported)");
    CHECK(error_with("extra", "1") == R"(3: t.json: "extra" is not supported)");
    CHECK(error_with("pre_tokenizer", R"({"type": "Whitespace"})") ==
          R"(3: t.json: pre_tokenizer.type: "Whitespace" is not supported)");
    CHECK(error_with(
              "pre_tokenizer",
              R"({"type": "Sequence", "pretokenizers": [{"type": "Digits"}, {"type": "Punctuation"}]})") ==
          R"(3: t.json: pre_tokenizer.pretokenizers[1].type: "Punctuation" is not supported)");
    CHECK(
        error_with("pre_tokenizer",
                   R"({"type": "Sequence", "pretokenizers": [{"type": "ByteLevel"}, {"type": "Digits"}]})") ==
        "3: t.json: pre_tokenizer.pretokenizers[1]: ByteLevel must be the last step");
    CHECK(
        error_with("pre_tokenizer",
                   R"({"type": "Split", "pattern": {"Regex": "(a"}, "behavior": "Isolated"})") ==
        R"(3: t.json: pre_tokenizer.pattern.Regex: the regular expression "(a" is malformed: missing closing parenthesis)");
    CHECK(error_with("pre_tokenizer",
                     R"({"type": "Split", "pattern": {"Regex": "\\w+"}, "behavior": "Isolated"})") ==
          R"(3: t.json: pre_tokenizer.pattern.Regex: \w in the regular expression "\\w+" is not supported)");
    CHECK(error_with("pre_tokenizer",
                     R"({"type": "Split", "pattern": {"String": "a"}, "behavior": "Other"})") ==
          R"(3: t.json: pre_tokenizer.behavior: "Other" is not supported)");
    CHECK(error_with("normalizer", R"({"type": "Lowercase"})") ==
          R"(3: t.json: normalizer.type: "Lowercase" is not supported)");
    CHECK(error_with("normalizer", R"({"type": "NFC", "fast": true})") ==
          R"(3: t.json: normalizer: "fast" is not supported)");
    CHECK(error_with("decoder", R"({"type": "WordPiece"})") ==
          R"(3: t.json: decoder.type: "WordPiece" is not supported)");
    CHECK(error_with("post_processor", R"({"type": "Odd"})") ==
          R"(3: t.json: post_processor.type: "Odd" is not supported)");
    CHECK(error_with_model("type", R"("Unigram")") == R"(3: t.json: model.type: "Unigram" is not supported)");
    CHECK(error_with_model("dropout", "0.1") == "3: t.json: model.dropout: 0.1 is not supported");
    CHECK(error_with_model("dropout", "null") == "no error");
    CHECK(error_with_model("end_of_word_suffix", R"("</w>")") ==
          R"(3: t.json: model.end_of_word_suffix: "</w>" is not supported)");
    CHECK(error_with_model("continuing_subword_prefix", R"("")") == "no error");
    CHECK(error_with_model("byte_fallback", "true") ==
          "3: t.json: model.byte_fallback: true is not supported with a ByteLevel pre-tokenizer");
}

TEST_CASE("a token that is not spelled in the alphabet is never what a word becomes") {
    json::Value file = tiny_byte_level({});
    file.find("model")->find("vocab")->set(" ", 256).set("\u4E2D", 257);
    file.find("model")->set("ignore_merges", true);
    CHECK(ids_of(make(file), " ") == std::vector<int32_t>{' '});
    CHECK(ids_of(make(file), "\u4E2D").size() == 3);
    CHECK(make(file)->decode(std::vector<int32_t>{257}) == "\u4E2D");
}

TEST_CASE("malformed parts of tokenizer.json are named with their path") {
    CHECK(error_with("model", "null") == "3: t.json: model is missing");
    CHECK(error_with("model", "[]") == "3: t.json: model: not an object");
    CHECK(error_with_model("merges", "1") == "3: t.json: model.merges: not an array");
    CHECK(error_with_model("merges", R"(["a b c"])") ==
          R"(3: t.json: model.merges[0]: "a b c" is not two tokens with a space between them)");
    CHECK(error_with_model("merges", R"([["a", "b"], ["a"]])") ==
          R"(3: t.json: model.merges[1]: neither "left right" nor ["left", "right"])");
    CHECK(error_with_model("merges", R"(["b a"])") ==
          R"(3: t.json: model.merges[0]: "ba" is not in the vocabulary)");
    CHECK(error_with_model("vocab", R"({"a": 0, "b": 0})") ==
          R"(3: t.json: model.vocab["b"]: another token has the id 0)");
    CHECK(error_with_model("vocab", R"({"a": -1})") ==
          R"(3: t.json: model.vocab["a"]: not an id from 0 to 2097151)");
    CHECK(error_with_model("unk_token", R"("<unk>")") ==
          R"(3: t.json: model.unk_token: "<unk>" is not in the vocabulary)");
    CHECK(error_with("added_tokens", R"([{"id": 1.5, "content": "x"}])") ==
          "3: t.json: added_tokens[0].id: not an id from 0 to 2097151");
    CHECK(error_with("added_tokens", R"([{"id": 300}])") == "3: t.json: added_tokens[0]: content is missing");
    CHECK(error_with("added_tokens", R"([{"id": 300, "content": "x", "special": 1}])") ==
          "3: t.json: added_tokens[0].special: neither true nor false");
}

TEST_CASE("a byte without a token and without an unknown token is an error, not a loss") {
    json::Value file = tiny_byte_level({});
    file.find("model")->set("vocab", from_text(R"({"a": 0})"));
    CHECK(ids_of(make(file), "aa").size() == 2);
    CHECK(error_of([&] { ids_of(make(file), "ab"); }) ==
          R"(3: t.json: the vocabulary has no token for "b" and no unknown token)");
}

TEST_CASE("malformed rank files and merges.txt are named with their line") {
    const auto rank_error = [](std::string_view text, const std::string& pattern = "gpt2") {
        return error_of([&] { parse_rank_file(text, "r.tiktoken", pattern); });
    };
    CHECK(rank_error("YQ== 0\nYQ==\n") == R"(3: r.tiktoken line 2: no "base64 rank")");
    CHECK(rank_error("?? 0\n") == R"(3: r.tiktoken line 1: "??" is not base64)");
    CHECK(rank_error("YQ== x\n") == R"(3: r.tiktoken line 1: "x" is not a rank from 0 to 2097151)");
    CHECK(rank_error("YQ== 0\nYg== 0\n") == "3: r.tiktoken line 2: another token has the rank 0");
    CHECK(rank_error("YQ== 0\nYg== 1029\n") ==
          "3: r.tiktoken line 2: rank 1029 in a file that has too few lines for it");
    CHECK(rank_error("YQ== 0\nYQ== 1\n") == "3: r.tiktoken: rank 1 repeats a token");
    CHECK(rank_error("YQ== 0\n") == "3: r.tiktoken: no token for the single byte 0");
    CHECK(rank_error("YQ== 0\n", "") == "2: r.tiktoken states no regular expression to split words with");
    const auto merge_error = [](std::string_view merges) {
        return error_of([&] { parse_vocab_and_merges(R"({"a": 0, "b": 1})", "v.json", merges, "m.txt"); });
    };
    CHECK(merge_error("#version: 0.2\na\n") ==
          R"(3: m.txt line 2: "a" is not two tokens with a space between them)");
    CHECK(merge_error("a b\n") == R"(3: m.txt line 1: "ab" is not in the vocabulary)");
}
