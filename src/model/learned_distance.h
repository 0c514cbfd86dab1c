// Distance tables computed from learned numbers: tau and decay of the logarithmic forms, p and a of KERPLE.
#pragma once

#include "model/arena.h"
#include "model/attention_config.h"
#include "model/step_context.h"

namespace longreach::model {

class LearnedDistance {
  public:
    // Tables and their gradients, f32 [1 or H, R]. All layers share them; each fills them before using them.
    struct Buffers {
        Tensor gain, bias, dgain, dbias;
    };

    LearnedDistance() = default;
    LearnedDistance(ParamTable& table, const std::string& name, const AttentionConfig& config);
    explicit operator bool() const { return active_; }
    Buffers plan(Arena& arena, int64_t longest, bool training) const;  // R: the longest sequence

    void forward(StepContext& run, const Buffers& own) const;
    void backward(StepContext& run, const Buffers& own) const;

  private:
    DistanceFormSpec spec(const StepContext& run) const;

    bool active_ = false;
    DistanceConfig config_;
    int64_t bias_rows_ = 1;
    ParamRef log_tau_, decay_, p_, a_;
};

}  // namespace longreach::model
