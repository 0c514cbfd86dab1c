// tokenizer.json, and vocab.json with merges.txt.
#include "base/error.h"
#include "base/text.h"
#include "tokenizer/byte_text.h"
#include "tokenizer/json_steps.h"
#include "tokenizer/vocabulary.h"

namespace longreach::tokenizer {

namespace {

constexpr size_t largest_file = size_t{256} << 20;

json::Value parse_json(std::string_view text, const std::string& file) {
    json::ParseOptions options;
    options.max_bytes = largest_file;
    options.code = ExitCode::data;
    return json::parse(text, file, options);
}

int32_t to_id(const json::Value& value, const std::string& where) {
    const std::optional<int64_t> id = value.to_int64();
    require(id && *id >= 0 && *id <= largest_token_id, ExitCode::data, "{}: not an id from 0 to {}", where,
            largest_token_id);
    return static_cast<int32_t>(*id);
}

// "left right", in which neither holds a space.
std::pair<std::string, std::string> cut_merge(std::string_view text, const std::string& where) {
    const size_t space = text.find(' ');
    const bool good = space != std::string_view::npos && space > 0 && space + 1 < text.size() &&
                      text.find(' ', space + 1) == std::string_view::npos;
    require(good, ExitCode::data, "{}: {} is not two tokens with a space between them", where, quoted(text));
    return {std::string(text.substr(0, space)), std::string(text.substr(space + 1))};
}

void read_merges(const FileNode& model, const Vocabulary& vocabulary, Definition& definition) {
    const FileNode merges = model.member("merges");
    const json::Array* array = merges.value().to_array();
    if (array == nullptr) merges.refuse("not an array");
    for (size_t i = 0; i < array->size(); ++i) {
        const json::Value& entry = (*array)[i];
        const std::string where = fmt::format("{}[{}]", merges.where(), i);
        std::pair<std::string, std::string> pair;
        if (const std::string* text = entry.to_string()) {
            pair = cut_merge(*text, where);
        } else {
            const json::Array* two = entry.to_array();
            require(two != nullptr && two->size() == 2 && (*two)[0].is_string() && (*two)[1].is_string(),
                    ExitCode::data, "{}: neither \"left right\" nor [\"left\", \"right\"]", where);
            pair = {(*two)[0].as_string(), (*two)[1].as_string()};
        }
        definition.merges.emplace_back(vocabulary.merge_of(pair.first, pair.second, where),
                                       static_cast<uint32_t>(i));
    }
}

void read_model(const FileNode& model, Definition& definition) {
    model.allow_only({"type", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix",
                      "fuse_unk", "byte_fallback", "ignore_merges", "vocab", "merges"});
    // Files before version 0.9 of the package do not state the type.
    if (const auto type = model.find("type"); type && type->text() != "BPE")
        type->refuse(fmt::format("{} is not supported", quoted(type->text())));
    model.require_absent("dropout", 0.0);
    model.require_absent("continuing_subword_prefix", "");
    model.require_absent("end_of_word_suffix", "");
    definition.fuse_unknown = model.flag("fuse_unk", false);
    definition.byte_fallback = model.flag("byte_fallback", false);
    definition.ignore_merges = model.flag("ignore_merges", false);
    if (definition.byte_level && definition.byte_fallback)
        model.member("byte_fallback").refuse("true is not supported with a ByteLevel pre-tokenizer");
    const Vocabulary vocabulary(model.member("vocab"));
    vocabulary.store(definition);
    if (const auto unknown = model.find("unk_token")) {
        definition.unknown = vocabulary.find(unknown->text());
        if (!definition.unknown)
            unknown->refuse(fmt::format("{} is not in the vocabulary", quoted(unknown->text())));
    }
    read_merges(model, vocabulary, definition);
}

void read_added(const FileNode& list, Definition& definition) {
    for (const FileNode& node : list.elements()) {
        node.allow_only({"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"});
        const bool special = node.flag("special", false);
        const FileNode id = node.member("id");
        definition.added.push_back({.id = to_id(id.value(), id.where()),
                                    .content = node.text_of("content"),
                                    .single_word = node.flag("single_word", false),
                                    .strip_left = node.flag("lstrip", false),
                                    .strip_right = node.flag("rstrip", false),
                                    .normalized = node.flag("normalized", !special),
                                    .special = special});
    }
}

}  // namespace

Vocabulary::Vocabulary(const FileNode& node) {
    const json::Object* object = node.value().to_object();
    if (object == nullptr) node.refuse("not an object of ids by token");
    ids_.reserve(object->size());
    std::vector<bool> taken;
    for (const json::Member& member : *object) {
        const std::string where = fmt::format("{}[{}]", node.where(), quoted(member.key));
        const int32_t id = to_id(member.value, where);
        if (static_cast<size_t>(id) >= taken.size()) taken.resize(static_cast<size_t>(id) + 1);
        require(!taken[static_cast<size_t>(id)], ExitCode::data, "{}: another token has the id {}", where,
                id);
        taken[static_cast<size_t>(id)] = true;
        ids_.emplace(member.key, id);
    }
}

std::optional<int32_t> Vocabulary::find(std::string_view token) const {
    const auto found = ids_.find(std::string(token));
    return found == ids_.end() ? std::nullopt : std::optional(found->second);
}

Merge Vocabulary::merge_of(const std::string& left, const std::string& right,
                           const std::string& where) const {
    const auto id = [&](const std::string& token) {
        const std::optional<int32_t> found = find(token);
        require(found.has_value(), ExitCode::data, "{}: {} is not in the vocabulary", where, quoted(token));
        return *found;
    };
    return {id(left), id(right), id(left + right)};
}

void Vocabulary::store(Definition& definition) const {
    for (const auto& [token, id] : ids_) {
        const size_t at = static_cast<size_t>(id);
        if (at >= definition.tokens.size()) definition.tokens.resize(at + 1);
        if (!definition.byte_level) {
            definition.tokens[at] = token;
        } else if (std::optional<std::string> bytes = from_letters(token)) {
            definition.tokens[at] = std::move(bytes);
        } else {
            definition.names.emplace_back(id, token);
        }
    }
}

Definition parse_tokenizer_json(std::string_view text, const std::string& file) {
    const json::Value value = parse_json(text, file);
    const FileNode root(value, file);
    root.allow_only({"version", "truncation", "padding", "added_tokens", "normalizer", "pre_tokenizer",
                     "post_processor", "decoder", "model"});
    if (const auto version = root.find("version"); version && version->text() != "1.0")
        version->refuse(fmt::format("{} is not supported", quoted(version->text())));
    Definition definition;
    definition.source = file;
    if (const auto node = root.find("normalizer")) read_normalizer(*node, definition);
    if (const auto node = root.find("pre_tokenizer")) read_pre_tokenizer(*node, definition);
    if (const auto node = root.find("post_processor")) check_post_processor(*node);
    if (const auto node = root.find("decoder")) read_decoder(*node, definition);
    read_model(root.member("model"), definition);
    if (const auto node = root.find("added_tokens")) read_added(*node, definition);
    return definition;
}

Definition parse_vocab_and_merges(std::string_view vocab, const std::string& vocab_file,
                                  std::string_view merges, const std::string& merges_file) {
    const json::Value value = parse_json(vocab, vocab_file);
    const Vocabulary vocabulary(FileNode(value, vocab_file));
    Definition definition;
    definition.source = vocab_file;
    definition.byte_level = true;
    definition.splits.emplace_back(PatternSplit{Pattern(gpt2_pattern, vocab_file)});
    vocabulary.store(definition);
    uint32_t rank = 0;
    for (int64_t line = 1; !merges.empty(); ++line) {
        std::string_view text = merges.substr(0, merges.find('\n'));
        merges.remove_prefix(std::min(text.size() + 1, merges.size()));
        if (text.ends_with('\r')) text.remove_suffix(1);
        if (text.empty() || (line == 1 && text.starts_with("#version"))) continue;
        const std::string where = fmt::format("{} line {}", merges_file, line);
        const auto [left, right] = cut_merge(text, where);
        definition.merges.emplace_back(vocabulary.merge_of(left, right, where), rank++);
    }
    if (const std::optional<int32_t> end = vocabulary.find("<|endoftext|>"))
        definition.added.push_back({.id = *end, .content = "<|endoftext|>", .special = true});
    return definition;
}

}  // namespace longreach::tokenizer
