// Continues texts token by token: the prompt in one pass, then
// one token per sequence and step, with cached keys and values.
//
// Up to rounding, a step equals the last row of a pass over the whole text so
// far. If the model depends on the length of its text (eval.rope), that length
// is the same for all tokens, so that nothing changes within a text.
#pragma once

#include <vector>

#include "model/device_batch.h"
#include "model/generator.h"

namespace longreach::eval {

struct DecoderSize {
    int64_t sequences = 1;
    int64_t prompt = 0;  // the longest, in tokens
    int64_t room = 0;    // prompt and continuation; at most the model's table rows
    int64_t pass = 0;    // tokens of the largest prefill, all prompts together; 0: sequences * prompt
    int64_t length = 0;  // of texts, for a model that depends on it; 0: the room
    int64_t pass_tokens() const { return pass > 0 ? pass : sequences * prompt; }
    int64_t text_length() const { return length > 0 ? length : room; }
};

class Decoder {
  public:
    Decoder(model::Transformer& model, const DecoderSize& size)
        : model_(model), generator_(model), size_(size) {}

    // Call where the model is planned. Keys and values live from prefill() to the last step().
    void plan(model::Arena& arena, Ops& ops);

    // Starts new texts from prompts of equal length, tokens [B P], at most as
    // many as planned. Returns the most likely next token of each text.
    // prompt_of: for each text the prompt that it continues, prompt_of[b] <= b; empty: each its own.
    const std::vector<int32_t>& prefill(Ops& ops, const model::FlatParams& weights,
                                        const std::vector<int32_t>& tokens, int64_t prompts,
                                        std::vector<int64_t> prompt_of = {});
    // Appends a token [B] to each text. Returns the most likely next ones.
    const std::vector<int32_t>& step(Ops& ops, const model::FlatParams& weights,
                                     const std::vector<int32_t>& tokens);
    // Forgets all but the first `length` tokens of each text, if the model's state allows (can_rewind).
    void rewind(int64_t length);
    bool can_rewind() const { return generator_.can_rewind(); }
    // After prefill() or step(): the logits of the next token, after the softcap of the head; [B V].
    std::vector<float> logits(Ops& ops) const;

    int64_t position() const { return position_; }  // tokens of each text so far
    const DecoderSize& size() const { return size_; }

  private:
    const std::vector<int32_t>& pass(Ops& ops, const model::FlatParams& weights,
                                     const std::vector<int32_t>& tokens, int64_t length);
    template <class T>
    std::vector<T> of_texts(std::vector<T> rows, int64_t width) const;

    model::Transformer& model_;
    model::Generator generator_;
    DecoderSize size_;
    model::DeviceBatch batch_;
    Tensor logits_;  // f32 [B V]
    int64_t sequences_ = 0, position_ = 0;
    std::vector<int64_t> prompt_of_;  // after prefill(): which row of the pass each text continues
    std::vector<int32_t> best_;
};

// A token drawn from softmax(logits / temperature) over the `top` largest logits (0: all), and of these over
// the first whose shares reach `nucleus` together. uniform: in [0, 1). Ties at the limit keep the first tokens.
int32_t sample_token(const float* logits, int64_t vocabulary, double temperature, int64_t top, double uniform,
                     double nucleus = 1);

}  // namespace longreach::eval
