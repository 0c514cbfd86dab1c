// The tokenizer inside a GGUF file is that of the tokenizer.json it was made from.
#include <doctest/doctest.h>

#include "data/tokenizer_file.h"
#include "exchange/gguf_writer.h"
#include "exchange/import.h"
#include "exchange/small_forms.h"
#include "tokenizer/tiny_vocabulary.h"
#include "train/run_directory.h"

using namespace longreach;
using namespace longreach::test;

namespace {

const io::Notice quiet = [](const std::string&) {};

// tiny_byte_level({{"a", "b"}}) with a token of control and one of the user's.
struct Vocabulary {
    std::vector<std::string> tokens;
    std::vector<int32_t> types;
    Vocabulary() {
        for (int byte = 0; byte < 256; ++byte)
            tokens.push_back(tokenizer::to_letters(std::string(1, static_cast<char>(byte))));
        tokens.insert(tokens.end(), {"ab", "<|endoftext|>", "<tool>", "[PAD1]"});
        types.assign(257, 1);
        types.insert(types.end(), {3, 4, 5});
    }
};

GgufWriter model_with(const std::string& model, const std::string& pre, const Vocabulary& vocabulary = {}) {
    GgufWriter file = small_gguf();
    file.text("tokenizer.ggml.model", model)
        .text("tokenizer.ggml.pre", pre)
        .texts("tokenizer.ggml.tokens", vocabulary.tokens)
        .numbers("tokenizer.ggml.token_type", 5, vocabulary.types)
        .texts("tokenizer.ggml.merges", {"a b"});
    const auto vocab = static_cast<int64_t>(vocabulary.tokens.size());
    Shapes shapes{{"token_embd.weight", {vocab, 8}},  {"output_norm.weight", {8}},
                  {"blk.0.attn_norm.weight", {8}},    {"blk.0.ffn_norm.weight", {8}},
                  {"blk.0.attn_q.weight", {8, 8}},    {"blk.0.attn_k.weight", {4, 8}},
                  {"blk.0.attn_v.weight", {4, 8}},    {"blk.0.attn_output.weight", {8, 8}},
                  {"blk.0.ffn_gate.weight", {12, 8}}, {"blk.0.ffn_up.weight", {12, 8}},
                  {"blk.0.ffn_down.weight", {8, 12}}};
    for (const auto& [name, shape] : shapes)
        file.tensor(
            name, shape,
            std::vector<float>(static_cast<size_t>(shape[0] * (shape.size() > 1 ? shape[1] : 1)), 0.25f));
    return file;
}

exchange::ImportResult import_file(const TempDir& dir, GgufWriter file) {
    put(dir / "m.gguf", file.bytes());
    return exchange::import_model({.directory = dir / "m.gguf", .output = dir / "run", .replace = true},
                                  quiet);
}

std::string note_of(GgufWriter file) {
    const TempDir dir;
    const exchange::ImportResult result = import_file(dir, std::move(file));
    CHECK(result.tokenizer.empty());
    CHECK(io::kind_of(dir / "run/tokenizer.json", io::Links::refuse) == io::PathKind::missing);
    REQUIRE(result.notes.size() == 1);
    return result.notes[0].substr(std::string("the tokenizer cannot be read here: ").size());
}

}  // namespace

