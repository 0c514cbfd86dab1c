// Generation: B sequences of equal length, each one document, are continued token by token. The prompt takes
// one pass; every later pass takes one token per sequence and uses the decoding state of the layers.
#pragma once

#include "model/transformer.h"

namespace longreach::model {

class Generator {
  public:
    explicit Generator(Transformer& model) : model_(model) {}

    // Plans for prompts of up to `tokens` tokens together and sequences of up to `room`.
    void plan(Arena& arena, Ops& ops, int64_t sequences, int64_t tokens, int64_t room);
    // Whether the state at a position is still there after later ones: rows by position are, a state that
    // each token changes is not.
    bool can_rewind() const;
    // Runs the tokens [B T] at at.position: the prompt at 0, then one token per sequence (T = 1). If position
    // encoding depends on sequence length (Transformer::use_length), every call needs the same length.
    void run(Ops& ops, const FlatParams& weights, const Batch& batch, const Generation& at);
    // Between two passes: text `to` becomes a copy of text `from`.
    void copy_text(Ops& ops, int64_t to, int64_t from) const { kept_.copy(ops, to, from); }
    // In place of a generation: the logits [rows, V] at positions of the last Transformer::forward(), which keeps none.
    void plan_logits(Arena& arena, int64_t rows);
    Tensor evaluation_logits(Ops& ops, const FlatParams& weights, int64_t begin, int64_t rows);
    // For the last position of each sequence: logits [B, V] of the device's type, most likely tokens i32 [B].
    Tensor logits(int64_t sequences) const { return head_.logits.first_rows(sequences); }
    Tensor best(int64_t sequences) const { return head_.best.first(sequences); }

  private:
    Transformer& model_;
    Transformer::Activations activations_;
    LossHead::Saved head_;
    KeptTexts kept_;
    Tensor last_rows_;  // [B, C] the residual stream at the last positions
};

}  // namespace longreach::model
