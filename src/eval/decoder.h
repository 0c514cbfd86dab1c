// Texts continued token by token: the prompt in one pass, then one token per sequence and step against the
// keys and values that were kept.
//
// A step is the last row of a pass over the whole text so far, up to rounding. Where what a model does
// depends on the length of its text (eval.rope), that length is the decoder's room from the first token to
// the last, so that nothing changes within a text.
#pragma once

#include <vector>

#include "model/device_batch.h"
#include "model/generator.h"

namespace longreach::eval {

struct DecoderSize {
    int64_t sequences = 1;
    int64_t prompt = 0;  // the longest, in tokens
    int64_t room = 0;    // prompt and continuation; at most the model's table rows
};

class Decoder {
  public:
    Decoder(model::Transformer& model, const DecoderSize& size)
        : model_(model), generator_(model), size_(size) {}

    // Plan like the model's. Keys and values live from prefill() to the last step().
    void plan(model::Arena& arena, Ops& ops);

    // Begins new texts: tokens [B P] of prompts of equal length, at most as many as planned. Returns the most
    // likely next token of each sequence.
    const std::vector<int32_t>& prefill(Ops& ops, const model::FlatParams& weights,
                                        const std::vector<int32_t>& tokens, int64_t sequences);
    // Appends a token [B] to each text. Returns the most likely next ones.
    const std::vector<int32_t>& step(Ops& ops, const model::FlatParams& weights,
                                     const std::vector<int32_t>& tokens);
    // After either: what the next token's probabilities are made of, after the softcap of the head; [B V].
    std::vector<float> logits(Ops& ops) const;

    int64_t position() const { return position_; }  // tokens that every text has
    const DecoderSize& size() const { return size_; }

  private:
    const std::vector<int32_t>& pass(Ops& ops, const model::FlatParams& weights,
                                     const std::vector<int32_t>& tokens, int64_t length);

    model::Transformer& model_;
    model::Generator generator_;
    DecoderSize size_;
    model::DeviceBatch batch_;
    Tensor logits_;  // f32 [B V]
    int64_t sequences_ = 0, position_ = 0;
    std::vector<int32_t> best_;
};

// A token drawn from softmax(logits / temperature) over the `top` largest logits (0: all of them). uniform:
// in [0, 1). Of equal logits at the border the first are kept.
int32_t sample_token(const float* logits, int64_t vocabulary, double temperature, int64_t top,
                     double uniform);

}  // namespace longreach::eval
