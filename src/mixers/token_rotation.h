// Queries and keys turned by sums over tokens in place of positions.
//
//     a_g(i) = the step's formula of <w_g, xn_i> + b_g     of each key head g
//     c_g(i) = sum over i' <= i of a_g(i')                 along the whole sequence
//     pair m of the head turns by theta_m c_g(i)           so that a pair of tokens sees the sum between them
#pragma once

#include <memory>

#include "mixers/qkv_source.h"
#include "mixers/score_law.h"

namespace longreach::model {

class TokenRotation {
  public:
    struct Saved {
        ScoreLaw::Saved steps;
        Tensor cosine, sine;  // f32 [N, G pairs]
    };
    struct Memory {
        const Saved& saved;
        const ScoreLaw::Buffers& buffers;
        const ScoreLaw::Cache& cache;
    };

    TokenRotation() = default;
    TokenRotation(ParamTable& table, const ModelConfig& model, int64_t layer);  // of a layer with a step
    explicit operator bool() const { return steps_ != nullptr; }

    Saved plan(Arena& arena, const std::string& name, int64_t tokens) const;
    ScoreLaw::Buffers plan_buffers(Arena& arena, int64_t tokens, int64_t longest, bool training) const;
    ScoreLaw::Cache plan_kept(KeptTexts& kept, const std::string& name) const;

    // In place on q [N, H d] and k [N, G d], whose heads are normed.
    void forward(StepContext& run, const Memory& memory, const Tensor& q, const Tensor& k, const Tensor& xn,
                 const LayerTables& tables) const;
    // In place on dq and dk, the gradients at the turned q and k on entry and before the turn on return.
    void backward(StepContext& run, const Memory& memory, const Qkv& gradients, const Qkv& turned,
                  const LayerTables& tables) const;
    void backward_input(StepContext& run, Tensor dxn, const ScoreLaw::Buffers& buffers,
                        const Tensor& xn) const {
        steps_->backward_input(run, dxn, buffers, xn);
    }

  private:
    HeadSpec turned(const Saved& saved, int64_t tokens, int64_t heads) const;

    std::shared_ptr<const ScoreLaw> steps_;
    int64_t heads_ = 0, key_heads_ = 0, head_dim_ = 0, pairs_ = 0;
};

}  // namespace longreach::model
