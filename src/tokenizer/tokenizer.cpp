#include "tokenizer/tokenizer.h"

#include <algorithm>

#include "base/error.h"
#include "base/hash.h"
#include "base/text.h"
#include "tokenizer/byte_text.h"

namespace longreach::tokenizer {

namespace {

constexpr std::string_view metaspace = "\u2581";

// Whether merges join a character other than U+2581 with one that follows.
bool joins_before_metaspace(std::string_view token) {
    for (size_t at = token.find(metaspace, 1); at != std::string_view::npos;
         at = token.find(metaspace, at + 1))
        if (at < metaspace.size() || token.substr(at - metaspace.size(), metaspace.size()) != metaspace)
            return true;
    return false;
}

// Whether every text becomes its bytes. Where nothing merges, splits change nothing.
bool makes_bytes(const Definition& d) {
    bool bytes = d.byte_level && d.normalizer.empty() && d.merges.empty() && d.tokens.size() >= 256;
    for (size_t byte = 0; bytes && byte < 256; ++byte)
        bytes = d.tokens[byte] == std::string(1, static_cast<char>(byte));
    return bytes && d.added.size() == 1 && d.added[0].id == byte_boundary &&
           d.added[0].content == boundary_name && !d.added[0].single_word && !d.added[0].strip_left &&
           !d.added[0].strip_right;
}

class Description {
  public:
    void add(uint64_t number) { hash_.update(&number, sizeof number); }
    void add(std::string_view text) {
        add(text.size());
        hash_.update(text.data(), text.size());
    }
    void operator()(NormalForm form) { add(static_cast<uint64_t>(form)); }
    void operator()(const Prepend& step) { add(step.text); }
    void operator()(const Replace& step) {
        add(step.pattern.source());
        add(step.content);
    }
    void operator()(const PatternSplit& step) {
        add(step.pattern.source());
        add(static_cast<uint64_t>(step.behaviour));
        add(step.invert ? 1 : 0);
    }
    void operator()(const PrefixSpace&) {}
    void operator()(const Metaspace& step) {
        add(step.replacement);
        add(static_cast<uint64_t>(step.prepend));
        add(step.split ? 1 : 0);
    }
    uint64_t digest() const { return hash_.digest(); }

