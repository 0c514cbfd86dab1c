// Text to token ids and back, as tokenizer files of other programs define it.
//
// A text goes through these steps (src/tokenizer/encode.cpp): added tokens are cut out; what is between them is
// normalised, then split into words; a word's bytes or characters merge pairwise by rank. The same ids as the Python
// packages `tokenizers` and `tiktoken`, but for bytes that are not UTF-8, which those do not take: a run of
// such bytes is a word of its own, is not normalised, and decodes to itself.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "tokenizer/definition.h"
#include "tokenizer/split.h"
#include "tokenizer/word_table.h"

namespace longreach::tokenizer {

class Tokenizer {
  public:
    explicit Tokenizer(Definition definition);

    int64_t vocab_size() const { return static_cast<int64_t>(definition_.tokens.size()); }  // largest id + 1
    const Definition& definition() const { return definition_; }

    // Equal for files that mean the same, whatever their layout; never 0.
    uint64_t fingerprint() const { return fingerprint_; }

    std::optional<int32_t> find_added(std::string_view content) const;
    // The token that precedes each document: the first of the usual names that is an added token.
    std::optional<int32_t> document_boundary() const;

    // The bytes that tokens stand for. Special tokens are left out or shown by their names.
    std::string decode(std::span<const int32_t> ids, bool show_special = false) const;

  private:
    friend class Encoder;
    struct Hash {
        using is_transparent = void;
        size_t operator()(std::string_view text) const { return std::hash<std::string_view>{}(text); }
    };
    using Lookup = std::unordered_map<std::string, int32_t, Hash, std::equal_to<>>;

    // The added tokens that are found in one kind of text, by first byte.
    struct AddedIndex {
        Lookup tokens;  // to places in Definition::added
        std::vector<std::vector<size_t>> lengths =
            std::vector<std::vector<size_t>>(256);  // descending, by first byte
        std::array<bool, 256> begins{};             // whether one begins with a byte
        void add(const std::string& content, size_t place);
        // The longest added token at the front of `text`; empty if there is none.
        std::optional<std::pair<size_t, size_t>> find(std::string_view text) const;  // place, length
    };

    void index_tokens();
    void index_added();
    uint64_t compute_fingerprint() const;

    Definition definition_;
    int32_t id_of(std::string_view token) const;  // that a word can become; -1 if there is none
    WordTable ids_;                               // of these tokens
    MergeTable merges_;
    std::vector<int32_t> byte_ids_;  // of each byte: the token, or <0xNN>; -1 if there is none
    AddedIndex original_, normalized_;
    std::vector<std::string> shown_;  // by id: what decode() writes
    std::vector<bool> special_;
    bool cut_before_metaspace_ = false;  // merges never cross the front of a run of U+2581
    uint64_t fingerprint_ = 0;
};

// Whether the names of special tokens in a text are these tokens, or text like any other. A corpus is encoded
// without them, so that no document can contain a boundary.
enum class SpecialTokens { as_text, as_tokens };

// Whether the name of an added token in bytes [begin, end) of a text counts as this token. One that is found in the
// normalised text only is somewhere within them.
using Admits = std::function<bool(const AddedToken& token, size_t begin, size_t end)>;

// Encodes; belongs to one thread. Remembers the words it met (ten megabytes at most).
class Encoder {
  public:
    explicit Encoder(std::shared_ptr<const Tokenizer> tokenizer);

    // Appends the tokens of `text`, any bytes. Time and memory grow linearly with the text, but for a word of n
    // characters O(n log n).
    void encode(std::string_view text, const Admits& admits, std::vector<int32_t>& ids);
    void encode(std::string_view text, SpecialTokens special, std::vector<int32_t>& ids);

  private:
    // offset: of the text in that of encode().
    void encode_well_formed(std::string_view text, size_t offset, const Admits& admits,
                            std::vector<int32_t>& ids);
    template <class Between>
    void cut_added(const Tokenizer::AddedIndex& index, std::string_view text, const Admits& admits,
                   std::vector<int32_t>& ids, Between between);
    void encode_words(std::string_view text, std::span<const size_t> bounds, std::vector<int32_t>& ids);
    void merge_words(std::string_view text, std::span<const size_t> bounds, std::vector<int32_t>& ids);
    void merge_word(std::string_view word);
    void append_characters(std::string_view word);
    void flush(std::vector<int32_t>& ids);

    std::shared_ptr<const Tokenizer> tokenizer_;
    Rewriter rewriter_;
    Splitter splitter_;
    Merger merger_;
    WordTable words_;                    // remembered, with their tokens
    std::vector<int32_t> symbols_;       // of the word at hand
    std::array<int32_t, 1024> ready_{};  // tokens on their way to the caller's vector
    size_t ready_count_ = 0;
};

}  // namespace longreach::tokenizer
