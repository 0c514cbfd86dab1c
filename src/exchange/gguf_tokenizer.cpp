// The tokenizer inside a GGUF file as the tokenizer.json that a model in Hugging Face's layout would have.
#include "base/error.h"
#include "base/text.h"
#include "exchange/gguf_model.h"
#include "tokenizer/formats.h"

namespace longreach::exchange {

namespace {

// Words of Llama 3; digits: how many make one word.
std::string words_by_case(const char* digits) {
    return fmt::format(
        R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
        digits);
}

json::Value byte_level(bool splits) {
    return json::Value::object(
        {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", splits}});
}

json::Value after(json::Value first, json::Value second) {
    return json::Value::object(
        {{"type", "Sequence"}, {"pretokenizers", json::Value::array({std::move(first), std::move(second)})}});
}

json::Value split(const std::string& regex) {
    return json::Value::object({{"type", "Split"},
                                {"pattern", json::Value::object({{"Regex", regex}})},
                                {"behavior", "Isolated"},
                                {"invert", false}});
}

json::Value digits_first() {
    return after(json::Value::object({{"type", "Digits"}, {"individual_digits", true}}), byte_level(true));
}

// How the tokenizers that tokenizer.ggml.pre names split a text. `listed`: their special tokens are in the vocabulary, too.
struct Splitting {
    const char* pre;
    json::Value (*pre_tokenizer)();
    bool nfc = false, ignore_merges = false, listed = false;
};
constexpr Splitting splittings[] = {
    {.pre = "gpt-2", .pre_tokenizer = [] { return byte_level(true); }, .listed = true},
    {.pre = "smollm", .pre_tokenizer = digits_first, .listed = true},
    {.pre = "starcoder", .pre_tokenizer = digits_first, .listed = true},
    {.pre = "llama-bpe",
     .pre_tokenizer = [] { return after(split(words_by_case(R"(\p{N}{1,3})")), byte_level(false)); },
     .ignore_merges = true},
    {.pre = "qwen2",
     .pre_tokenizer = [] { return after(split(words_by_case(R"(\p{N})")), byte_level(false)); },
     .nfc = true},
};

// Values of tokenizer.ggml.token_type.
constexpr double control = 3, user_defined = 4, unused = 5;

[[noreturn]] void refuse(const char* key, const std::string& why) {
    fail(ExitCode::data, "tokenizer.ggml.{}: {}", key, why);
}

class TokenizerReader {
  public:
    explicit TokenizerReader(const GgufFile& file) : file_(file) {}

    const Splitting& splitting() const {
        const std::string model = text("model"), pre = text("pre");
        if (model != "gpt2")
            refuse("model", fmt::format("{} is not read; only gpt2, byte-level BPE, is", shown(model)));
        std::vector<std::string> known;
        for (const Splitting& row : splittings) {
            known.emplace_back(row.pre);
            if (pre == row.pre) return row;
        }
        refuse("pre", fmt::format("{} is not known; known are {}", shown(pre), join(known, ", ")));
    }

    json::Value tokenizer_json(const Splitting& row) const {
        const std::vector<std::string>& tokens = texts("tokens");
        const std::vector<double> types = types_of(tokens.size());
        json::Object vocab;
        json::Value added = json::Value::array(), merges = json::Value::array();
        for (size_t i = 0; i < tokens.size(); ++i) {
            if (types[i] == unused) continue;
            const auto id = static_cast<int64_t>(i);
            const bool special = types[i] == control, own = special || types[i] == user_defined;
            if (own)
                added.push(json::Value::object({{"id", id},
                                                {"content", tokens[i]},
                                                {"single_word", false},
                                                {"lstrip", false},
                                                {"rstrip", false},
                                                {"normalized", false},
                                                {"special", special}}));
            if (!own || (special && row.listed)) vocab.push_back({tokens[i], id});
        }
        for (const std::string& merge : texts("merges")) merges.push(merge);
        return json::Value::object(
            {{"version", "1.0"},
             {"added_tokens", std::move(added)},
             {"normalizer", row.nfc ? json::Value::object({{"type", "NFC"}}) : json::Value()},
             {"pre_tokenizer", row.pre_tokenizer()},
             {"decoder", byte_level(true)},
             {"model", json::Value::object({{"type", "BPE"},
                                            {"ignore_merges", row.ignore_merges},
                                            {"vocab", std::move(vocab)},
                                            {"merges", std::move(merges)}})}});
    }

    // generation_config.json and tokenizer_config.json: the tokens that begin, end and fill texts.
    std::pair<json::Value, json::Value> usage() const {
        json::Value ids = json::Value::object(),
                    names = json::Value::object({{"tokenizer_class", "PreTrainedTokenizerFast"},
                                                 {"clean_up_tokenization_spaces", false}});
        const std::vector<std::string>& tokens = texts("tokens");
        for (const auto& [key, name] : {std::pair{"bos_token_id", "bos_token"},
                                        {"eos_token_id", "eos_token"},
                                        {"padding_token_id", "pad_token"}}) {
            const GgufValue* value = file_.find(fmt::format("tokenizer.ggml.{}", key));
            if (value == nullptr) continue;
            const std::optional<int64_t> id = value->scalar.to_int64();
            if (!id || *id < 0 || static_cast<size_t>(*id) >= tokens.size()) refuse(key, "is not a token");
            ids.set(fmt::format("{}_id", name), *id);
            names.set(name, tokens[static_cast<size_t>(*id)]);
        }
        return {ids, names};
    }

    std::string chat_template() const {
        const GgufValue* value = file_.find("tokenizer.chat_template");
        const std::string* text = value == nullptr ? nullptr : value->scalar.to_string();
        return text == nullptr ? "" : *text;
    }

  private:
    std::string text(const char* key) const {
        const GgufValue* value = file_.find(fmt::format("tokenizer.ggml.{}", key));
        if (value == nullptr || !value->scalar.is_string()) refuse(key, "is missing");
        return value->scalar.as_string();
    }

    // JSON holds no other bytes.
    const std::vector<std::string>& texts(const char* key) const {
        const GgufValue* value = file_.find(fmt::format("tokenizer.ggml.{}", key));
        if (value == nullptr || value->texts.empty()) refuse(key, "is missing");
        for (const std::string& text : value->texts)
            if (!is_utf8(text)) refuse(key, fmt::format("{} is not UTF-8", quoted(text)));
        return value->texts;
    }

    std::vector<double> types_of(size_t tokens) const {
        const GgufValue* value = file_.find("tokenizer.ggml.token_type");
        if (value == nullptr) return std::vector<double>(tokens, 1);
        if (value->numbers.size() != tokens)
            refuse("token_type", fmt::format("has {} values for {} tokens", value->numbers.size(), tokens));
        return value->numbers;
    }

    const GgufFile& file_;
};

}  // namespace

TokenizerFiles gguf_tokenizer(const GgufFile& file) {
    TokenizerFiles files;
    if (file.find("tokenizer.ggml.model") == nullptr) return files;
    describe_tokenizer(files, [&] {
        const TokenizerReader reader(file);
        const std::string text = json::write(reader.tokenizer_json(reader.splitting()), json::Style::pretty);
        auto tokenizer = std::make_shared<const tokenizer::Tokenizer>(
            tokenizer::parse_tokenizer_json(text, "tokenizer.json of " + file.path()));
        const auto [ids, names] = reader.usage();
        files.made = {{"tokenizer.json", text},
                      {"generation_config.json", json::write(ids, json::Style::pretty)},
                      {"tokenizer_config.json", json::write(names, json::Style::pretty)}};
        if (const std::string chat = reader.chat_template(); !chat.empty())
            files.made.emplace_back("chat_template.jinja", chat);
        return tokenizer;
    });
    return files;
}

}  // namespace longreach::exchange
