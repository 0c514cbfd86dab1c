// What happens to the heads of queries, of keys or of values after projection: norm, gain, rotary.
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
        Tensor inverse;     // [N, heads]; only with a norm
    };

    Heads() = default;
    // name: "layers.3.attention."
    Heads(ParamTable& table, const std::string& name, const AttentionConfig& config, Part part);
    Saved plan(Arena& arena, const std::string& name, int64_t tokens) const;

    // In place on x [N, heads*d].
    void forward(StepContext& run, const Saved& saved, Tensor x, const Rotation& rotation) const;
    // In place on dx: from the gradient at the treated heads to the gradient before. x: the treated ones.
    void backward(StepContext& run, Tensor dx, const Tensor& x, const Saved& saved,
                  const Rotation& rotation) const;

    // Unit vectors are made as RMS norms, which are sqrt(d) long: what scores are to be divided by for it.
    double length() const { return unit_ ? std::sqrt(static_cast<double>(head_dim_)) : 1.0; }

  private:
    HeadSpec spec(const StepContext& run, const Rotation& rotation) const;

    int64_t heads_ = 0, head_dim_ = 0;
    HeadNorm norm_ = HeadNorm::none;
    double eps_ = 0;
    bool unit_ = false;
    ParamRef gain_, bias_, log_eps_;
};

}  // namespace longreach::model
