// Queries, keys and values as projections of the input.
//
//     q|k|v   = xn Wqkv^T + bias                   [N, Q], Q = (H + 2G) d
//     q, k, v = short convolutions of them         optional
//     q, k = rotary(norm(q)), rotary(norm(k))      qkv_heads.h
#pragma once

#include "mixers/qkv_heads.h"

namespace longreach::model {

class QkvProjection : public QkvHeads {
  public:
    struct Memory : QkvHeads::Memory {
        // [N, Q] before the convolutions; in pieces after K - 1 earlier rows. With convolutions.
        Tensor projected, dprojected;
        // [B K, Q]: the last K projected rows of every sequence, and their convolutions; with convolutions.
        Tensor recent, convolved;
    };

    QkvProjection(ParamTable& table, const ModelConfig& model, int64_t layer);
    void add_biases(ParamTable& table) override;
    void add_convolutions(ParamTable& table) override;
    std::unique_ptr<QkvSource::Memory> plan(Arena& arena, const std::string& name,
                                            int64_t tokens) const override;
    void plan_workspace(QkvSource::Memory& memory, Arena& arena, int64_t tokens,
                        bool training) const override;
    void plan_kept(QkvSource::Memory& memory, KeptTexts& kept, const std::string& name,
                   bool far) const override;
    void plan_pieces(QkvSource::Memory& memory, KeptTexts& kept, const std::string& name) const override;
    void forward(StepContext& run, const QkvSource::Memory& memory, const Tensor& qkv,
                 const Tensor& xn) const override;
    void backward(StepContext& run, Tensor dxn, const Tensor& dqkv, const Tensor& qkv,
                  const QkvSource::Memory& memory, const Tensor& xn,
                  const LayerTables& tables) const override;
    void clip_scores(Ops& ops, const FlatParams& weights, const Tensor& maxima, float limit) const override;

  private:
    int64_t total_width() const { return query_width() + 2 * value_width(); }
    bool convolves() const { return q_conv_ || k_conv_ || v_conv_; }
    void add_biases_to(StepContext& run, const Tensor& projected) const;

    ParamRef qkv_, query_, key_;
    ParamRef q_bias_, k_bias_, v_bias_;
    ParamRef q_conv_, k_conv_, v_conv_;
};

}  // namespace longreach::model
