// The steps between attention and its output projection: a difference of heads, a norm of their outputs, or a factor, then
// gates. F heads reach the projection: all H, or of differences half of them.
//
//     o = o_2k - sigmoid(xn Wd^T) o_2k+1  one number for each pair of heads, which read the same keys and values
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
        Tensor share;       // [N, F] of the second heads, before the sigmoid
        Tensor difference;  // [N, F d]
        Tensor inverse;     // [N * groups] of the norm
        Tensor normalised;  // [N * groups, F d / groups] before the gain; no gain: memory of normed
        Tensor normed;      // [N, F d]; or times the factor, or without the own value
        Tensor u;           // [N, F or F d] gates before the sigmoid
        Tensor gated;       // [N, F d]
    };
    struct Workspace {
        Tensor dshare;       // [N, F]
        Tensor ddifference;  // [N, F d]
        Tensor du;           // [N, F or F d]
        Tensor dvalues;      // [N, G d] of own values
    };
    struct Inputs {
        Tensor o, xn;      // o [N, H d]; xn: of differences and gates
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
    // Where the gradient at result() is before backward(): a part of the workspace, or dout.
    Tensor gradient(const Workspace& workspace, const Tensor& dout) const {
        return differs_ ? workspace.ddifference.first_rows(dout.rows()) : dout;
    }
    // dout [N, H d]: the gradient at o on return.
    void backward(StepContext& run, Tensor dout, const Saved& saved, const Workspace& workspace,
                  const Inputs& in) const;
    // dv += and dxn += the gradients that do not pass through o. Call them after backward().
    void backward_values(StepContext& run, Tensor dv, const Workspace& workspace) const;
    void backward_input(StepContext& run, Tensor dxn, const Workspace& workspace) const;

  private:
    void add_gates(ParamTable& table, const ModelConfig& model, const std::string& name,
                   const AttentionConfig& config);
    // Of o [N, H d], the outputs of each pair's first or second head: [N F, d].
    Tensor of_pairs(const Tensor& o, int64_t which) const {
        return o.shaped({o.rows() * heads_, 2 * head_dim_}).col_range(which * head_dim_, head_dim_);
    }
    Tensor of_heads(const Tensor& x, int64_t channels) const {  // x [N, F channels] as one row per head
        return x.shaped({x.rows() * heads_, channels});
    }
    void subtract(StepContext& run, const Saved& saved, const Inputs& in) const;
    void subtract_backward(StepContext& run, const Tensor& dout, const Saved& saved,
                           const Workspace& workspace, const Inputs& in) const;
    // What norms and gates read.
    Tensor subtracted(const Saved& saved, const Tensor& o) const {
        return differs_ ? saved.difference.first_rows(o.rows()) : o;
    }
    Tensor groups_of(const Tensor& x) const;  // x [N, F d] as one row per group
    bool changes_output() const { return groups_ > 0 || multiplies_ || exclusive_; }  // before the gates
    Tensor normed(const Saved& saved, const Tensor& o) const;
    Tensor gate_input(const Tensor& xn) const;
    HeadSpec multiplied(const StepContext& run, const Rotation& factors) const;

    int64_t width_ = 0;                 // F d
    int64_t groups_ = 0;                // per token, each normed separately; 0: no norm
    int64_t heads_ = 0, head_dim_ = 0;  // F, d
    int64_t value_width_ = 0;
    bool differs_ = false;     // pairs of heads give one output
    bool multiplies_ = false;  // by the factor of the position
    bool exclusive_ = false;   // without the own value
    NormSpec norm_;
    ParamRef share_, gain_, gate_;
    int64_t gates_ = 0, gate_inputs_ = 0;
    GateSpec gate_spec_;
};

}  // namespace longreach::model
