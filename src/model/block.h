// One transformer block, and what passes between blocks.
//
//     x = x + w_skip * stored                  (U-net, second half)
//     x = l0 x + l1 x0                         (x0 mixing)
//     x = x + Mixer(Norm(x))                   (attention)
//     x = x + Mlp(Norm(x))
//     stored = x                               (U-net, first half)
//
// placement peri: x + Norm(Module(Norm(x))). placement hybrid: x = x + Attention(x), n = Norm(x), x = n +
// Mlp(n).
#pragma once

#include <optional>

#include "model/mixer.h"
#include "model/mlp.h"
#include "model/norm.h"

namespace longreach::model {

// Tensors that outlive one block. d...: their gradients (training only).
struct CrossBlock {
    Tensor x0, dx0;                   // [N, C]; with x0 mixing
    SharedValues values;              // value residual and value embeddings
    std::vector<Tensor> skip, dskip;  // [N, C] per storing block; with U-net
};

class Block {
  public:
    struct Saved {
        Tensor before_mix;  // [N, C] x before x0 mixing; only with it
        Tensor input;       // [N, C] what attention reads where no norm makes it
        Norm::Saved attention_norm, attention_post_norm, mlp_norm, mlp_post_norm;
        std::unique_ptr<Mixer::Memory> mixer;
        Mlp::Saved mlp;
    };
    struct Workspace {
        Tensor module;   // [N, C] output of a module before a norm behind it
        Tensor dxn;      // [N, C]
        Tensor dmodule;  // [N, C]
        Mlp::Workspace mlp;
    };

    Block(ParamTable& table, const ModelConfig& model, int64_t layer);
    Saved plan(Arena& arena, const std::string& name, int64_t tokens, bool training) const;
    // For all blocks of a model, whose mixers keep their part in `saved`. lengths: every T to be served.
    static Workspace plan_workspace(Arena& arena, Ops& ops, const std::vector<Block>& blocks,
                                    std::vector<Saved>& saved, int64_t tokens,
                                    const std::vector<int64_t>& lengths, bool training);

    void forward(StepContext& run, const Saved& saved, const CrossBlock& cross, const Workspace& workspace,
                 Tensor x) const;
    // dx holds the gradient at the block's output on entry and at its input on return.
    void backward(StepContext& run, Tensor dx, const Saved& saved, const CrossBlock& cross,
                  const Workspace& workspace) const;

    Mixer& mixer() { return *mixer_; }
    const Mixer& mixer() const { return *mixer_; }

  private:
    bool norms_behind() const { return attention_post_norm_ || mlp_post_norm_; }
    Tensor attention_input(const Saved& saved, int64_t tokens) const;
    void attention_backward(StepContext& run, Tensor dx, const Saved& saved, const CrossBlock& cross,
                            const Workspace& workspace) const;
    void mlp_backward(StepContext& run, Tensor dx, const Saved& saved, const Workspace& workspace) const;

    int64_t width_;
    int stores_ = -1, takes_ = -1;  // index of the skip buffer this block writes or reads
    bool hybrid_;
    ParamRef skip_weight_, x_weight_, x0_weight_;
    std::optional<Norm> attention_norm_, attention_post_norm_, mlp_post_norm_;
    Norm mlp_norm_;
    std::unique_ptr<Mixer> mixer_;
    Mlp mlp_;
};

}  // namespace longreach::model
