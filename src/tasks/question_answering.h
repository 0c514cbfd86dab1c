// Samples of question answering on texts of the user: the passage with the answer among other passages of the file.
//
//   sample = passages , question , answer ;   passage  = "Passage: " context "\n\n"
//                                             question = "Question: " question "\nAnswer:"
//                                             answer   = " " and the question's first answer
//
// The other passages hold none of the question's answers. They come in an order of the sample's own, the same at every
// length, as many as fit; the last of them loses its beginning, so that the sample has exactly the length asked for.
#pragma once

#include <functional>

#include "data/questions.h"
#include "tasks/generator.h"

namespace longreach::tasks {

class QuestionSamples : public SampleSource {
  public:
    using Encode = std::function<TokenList(std::string_view)>;
    // Questions that do not fit `shortest` tokens with their passage are left out at every length. Error(ExitCode::data)
    // if none does. path: for the messages.
    QuestionSamples(const std::vector<data::Question>& questions, std::string path, const Encode& encode,
                    int64_t shortest, uint64_t seed);

    // Samples first_evaluation_sample + i are about different questions for i < samples(all).
    Sample make(int64_t length, uint64_t index, double depth) const override;
    std::string_view name() const override { return "qa"; }
    bool has_depth(int64_t) const override { return true; }
    bool has_decoys() const override { return false; }
    int64_t samples(int64_t asked) const override;
    int64_t left_out() const { return left_out_; }
    // Error(ExitCode::data) if the other passages do not fill `longest` tokens for one of these samples.
    void check(int64_t longest, int64_t asked) const;

  private:
    struct Passage {
        std::string text;
        TokenList tokens;
    };
    struct Item {
        size_t passage;
        TokenList tail, answer;
        std::vector<std::string> answers;
        int64_t line;
        int64_t tokens;  // with the passage
    };
    std::string path_;
    uint64_t seed_;
    std::vector<Passage> passages_;
    std::vector<Item> items_;
    int64_t left_out_ = 0;
};

}  // namespace longreach::tasks
