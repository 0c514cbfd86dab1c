// The feed-forward part of a block.
//
//     relu2:         h = max(0, xn Wup^T)^2,  x += h Wdown^T      only h is kept
//     others:        a = xn Wup^T, h = act(a), x += h Wdown^T     a and h are kept; gated: Wup holds gate|up
// With biases, a and x gain one more term each.
#pragma once

#include "model/arena.h"
#include "model/model_config.h"
#include "model/step_context.h"

namespace longreach::model {

class Mlp {
  public:
    struct Saved {
        Tensor a;  // [N, F] or [N, 2F] before the activation; empty for relu2
        Tensor h;  // [N, F]
    };
    struct Workspace {
        Tensor da;  // [N, F] or [N, 2F]
        Tensor dh;  // [N, F]; empty for relu2
    };

    Mlp() = default;
    Mlp(ParamTable& table, const ModelConfig& model, int64_t layer);
    Saved plan(Arena& arena, const std::string& name, int64_t tokens) const;
    Workspace plan_workspace(Arena& arena, int64_t tokens) const;

    // y = or += mlp(xn).
    void forward(StepContext& run, const Saved& saved, Tensor y, Write write, const Tensor& xn) const;
    void backward(StepContext& run, Tensor dxn, const Tensor& dy, const Saved& saved,
                  const Workspace& workspace, const Tensor& xn) const;

  private:
    Activation activation() const;
    int64_t up_width() const { return gated_ ? 2 * hidden_ : hidden_; }
    // The columns of a [N, F or 2F] to which up_bias_ belongs.
    Tensor up_of(const Tensor& a) const { return a.col_range(up_width() - hidden_, hidden_); }

    MlpKind kind_ = MlpKind::relu2;
    bool gated_ = false;
    int64_t hidden_ = 0;
    ParamRef up_, down_;
    ParamRef gate_bias_, up_bias_, down_bias_;
};

}  // namespace longreach::model
