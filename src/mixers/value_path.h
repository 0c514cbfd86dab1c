// Turns projected values into the values that attention reads:
//
//     v = (1 - lambda) v + lambda v_first     value residual, layers after the first
//     v = l0 v + l1 table[token]              value embeddings
//     v = norm(v)
//
// v_first: the projected values of layer 0. Each step is optional.
#pragma once

#include "mixers/heads.h"
#include "model/mixer.h"
#include "model/model_config.h"

namespace longreach::model {

class ValuePath {
  public:
    struct Saved {
        Tensor mixed;     // [N, G d] after the value residual; only with it
        Tensor embedded;  // [N, G d] after value embeddings; only with them
        Heads::Saved norm;
    };

    ValuePath() = default;
    ValuePath(ParamTable& table, const ModelConfig& model, int64_t layer);
    Saved plan(Arena& arena, const std::string& name, int64_t tokens) const;
    bool mixes() const { return lambda_ || table_; }

    // The values attention reads: `projected` itself, or the last buffer of `saved`.
    Tensor result(const Saved& saved, const Tensor& projected) const;
    Tensor forward(StepContext& run, const Saved& saved, const Tensor& projected,
                   const SharedValues& shared) const;
    // dvalues: gradient at result(), overwritten; it may be dprojected if nothing is mixed.
    // dprojected = the gradient at the projected values.
    void backward(StepContext& run, Tensor dprojected, Tensor dvalues, const Saved& saved,
                  const Tensor& projected, const SharedValues& shared) const;

  private:
    Coefficient own_share(const StepContext& run) const { return {run.weight(lambda_), -1, 1}; }
    Coefficient first_share(const StepContext& run) const { return {run.weight(lambda_), 1, 0}; }

    int64_t width_ = 0;
    bool provides_first_ = false;
    ParamRef lambda_;
    ParamRef table_, own_weight_, table_weight_;
    Heads norm_;
};

}  // namespace longreach::model
