// Forget gates of an attention layer (forgetting attention): y_ij += c_i - c_j with
//
//     c_h(i) = sum over i' <= i of log f_h(i'),     f_h(i) = sigmoid(<w_h, xn_i> + b_h)
//
// so that what a query sees of a key fades with every gate between them. Sums run along the whole sequence and
// take no notice of documents, windows and chunks. A mask decides which differences are used; the difference of
// two positions of a document contains no gate of another one. The first gate of a document has no effect.
#pragma once

#include "model/arena.h"
#include "model/model_config.h"
#include "model/step_context.h"

namespace longreach::model {

class ForgetGate {
  public:
    struct Saved {
        Tensor u;     // [N, H] before the bias
        Tensor sums;  // f64 [H, N]: c
    };
    struct Workspace {
        Tensor dsums;  // f32 [H, N]
        Tensor du;     // [N, H]
    };

    ForgetGate() = default;
    ForgetGate(ParamTable& table, const ModelConfig& model, int64_t layer);
    explicit operator bool() const { return static_cast<bool>(weight_); }

    Saved plan(Arena& arena, const std::string& name, int64_t tokens) const;
    Workspace plan_workspace(Arena& arena, int64_t tokens) const;
    // f64 [H, B R]: c of what a generation has read.
    Tensor plan_cache(Arena& arena, const std::string& name, int64_t sequences, int64_t room) const;

    // c as attention reads it: of the pass, or of a decoding step with everything before it.
    Tensor forward(StepContext& run, const Saved& saved, const Tensor& cache, const Tensor& xn) const;
    Tensor sums(const Saved& saved, int64_t tokens) const;
    Tensor gradient(const Workspace& workspace, int64_t tokens) const;  // f32 [H, N], at c
    // dxn += what arrives through the gates.
    void backward(StepContext& run, Tensor dxn, const Saved& saved, const Workspace& workspace,
                  const Tensor& xn) const;

  private:
    int64_t heads_ = 0;
    ParamRef weight_, bias_;
};

}  // namespace longreach::model