  private:
    Xxh64 hash_;
};

}  // namespace

Tokenizer::Tokenizer(Definition definition) : definition_(std::move(definition)) {
    const std::string& source = definition_.source;
    int64_t size = static_cast<int64_t>(definition_.tokens.size());
    for (const AddedToken& token : definition_.added) size = std::max(size, int64_t{token.id} + 1);
    require(size >= 1, ExitCode::data, "{}: a vocabulary without tokens", source);
    require(size <= largest_token_id + 1, ExitCode::data, "{}: a vocabulary of {} tokens; at most {}", source,
            size, largest_token_id + 1);
    definition_.tokens.resize(static_cast<size_t>(size));
    index_tokens();
    index_added();
    for (const auto& [merge, rank] : definition_.merges) {
        require(rank < MergeTable::none, ExitCode::data, "{}: more than {} merges", source, MergeTable::none);
        merges_.add(merge, rank);
    }
    fingerprint_ = compute_fingerprint();
}

void Tokenizer::index_tokens() {
    const std::vector<std::optional<std::string>>& tokens = definition_.tokens;
    for (size_t id = 0; id < tokens.size(); ++id)
        if (tokens[id] && id_of(*tokens[id]) < 0)
            ids_.add(WordTable::key_of(*tokens[id], 0, tokens[id]->size()),
                     std::array{static_cast<int32_t>(id)});
    byte_ids_.assign(256, -1);
    for (size_t byte = 0; byte < 256; ++byte) {
        const std::string key = definition_.byte_level ? std::string(1, static_cast<char>(byte))
                                                       : fmt::format("<0x{:02X}>", byte);
        if (!definition_.byte_level && !definition_.byte_fallback) continue;
        byte_ids_[byte] = id_of(key);
    }
    const auto joins = [&](const auto& merge) {
        return joins_before_metaspace(*tokens[static_cast<size_t>(merge.first.result)]);
    };
    cut_before_metaspace_ = !definition_.byte_level && !definition_.ignore_merges && id_of(metaspace) >= 0 &&
                            std::none_of(definition_.merges.begin(), definition_.merges.end(), joins);

    const DecodeRules& rules = definition_.decode;
    for (size_t id = 0; id < tokens.size(); ++id) {
        std::string text = tokens[id].value_or(std::string());
        unsigned value = 0;
        if (rules.byte_fallback && text.size() == 6 && std::sscanf(text.c_str(), "<0x%2X>", &value) == 1) {
            text = std::string(1, static_cast<char>(value));
        } else if (!definition_.byte_level) {
            for (const auto& [from, to] : rules.replacements)
                for (size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size())
                    text.replace(at, from.size(), to);
        }
        shown_.push_back(std::move(text));
    }
    for (const auto& [id, name] : definition_.names) shown_[static_cast<size_t>(id)] = name;
}

void Tokenizer::index_added() {
    special_.assign(definition_.tokens.size(), false);
    Rewriter rewriter(definition_.normalizer);
    for (size_t i = 0; i < definition_.added.size(); ++i) {
        const AddedToken& token = definition_.added[i];
        require(token.id >= 0, ExitCode::data, "{}: token {} has the id {}", definition_.source,
                quoted(token.content), token.id);
        shown_[static_cast<size_t>(token.id)] = token.content;
        if (token.special) special_[static_cast<size_t>(token.id)] = true;
        if (token.content.empty()) continue;
        std::string scratch;
        if (token.normalized) {
            normalized_.add(std::string(rewriter.rewrite(token.content, scratch)), i);
        } else {
            original_.add(token.content, i);
        }
    }
}

int32_t Tokenizer::id_of(std::string_view token) const {
    const WordTable::Found found = ids_.find(token);
    return found.numbers == nullptr ? -1 : *found.numbers;
}

void Tokenizer::AddedIndex::add(const std::string& content, size_t place) {
    if (content.empty() || !tokens.emplace(content, static_cast<int32_t>(place)).second) return;
    begins[static_cast<unsigned char>(content[0])] = true;
    std::vector<size_t>& sizes = lengths[static_cast<unsigned char>(content[0])];
    const auto at = std::lower_bound(sizes.begin(), sizes.end(), content.size(), std::greater<>());
    if (at == sizes.end() || *at != content.size()) sizes.insert(at, content.size());
}

std::optional<std::pair<size_t, size_t>> Tokenizer::AddedIndex::find(std::string_view text) const {
    for (const size_t length : lengths[static_cast<unsigned char>(text[0])]) {
        if (length > text.size()) continue;
        const auto found = tokens.find(text.substr(0, length));
        if (found != tokens.end()) return std::pair{static_cast<size_t>(found->second), length};
    }
    return std::nullopt;
}

std::optional<int32_t> Tokenizer::find_added(std::string_view content) const {
    for (const AddedToken& token : definition_.added)
        if (token.content == content) return token.id;
    return std::nullopt;
}

std::optional<int32_t> Tokenizer::document_boundary() const {
    // Of the two names that models with both use, the first begins a text.
    for (const char* name :
         {"<|begin_of_text|>", "<|endoftext|>", "<s>", "<bos>", "<|end_of_text|>", "</s>", "<eos>"})
        if (const std::optional<int32_t> id = find_added(name)) return id;
    return std::nullopt;
}

uint64_t Tokenizer::compute_fingerprint() const {
    const Definition& d = definition_;
    if (makes_bytes(d)) return bytes_fingerprint();
    Description text;
    text.add("tokenizer 1");
    for (const auto& step : d.normalizer) {
        text.add(step.index());
        std::visit(text, step);
    }
    text.add("splits");
    for (const auto& step : d.splits) {
        text.add(step.index());
        std::visit(text, step);
    }
    for (const bool flag : {d.byte_level, d.ignore_merges, d.byte_fallback, d.fuse_unknown})
        text.add(flag ? 1 : 0);
    text.add(d.unknown ? static_cast<uint64_t>(*d.unknown) + 1 : 0);
    for (const std::optional<std::string>& token : d.tokens) {
        text.add(token ? 1 : 0);
        text.add(token ? std::string_view(*token) : std::string_view());
    }
    for (const auto& [merge, rank] : d.merges)
        for (const int64_t number :
             {int64_t{merge.left}, int64_t{merge.right}, int64_t{merge.result}, int64_t{rank}})
            text.add(static_cast<uint64_t>(number));
    std::vector<const AddedToken*> added;
    for (const AddedToken& token : d.added) added.push_back(&token);
    std::sort(added.begin(), added.end(), [](auto* a, auto* b) { return a->id < b->id; });
    for (const AddedToken* token : added) {
        text.add(static_cast<uint64_t>(token->id));
        text.add(token->content);
        for (const bool flag :
             {token->single_word, token->strip_left, token->strip_right, token->normalized, token->special})
            text.add(flag ? 1 : 0);
    }
    return std::max<uint64_t>(text.digest(), 1);
}

}  // namespace longreach::tokenizer
