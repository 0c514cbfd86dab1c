// Final norm, output matrix and cross-entropy, in chunks of tokens and with the gradient in the same pass:
// the [tokens, vocabulary] matrix never exists.
//
//     per chunk of n tokens:  logits = y W^T [n, V];  loss, dlogits in place;
//                             dW += dlogits^T y;  dy = dlogits W
#pragma once

#include "model/norm.h"

namespace longreach::model {

class LossHead {
  public:
    struct Saved {
        Norm::Saved norm;
        Tensor logits;  // [chunk, V]
        Tensor losses;  // [N]
        Tensor best;    // i32 [N], the most likely next token; evaluation only
        Tensor dy;      // [N, C]; training only
    };

    // embedding: the token table, used as output matrix when the head is tied.
    LossHead(ParamTable& table, const ModelConfig& model, const ParamRef& embedding);
    Saved plan(Arena& arena, int64_t tokens, bool training) const;

    // Computes losses and most likely tokens from the residual stream x.
    void forward(StepContext& run, const Saved& saved, const Tensor& x) const;
    // For a generation: computes the logits [B, V] of the rows of x [B, C] and the most likely tokens.
    Saved plan_rows(Arena& arena, int64_t rows) const;
    void predict(StepContext& run, const Saved& saved, const Tensor& x) const;
    // The logit after the softcap, which changes probabilities but not their order.
    double capped(double logit) const;
    // Computes losses and dx = gradient_scale * d(sum of losses times the batch's weights)/dx; gradients of the head
    // accumulate in the same way.
    void forward_backward(StepContext& run, Tensor dx, const Saved& saved, const Tensor& x,
                          float gradient_scale) const;

  private:
    void run_chunks(StepContext& run, const Saved& saved, const Tensor& x, float gradient_scale,
                    bool training) const;
    int64_t chunk_rows(const DeviceTraits& device) const;

    int64_t width_, vocab_;
    LossSpec spec_;
    Norm norm_;
    ParamRef matrix_;
};

}  // namespace longreach::model
