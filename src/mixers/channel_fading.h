// Scores whose channels fade: in place of <q, k> the sum over c of q_ic k_jc exp(C_ic - C_jc).
//
//     a_hc(i) = the term's formula of <w_hc, xn_i> + b_hc    of each channel of each query head, at most 0
//     C_hc(i) = sum over i' <= i of a_hc(i')                 along the whole sequence
#pragma once

#include <memory>

#include "mixers/score_law.h"
#include "model/mixer.h"

namespace longreach::model {

class ChannelFading {
  public:
    using Saved = ScoreLaw::Saved;
    struct Buffers {
        ScoreLaw::Buffers sums;
        Tensor keys;  // AttentionSpec::channel_memory
    };
    struct Memory {
        const Saved& saved;
        const Buffers& buffers;
        const ScoreLaw::Cache& cache;
    };

    ChannelFading() = default;
    ChannelFading(ParamTable& table, const ModelConfig& model, int64_t layer);  // of a layer with such a term
    explicit operator bool() const { return sums_ != nullptr; }

    Saved plan(Arena& arena, const std::string& name, int64_t tokens) const;
    Buffers plan_buffers(Arena& arena, const PassPlan& size, const AttentionSpec& shape) const;
    ScoreLaw::Cache plan_kept(KeptTexts& kept, const std::string& name) const;

    // Completes the spec of a pass. The forward pass fills `saved`, the backward pass finds it filled.
    void apply(AttentionSpec& spec, StepContext& run, const Memory& memory, const Tensor& xn,
               const LayerTables& tables, bool fill) const;
    // Where attention_backward puts the gradient of C.
    Tensor gradient(const Buffers& buffers, int64_t tokens) const;
    void backward(StepContext& run, const Memory& memory, const LayerTables& tables) const;
    void backward_input(StepContext& run, Tensor dxn, const Buffers& buffers, const Tensor& xn) const;

  private:
    std::shared_ptr<const ScoreLaw> sums_;
};

}  // namespace longreach::model
