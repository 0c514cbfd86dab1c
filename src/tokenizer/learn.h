// Learning a byte-level BPE vocabulary from text: of all adjacent pairs of tokens inside the words, the most frequent
// becomes a token, again and again. The result is the one of `tokenizers`' BpeTrainer with the same options.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "tokenizer/byte_text.h"
#include "tokenizer/merge.h"
#include "tokenizer/split.h"
#include "tokenizer/word_table.h"

namespace longreach::tokenizer {

inline constexpr int64_t learned_first_tokens =
    257;  // boundary_name, which precedes documents, and one per byte

struct LearnOptions {
    int64_t vocab = 8192;   // tokens wanted, the first 257 among them
    int64_t min_count = 2;  // pairs seen less often are no tokens
};

struct Learned {
    std::vector<Merge> merges;        // by rank
    std::vector<std::string> tokens;  // by id: bytes, but the boundary's name for 0
};

// Counts the words of texts as GPT-2 splits them. Memory grows with the number of different words. Belongs to one thread.
class WordCounter {
  public:
    WordCounter();
    void add(std::string_view document);
    void add(const WordCounter& other);
    uint64_t words() const { return words_; }

    // Deterministic, whatever the order of the texts. Of pairs seen equally often, the one of smaller
    // ids comes first.
    Learned learn(const LearnOptions& options) const;

  private:
    void count(std::string_view text, std::span<const size_t> bounds);
    void count(const WordTable::Key& word, int64_t times);
    Splitter splitter_;
    WordTable places_;  // of each word in counts_
    std::vector<int64_t> counts_;
    uint64_t words_ = 0;
};

// As tokenizer.json.
json::Value to_json(const Learned& learned);
// The tokens of texts without a tokenizer (byte_text.h), as tokenizer.json.
json::Value bytes_as_json();

}  // namespace longreach::tokenizer
