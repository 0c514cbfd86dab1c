// One transformer block.
//
//     x = x + w_skip * stored                  (U-net, second half)
//     x = l0 x + l1 x0                         (x0 mixing)
//     x = x + Mixer(Norm(x))                   variations of this line and the next: residual.h
//     x = x + Mlp(Norm(x))                     unless the mixer is a gated attention unit
//     stored = x                               (U-net, first half; the backout layer)
#pragma once

#include "model/attention_mixer.h"
#include "model/mlp.h"
#include "model/residual.h"

namespace longreach::model {

// Tensors that outlive one block.
struct CrossBlock {
    Streams streams;
    SharedValues values;  // value residual and value embeddings
};

class Block {
  public:
    struct Saved {
        Tensor before_mix;  // [N, C] x before x0 mixing; only with it
        Residual::Saved mixer_residual, mlp_residual;
        std::unique_ptr<Mixer::Memory> mixer;
        Mlp::Saved mlp;
    };
    struct Workspace {
        Residual::Workspace residual;
        Mlp::Workspace mlp;
    };

    Block(ParamTable& table, const ModelConfig& model, int64_t layer);
    Saved plan(Arena& arena, const std::string& name, const PassPlan& size) const;
    // Plans the workspace of all blocks of a model; each mixer keeps its part in `saved`, which has an entry for
    // every block in every pass.
    static Workspace plan_workspace(Arena& arena, Ops& ops, const std::vector<Block>& blocks,
                                    std::vector<Saved>& saved, const PassPlan& size);

    void forward(StepContext& run, const Saved& saved, const CrossBlock& cross, const Workspace& workspace,
                 Tensor x) const;
    // dx holds the gradient at the block's output on entry and at its input on return.
    void backward(StepContext& run, Tensor dx, const Saved& saved, const CrossBlock& cross,
                  const Workspace& workspace) const;

    // The part of backward() that trains an index of keys.
    void learn_index(StepContext& run, const Saved& saved) const {
        if (const AttentionMixer* attention = mixer_->attention())
            attention->learn_index(run, *saved.mixer,
                                   saved.mixer_residual.input.first_rows(run.batch.count()));
    }

    Mixer& mixer() const { return *mixer_; }
    bool has_index() const {
        const AttentionMixer* attention = mixer_->attention();
        return attention != nullptr && attention->has_index();
    }

  private:
    Residual mixer_residual_, mlp_residual_;
    std::unique_ptr<Mixer> mixer_;
    std::optional<Mlp> mlp_;
    std::vector<StreamMix> mixes_;  // into the block's input
    std::vector<size_t> stores_;    // streams that keep its output
};

}  // namespace longreach::model
