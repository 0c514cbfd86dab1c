// Queries, keys and values of a gated attention unit, for attention of H heads of d channels:
//
//     v|z = silu(xn Wvz^T)         [N, H d + d]
//     q   = z * gain_q + bias_q    [N, d], the same for every head; k likewise
//
// Every head gets a copy of the one query and key, since attention's heads have values no wider than d: the products
// of queries and keys are computed H times.
#pragma once

#include "model/arena.h"
#include "model/layout_rules.h"
#include "model/model_config.h"
#include "model/step_context.h"

namespace longreach::model {

void check_gau(const LayoutRules& rules);
void check_gau_norms(const ModelConfig& model, const LayoutRules& rules);
std::string gau_words(const AttentionConfig& layout);

class GauInput {
  public:
    struct Saved {
        Tensor projected;  // [N, H d + d] v|z before the silu
        Tensor z;          // [N, d]
    };
    struct Workspace {
        Tensor dprojected;   // [N, H d + d]
        Tensor dz, dz_keys;  // [N, d]
    };

    GauInput() = default;
    GauInput(ParamTable& table, const ModelConfig& model, int64_t layer);
    explicit operator bool() const { return static_cast<bool>(matrix_); }
    Saved plan(Arena& arena, const std::string& name, int64_t tokens) const;
    Workspace plan_workspace(Arena& arena, int64_t tokens) const;

    // q, k, v [N, H d] =.
    void forward(StepContext& run, const Saved& saved, const Tensor& q, const Tensor& k, const Tensor& v,
                 const Tensor& xn) const;
    // dxn = the gradient at xn. dq, dk: gradients at the copies of all heads, overwritten.
    void backward(StepContext& run, Tensor dxn, const Tensor& dq, const Tensor& dk, const Tensor& dv,
                  const Saved& saved, const Workspace& workspace, const Tensor& xn) const;
    // QK-clip by the largest score of each head, all of which are equal.
    void clip(Ops& ops, const FlatParams& weights, const Tensor& maxima, float limit) const;

  private:
    struct Affine {
        ParamRef gain, bias;
    };
    Tensor head(const Tensor& x, int64_t h) const { return x.col_range(h * dim_, dim_); }
    Tensor values_of(const Tensor& x) const { return x.col_range(0, heads_ * dim_); }
    Tensor z_of(const Tensor& x) const { return x.col_range(heads_ * dim_, dim_); }
    void spread(StepContext& run, const Tensor& copies, const Tensor& z, const Affine& affine) const;
    void gather(StepContext& run, const Tensor& dz, const Tensor& dcopies, const Tensor& z,
                const Affine& affine) const;

    int64_t heads_ = 0, dim_ = 0;
    ParamRef matrix_;
    Affine query_, key_;
};

}  // namespace longreach::model
