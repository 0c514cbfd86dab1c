// The vocabulary of tasks, as tokens: one grammar in three notations.
//
//   text  bytes of English sentences (byte-level tokenizer)
//   gpt2  words of the same sentences in GPT-2's vocabulary; needle_s3 alone
//   ids   one reserved token per mark, digit or name; words that only make a sentence readable are left out.
//         Reserved: 16 marks (8 to 13 are the hexadecimal digits a to f), 10 digits, 6 tokens of filler, then names.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "base/rng.h"
#include "data/task_config.h"

namespace longreach::tasks {

using TokenList = std::vector<int32_t>;

// What a phrase encodes; in form ids it is one token. `silent` phrases are for readers only.
enum class Mark : int {
    silent = -1,
    needle,     // a needle begins
    is,         // its value follows
    stop,       // it ends
    ask,        // the question
    separator,  // between answers
    assign,     // VAR X = number
    refer,      // VAR X = VAR Y
    dots        // the word of rank 0
};

// Random numbers of one sample, drawn one after the other.
class Dice {
  public:
    Dice(uint64_t seed, uint32_t stream) : rng_(seed, Purpose::task, stream) {}
    uint64_t below(uint64_t n) { return rng_.below(next_++, n); }
    int64_t between(int64_t first, int64_t last) {
        return first + static_cast<int64_t>(below(static_cast<uint64_t>(last - first + 1)));
    }

  private:
    Rng rng_;
    uint64_t next_ = 0;
};

class Lexicon {
  public:
    // Names are shuffled by the seed: name(0), name(1), ... of one lexicon are different words.
    Lexicon(const data::TaskConfig& config, int64_t vocab_size, uint64_t seed);

    bool text() const { return text_; }
    void say(TokenList& out, std::string_view words, Mark mark = Mark::silent) const;
    void name(TokenList& out, uint64_t n) const;      // text: three syllables, "bakotu"
    void variable(TokenList& out, uint64_t n) const;  // text: five capitals, "QXANB"
    void city(TokenList& out, uint64_t n) const;      // text: a city of six letters; gpt2: one of one token
    void symbol(TokenList& out, uint64_t n) const;    // text: a small letter; n < symbols()
    void number(TokenList& out, uint64_t value) const;
    void uuid(TokenList& out, uint64_t high, uint64_t low) const;  // version 4; ids: without the dashes
    void noise(TokenList& out, int64_t count) const;               // `count` tokens of filler sentences

    uint64_t names() const;  // how many different ones there are
    uint64_t cities() const;
    uint64_t symbols() const;

  private:
    int32_t id(uint64_t offset) const { return static_cast<int32_t>(first_ + static_cast<int64_t>(offset)); }
    bool text_, gpt2_;
    int64_t first_;
    Permutation names_, variables_, cities_, symbols_;
};

// A number of exactly this many digits.
uint64_t random_number(Dice& dice, int64_t digits);

}  // namespace longreach::tasks
