// The log-probability of every token of one text, and the most likely tokens in its place: one pass over the
// text, whose losses are those of LengthEvaluator for a sequence of that length.
//
// If the model depends on the length of its text (eval.rope), that length is the text's own.
#pragma once

#include <vector>

#include "model/device_batch.h"
#include "model/generator.h"

namespace longreach::eval {

struct Candidate {
    int32_t token = 0;
    double log_probability = 0;  // in nats
};

// Of the logits after the softcap [V].
double log_sum_exp(const float* logits, int64_t vocabulary);
// The `count` most likely tokens, best first; ties keep the smaller token first.
std::vector<int32_t> most_likely(const float* logits, int64_t vocabulary, int64_t count);

struct TextScores {
    std::vector<Candidate> tokens;            // of the text's tokens from the second on
    std::vector<std::vector<Candidate>> top;  // of the same places, `top` each
    std::vector<float> next;                  // logits after the text's last token; if wanted
};

class Scorer {
  public:
    explicit Scorer(model::Transformer& model) : model_(model), logits_of_(model) {}
    // For texts of up to `tokens` tokens. Call where the model is planned; plans its evaluation too.
    // documents: under a document mask.
    void plan(model::Arena& arena, Ops& ops, int64_t tokens, bool documents);
    // starts: where the document of each token begins; empty without a document mask. top: how many of the most likely tokens to find at each place. next: whether to continue the text.
    TextScores run(Ops& ops, const model::FlatParams& weights, const std::vector<int32_t>& text,
                   const std::vector<int32_t>& starts, int64_t top, bool next);

  private:
    // Of the positions [begin, begin + rows), after the softcap, in host_.
    void download_logits(Ops& ops, const model::FlatParams& weights, int64_t begin, int64_t rows);

    model::Transformer& model_;
    model::Generator logits_of_;
    model::DeviceBatch batch_;
    Tensor logits_;  // f32 [chunk, V]
    std::vector<float> host_;
};

}  // namespace longreach::eval
