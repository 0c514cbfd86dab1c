// Tokenizer files small enough to be written by hand.
#pragma once

#include <string>
#include <vector>

#include "base/json.h"
#include "tokenizer/byte_text.h"
#include "tokenizer/formats.h"
#include "tokenizer/tokenizer.h"

namespace longreach::test {

// Byte-level: the bytes are tokens 0 to 255 in rising order, then one token per merge.
inline json::Value tiny_byte_level(const std::vector<std::pair<std::string, std::string>>& merges) {
    json::Value vocab = json::Value::object();
    json::Value list = json::Value::array();
    int64_t id = 0;
    for (; id < 256; ++id) vocab.set(tokenizer::to_letters(std::string(1, static_cast<char>(id))), id);
    for (const auto& [left, right] : merges) {
        const std::string a = tokenizer::to_letters(left), b = tokenizer::to_letters(right);
        vocab.set(a + b, id++);
        list.push(json::Value::array({a, b}));
    }
    json::Value file;
    file.set("version", "1.0");
    file.set("added_tokens", json::Value::array());
    file.set("pre_tokenizer", json::Value::object({{"type", "ByteLevel"}, {"add_prefix_space", false}}));
    file.set("decoder", json::Value::object({{"type", "ByteLevel"}}));
    file.set("model", json::Value::object({{"type", "BPE"}, {"vocab", vocab}, {"merges", list}}));
    return file;
}

inline json::Value added_token(int64_t id, const std::string& content, bool special) {
    return json::Value::object({{"id", id}, {"content", content}, {"special", special}});
}

inline tokenizer::Definition parse_json(const json::Value& file) {
    return tokenizer::parse_tokenizer_json(json::write(file, json::Style::pretty), "t.json");
}

inline std::shared_ptr<const tokenizer::Tokenizer> make(const json::Value& file) {
    return std::make_shared<const tokenizer::Tokenizer>(parse_json(file));
}

inline std::vector<int32_t> ids_of(const std::shared_ptr<const tokenizer::Tokenizer>& tokenizer,
                                   std::string_view text,
                                   tokenizer::SpecialTokens special = tokenizer::SpecialTokens::as_text) {
    std::vector<int32_t> ids;
    tokenizer::Encoder(tokenizer).encode(text, special, ids);
    return ids;
}

}  // namespace longreach::test
