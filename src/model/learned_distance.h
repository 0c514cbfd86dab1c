// Distance tables that follow learned numbers: tau and decay of the logarithmic forms, p and a of KERPLE.
#pragma once

#include "model/arena.h"
#include "model/attention_config.h"
#include "model/step_context.h"

namespace longreach::model {

class LearnedDistance {
  public:
    // Tables and their gradients, f32 [rows, R]; every layer fills them anew, so all layers share them.
    struct Buffers {
        Tensor gain, bias, dgain, dbias;
    };

    LearnedDistance() = default;
    LearnedDistance(ParamTable& table, const std::string& name, const AttentionConfig& config);
    explicit operator bool() const { return active_; }
    int64_t bias_rows() const { return bias_rows_; }

    // For the layer with most bias rows; R is the longest sequence of the plan.
    static Buffers plan(Arena& arena, int64_t bias_rows, int64_t longest, bool training);
    // This layer's part of the buffers.
    Buffers of(const Buffers& shared) const;

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
