// Treatment of the heads of queries, keys or values after projection: norm, gain, rotary.
#pragma once

#include <cmath>

#include "model/arena.h"
#include "model/attention_config.h"
#include "model/step_context.h"
#include "model/tables.h"

namespace longreach::model {

class Heads {
  public:
    enum class Part { queries, keys, values };
    struct Saved {
        Tensor normalised;  // [N, heads*d] before the gain; only with one
        Tensor inverse;     // [N, heads], or [N] of a norm over all heads; only with a norm
    };

    Heads() = default;
    // name: "layers.3.attention."; grows: rotation changes their length.
    Heads(ParamTable& table, const std::string& name, const AttentionConfig& config, Part part,
          bool grows = false);
    Saved plan(Arena& arena, const std::string& name, int64_t tokens) const;

    // In place on x [N, heads*d]. ones: [d].
    void forward(StepContext& run, const Saved& saved, Tensor x, const Rotation& rotation,
                 const Tensor& ones) const;
    // In place on dx, the gradient at the treated heads on entry and at the projected heads on return.
    // x: the treated heads.
    void backward(StepContext& run, Tensor dx, const Tensor& x, const Saved& saved, const Rotation& rotation,
                  const Tensor& ones) const;

    // The number by which scores must be divided: unit vectors are computed as RMS norms, whose length is
    // sqrt(d). 1 for heads that are not unit vectors.
    double length() const { return unit_ ? std::sqrt(static_cast<double>(head_dim_)) : 1.0; }

  private:
    NormSpec full_norm() const { return {NormKind::rms, static_cast<float>(eps_)}; }
    HeadSpec spec(const StepContext& run, const Rotation& rotation, const Tensor& ones) const;

    int64_t heads_ = 0, head_dim_ = 0;
    HeadNorm norm_ = HeadNorm::none;
    double eps_ = 0;
    bool unit_ = false;
    bool full_ = false;  // one RMS norm over all heads, before the rotation
    // With a norm and a rotation that grows, the gradient of the norm cannot be had from the treated heads: a gain of
    // ones makes the operation keep the normed ones.
    bool keeps_normalised_ = false;
    ParamRef gain_, bias_, log_eps_;
};

// Heads that are turned alone, without a norm.
HeadSpec turned_heads(const StepContext& run, int64_t heads, int64_t head_dim, const Rotation& rotation);

}  // namespace longreach::model