TEST_CASE("a tokenizer in a GGUF file is that of a tokenizer.json, by the name of how it splits words") {
    const std::string words =
        R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
    for (const std::string pre : {"gpt-2", "smollm", "starcoder", "llama-bpe", "qwen2"}) {
        CAPTURE(pre);
        json::Value expected = tiny_byte_level({{"a", "b"}});
        const bool listed = pre != "llama-bpe" && pre != "qwen2";
        if (listed) expected.find("model")->find("vocab")->set("<|endoftext|>", 257);
        expected.set("added_tokens", json::Value::array({added_token(257, "<|endoftext|>", true),
                                                         added_token(258, "<tool>", false)}));
        for (json::Value& token : expected.find("added_tokens")->as_array()) token.set("normalized", false);
        const json::Value bytes = *expected.find("pre_tokenizer");
        const auto sequence = [&](json::Value first, bool regex) {
            json::Value last = bytes;
            last.set("use_regex", regex);
            expected.set(
                "pre_tokenizer",
                json::Value::object(
                    {{"type", "Sequence"}, {"pretokenizers", json::Value::array({std::move(first), last})}}));
        };
        if (pre == "smollm" || pre == "starcoder")
            sequence(json::Value::object({{"type", "Digits"}, {"individual_digits", true}}), true);
        if (!listed) {
            std::string regex = words;
            if (pre == "qwen2") regex.replace(regex.find("{1,3}"), 5, "");
            sequence(json::Value::object({{"type", "Split"},
                                          {"pattern", json::Value::object({{"Regex", regex}})},
                                          {"behavior", "Isolated"},
                                          {"invert", false}}),
                     false);
        }
        if (pre == "llama-bpe") expected.find("model")->set("ignore_merges", true);
        if (pre == "qwen2") expected.set("normalizer", json::Value::object({{"type", "NFC"}}));

        const TempDir dir;
        const exchange::ImportResult result = import_file(dir, model_with("gpt2", pre));
        CHECK(result.notes.empty());
        const uint64_t fingerprint = make(expected)->fingerprint();
        CHECK(contains(result.tokenizer, "259 tokens"));
        CHECK(data::load_tokenizer(dir / "run")->fingerprint() == fingerprint);
        CHECK(train::tokenizer_of(train::find_checkpoint(dir / "run", quiet)) == fingerprint);
    }
}

TEST_CASE("the tokenizer.json of a GGUF file has every member that the package tokenizers asks for") {
    const TempDir dir;
    import_file(dir, model_with("gpt2", "smollm"));
    const json::Value file = json::parse(get(dir / "run/tokenizer.json"), "t");
    for (const json::Value& token : file.find("added_tokens")->as_array())
        for (const char* key : {"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"})
            CHECK_MESSAGE(token.find(key) != nullptr, key);
    CHECK(file.find("decoder")->find("trim_offsets") != nullptr);
}

TEST_CASE(
    "the tokens that begin and end texts and the chat template of a GGUF file stay with its tokenizer") {
    const TempDir dir;
    GgufWriter file = model_with("gpt2", "smollm");
    file.u32("tokenizer.ggml.bos_token_id", 257)
        .u32("tokenizer.ggml.eos_token_id", 256)
        .text("tokenizer.chat_template", "{{ x }}");
    CHECK(import_file(dir, file).notes.empty());
    const json::Value ids = json::parse(get(dir / "run/generation_config.json"), "g"),
                      names = json::parse(get(dir / "run/tokenizer_config.json"), "t");
    CHECK(ids.find("bos_token_id")->as_int64() == 257);
    CHECK(ids.find("eos_token_id")->as_int64() == 256);
    CHECK(ids.find("pad_token_id") == nullptr);
    CHECK(names.find("bos_token")->as_string() == "<|endoftext|>");
    CHECK(names.find("eos_token")->as_string() == "ab");
    CHECK(get(dir / "run/chat_template.jinja") == "{{ x }}");
}

TEST_CASE("a tokenizer of a GGUF file that cannot be read here is noted, and the weights are imported") {
    CHECK(note_of(model_with("llama", "default")) ==
          "tokenizer.ggml.model: llama is not read; only gpt2, byte-level BPE, is");
    CHECK(
        note_of(model_with("gpt2", "chatglm-bpe")) ==
        "tokenizer.ggml.pre: chatglm-bpe is not known; known are gpt-2, smollm, starcoder, llama-bpe, qwen2");
    CHECK(note_of(model_with("gpt2", "smollm").u32("tokenizer.ggml.eos_token_id", 999)) ==
          "tokenizer.ggml.eos_token_id: is not a token");
    Vocabulary broken;
    broken.tokens[3] = "\xff";
    CHECK(note_of(model_with("gpt2", "smollm", broken)) == "tokenizer.ggml.tokens: \"\\xff\" is not UTF-8");
    broken = {};
    broken.tokens[3] = broken.tokens[4];
    CHECK(contains(note_of(model_with("gpt2", "smollm", broken)), broken.tokens[4]));
    broken = {};
    broken.types.pop_back();
    CHECK(note_of(model_with("gpt2", "smollm", broken)) ==
          "tokenizer.ggml.token_type: has 259 values for 260 tokens");
}
