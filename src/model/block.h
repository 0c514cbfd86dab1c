// One transformer block, and what passes between blocks.
//
//     x = x + w_skip * stored            (U-net, second half)
//     x = l0 x + l1 x0                   (x0 mixing)
//     x = x + Attention(Norm(x))
//     x = x + Mlp(Norm(x))
//     stored = x                         (U-net, first half)
#pragma once

#include "model/attention_layer.h"
#include "model/mlp.h"
#include "model/norm.h"

namespace longreach {

// Tensors that outlive one block. d...: their gradients (training only).
struct CrossBlock {
    Tensor x0, dx0;                      // [N, C]; with x0 mixing
    Tensor first_values, dfirst_values;  // [N, G d]; with value residual
    std::vector<Tensor> skip, dskip;     // [N, C] per storing block; with U-net
};

class Block {
  public:
    struct Saved {
        Tensor before_mix;  // [N, C] x before x0 mixing; only with it
        Norm::Saved attention_norm, mlp_norm;
        AttentionLayer::Saved attention;
        Mlp::Saved mlp;
    };
    struct Workspace {
        Tensor dxn;  // [N, C]
        AttentionLayer::Workspace attention;
        Mlp::Workspace mlp;
    };

    Block(ParamTable& table, const ModelConfig& model, int64_t layer);
    Saved plan(Arena& arena, const std::string& name, int64_t tokens) const;

    void forward(StepContext& run, const Saved& saved, const CrossBlock& cross, Tensor x) const;
    // dx holds the gradient at the block's output on entry and at its input on return.
    void backward(StepContext& run, Tensor dx, const Saved& saved, const CrossBlock& cross,
                  const Workspace& workspace) const;

    AttentionLayer& attention() { return attention_; }
    const AttentionLayer& attention() const { return attention_; }
    const Mlp& mlp() const { return mlp_; }

  private:
    int64_t layer_, width_;
    int stores_ = -1, takes_ = -1;  // index of the skip buffer this block writes or reads
    ParamRef skip_weight_, x_weight_, x0_weight_;
    Norm attention_norm_, mlp_norm_;
    AttentionLayer attention_;
    Mlp mlp_;
};

}  // namespace longreach
