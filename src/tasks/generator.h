// Samples of a task: a pure function of (seed, task, length, index, depth) and of the haystack's tokens.
#pragma once

#include "data/token_stream.h"
#include "tasks/draft.h"

namespace longreach::tasks {

struct Sample {
    TokenList tokens;          // exactly the length asked for: context, question, answer
    int64_t context = 0;       // tokens before the question
    int64_t answer_begin = 0;  // the answer is tokens[answer_begin, end)
    // An answer of the same form whose parts do not occur in the context; if the answer is one
    // random string, only the whole does not.
    TokenList decoy;                      // none if the source has no decoys
    std::vector<int64_t> reference_ends;  // in the answer, in order; the last is its end
    double depth = -1;  // percent of the haystack before the piece asked for; -1: not a single piece

    int64_t answer_tokens() const { return static_cast<int64_t>(tokens.size()) - answer_begin; }
};

// Samples with smaller indices are for training, which numbers them by the tokens consumed.
inline constexpr uint64_t first_evaluation_sample = uint64_t{1} << 63;

// Where an evaluation takes samples from. make(): a sample of exactly `length` tokens.
class SampleSource {
  public:
    virtual ~SampleSource() = default;
    virtual Sample make(int64_t length, uint64_t index, double depth) const = 0;
    virtual std::string_view name() const = 0;
    virtual bool has_depth(int64_t length) const = 0;
    virtual bool has_decoys() const = 0;
    // How many samples to score if `asked` are asked for.
    virtual int64_t samples(int64_t asked) const = 0;
};

class TaskGenerator : public SampleSource {
  public:
    // `haystack` provides essay text and must outlive the generator; null: noise instead, which is
    // suitable for sizes only.
    TaskGenerator(data::TaskKind task, const data::TaskConfig& config, int64_t vocab_size, uint64_t seed,
                  const data::TokenStream* haystack);

    // Sample `index` at this length; depth (0 to 100, percent) places the piece asked for, -1: anywhere.
    // An Error if the task does not fit the length or the stream has too little text.
    Sample make(int64_t length, uint64_t index, double depth = -1) const override;

    // TokenList of the answer: the same for every sample of a length.
    int64_t answer_tokens(int64_t length) const {
        return static_cast<int64_t>(draft(length, 0).answer.size());
    }
    std::string_view name() const override { return data::name_of(task_); }
    bool has_depth(int64_t length) const override { return draft(length, 0).asked >= 0; }
    bool has_decoys() const override { return true; }
    int64_t samples(int64_t asked) const override { return asked; }

  private:
    uint64_t sample_seed(int64_t length, uint64_t index) const;
    Draft draft(int64_t length, uint64_t seed) const;
    Sample lay_out(const Draft& d, int64_t length, uint64_t seed, double depth) const;

    data::TaskKind task_;
    data::TaskConfig config_;
    int64_t vocab_size_;
    uint64_t seed_;
    const data::TokenStream* haystack_;
};

}  // namespace longreach::tasks
