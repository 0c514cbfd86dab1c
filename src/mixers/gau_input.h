// Queries, keys and values of a gated attention unit, for attention of H heads of d channels:
//
//     v|z = silu(xn Wvz^T)         [N, H d + d]
//     q   = z * gain_q + bias_q    [N, d], the same for every head; k likewise
//
// Every head gets a copy of the one query and key, since attention's heads have values no wider than d: the products
// of queries and keys are computed H times.
#pragma once

#include "mixers/qkv_heads.h"
#include "model/layout_rules.h"

namespace longreach::model {

inline bool gated_unit(const AttentionConfig& layout) {
    return layout.mixer == "gau";
}

void check_gau(const LayoutRules& rules);
void check_gau_norms(const ModelConfig& model, const LayoutRules& rules);

class GauInput : public QkvHeads {
  public:
    struct Memory : QkvHeads::Memory {
        Tensor projected;    // [N, H d + d] v|z before the silu
        Tensor z;            // [N, d]
        Tensor dprojected;   // [N, H d + d]
        Tensor dz, dz_keys;  // [N, d]
    };

    GauInput(ParamTable& table, const ModelConfig& model, int64_t layer);
    std::unique_ptr<QkvSource::Memory> plan(Arena& arena, const std::string& name,
                                            int64_t tokens) const override;
    void plan_workspace(QkvSource::Memory& memory, Arena& arena, int64_t tokens,
                        bool training) const override;
    void forward(StepContext& run, const QkvSource::Memory& memory, const Tensor& qkv,
                 const Tensor& xn) const override;
    void backward(StepContext& run, Tensor dxn, const Tensor& dqkv, const Tensor& qkv,
                  const QkvSource::Memory& memory, const Tensor& xn,
                  const LayerTables& tables) const override;
    // By the largest score of each head, all of which are equal.
    void clip_scores(Ops& ops, const FlatParams& weights, const Tensor& maxima, float limit) const override;

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
