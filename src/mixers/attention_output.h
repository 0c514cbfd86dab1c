// The steps between attention and its output projection: a norm of the heads' outputs, or a factor, then gates.
//
//     o = rms(o)                          over each head, or over all of them
//     o = factor(p) o                     instead, p the position
//     o = o - <o, v> / <v, v> v           instead, over each head, v the token's own value
//     o = factor sigmoid(xn Wg^T) * o     one gate per head or per channel; xn: the input of the queries
//     o = silu(xn Wu^T) * o               instead, in a gated attention unit, by channel
#pragma once

#include "model/arena.h"
#include "model/model_config.h"
#include "model/step_context.h"
#include "model/tables.h"

namespace longreach::model {

class AttentionOutput {
  public:
    struct Saved {
        Tensor inverse;     // [N * groups] of the norm
        Tensor normalised;  // [N * groups, H d / groups] before the gain; no gain: memory of normed
        Tensor normed;      // [N, H d]; or times the factor, or without the own value
        Tensor u;           // [N, H or H d] gates before the sigmoid
        Tensor gated;       // [N, H d]
    };
    struct Workspace {
        Tensor du;       // [N, H or H d]
        Tensor dvalues;  // [N, G d] of own values
    };
    struct Inputs {
        Tensor o, xn;      // xn: of the gates
        Tensor v;          // [N, G d]
        Rotation factors;  // of the position, as cosines of a rotation that does not turn
    };

    AttentionOutput() = default;
    AttentionOutput(ParamTable& table, const ModelConfig& model, int64_t layer);
    Saved plan(Arena& arena, const std::string& name, int64_t tokens) const;
    Workspace plan_workspace(Arena& arena, int64_t tokens) const;
    // Before the sigmoid; empty without gates that are a sigmoid.
    Tensor gates_of(const Saved& saved, int64_t tokens) const {
        return gate_spec_.times_input ? Tensor() : saved.u.first_rows_if_any(tokens);
    }

    // What the output projection reads.
    Tensor result(const Saved& saved, const Tensor& o) const;
    Tensor forward(StepContext& run, const Saved& saved, const Inputs& in) const;
    // dout: the gradient at result() on entry and at o on return.
    void backward(StepContext& run, Tensor dout, const Saved& saved, const Workspace& workspace,
                  const Inputs& in) const;
    // dv += and dxn += the gradients that do not pass through o. Call them after backward().
    void backward_values(StepContext& run, Tensor dv, const Workspace& workspace) const;
    void backward_input(StepContext& run, Tensor dxn, const Workspace& workspace) const;

  private:
    void add_gates(ParamTable& table, const ModelConfig& model, const std::string& name,
                   const AttentionConfig& config);
    Tensor groups_of(const Tensor& x) const;  // x [N, H d] as one row per group
    bool changes_output() const { return groups_ > 0 || multiplies_ || exclusive_; }  // before the gates
    Tensor normed(const Saved& saved, const Tensor& o) const;
    Tensor gate_input(const Tensor& xn) const;
    HeadSpec multiplied(const StepContext& run, const Rotation& factors) const;

    int64_t width_ = 0;   // H d
    int64_t groups_ = 0;  // per token, each normed separately; 0: no norm
    int64_t heads_ = 0, head_dim_ = 0;
    int64_t value_width_ = 0;
    bool multiplies_ = false;  // by the factor of the position
    bool exclusive_ = false;   // without the own value
    NormSpec norm_;
    ParamRef gain_, gate_;
    int64_t gates_ = 0, gate_inputs_ = 0;
    GateSpec gate_spec_;
};

}  // namespace longreach::model
