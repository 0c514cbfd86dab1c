// Normalisation of the residual stream: RMSNorm or LayerNorm, parameter-free or with a
// learned gain (and bias).
#pragma once

#include "model/arena.h"
#include "model/model_config.h"
#include "model/step_context.h"

namespace longreach::model {

class Norm {
  public:
    struct Saved {
        Tensor y;           // [N, C] what the next matrix product reads
        Tensor normalised;  // [N, C] before gain and bias; the same memory as y when there is no gain
        Tensor inverse;     // [N] 1 / deviation
    };

    Norm() = default;
    Norm(ParamTable& table, const std::string& name, const NormConfig& config, int64_t width);
    // A norm that follows a module. It always has a gain, which starts at config.out_gain.
    static Norm after(ParamTable& table, const std::string& name, NormConfig config, int64_t width);

    Saved plan(Arena& arena, const std::string& name, int64_t tokens) const;
    void forward(StepContext& run, const Saved& saved, const Tensor& x) const;
    // x becomes the norm of x, and is saved as such. Without a gain.
    void replace(StepContext& run, const Saved& saved, Tensor x) const;
    // dx = or += the gradient at x, from dy at y. dx may be dy when write is set.
    void backward(StepContext& run, Tensor dx, const Tensor& dy, const Saved& saved, Write write) const;

  private:
    Norm(ParamTable& table, const std::string& name, const NormConfig& config, int64_t width,
         double first_gain);

    NormSpec spec_;
    ParamRef gain_, bias_;
    int64_t width_ = 0;
};

}  // namespace longreach::model
