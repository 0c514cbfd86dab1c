// One attention layer: projections, value mixing, query/key treatment, rotary, attention, output projection.
//
//     qkv = xn Wqkv^T                       [N, Q], Q = (H + 2G) d
//     v   = (1 - lambda) v + lambda v_first (value residual, layers after the first)
//     q,k = rotary(norm(q)), rotary(norm(k))
//     o   = attention(q, k, v)              [N, H d]
//     x  += o Wo^T
#pragma once

#include "model/arena.h"
#include "model/model_config.h"
#include "model/step_context.h"
#include "model/tables.h"

namespace longreach {

class AttentionLayer {
  public:
    struct Saved {
        Tensor qkv;      // [N, Q]: prepared q and k, v as projected
        Tensor values;   // [N, G d] mixed values; empty without value residual
        Tensor inverse;  // [N, H + G] of the query/key norm; empty without it
        Tensor o;        // [N, H d]
        Tensor lse;      // [H, N]
    };
    // Gradients that live only inside one backward call; shared by all layers.
    struct Workspace {
        Tensor dqkv;       // [N, Q]
        Tensor dvalues;    // [N, G d], with value residual
        Tensor dout;       // [N, H d]
        Tensor attention;  // what the attention backward asks for
    };

    AttentionLayer(ParamTable& table, const ModelConfig& model, int64_t layer);

    Saved plan(Arena& arena, const std::string& name, int64_t tokens) const;
    // For the largest layer: the workspace of `layers`, reserved once. lengths: every (tokens, T) it must
    // serve.
    static Workspace plan_workspace(Arena& arena, Ops& ops, const std::vector<const AttentionLayer*>& layers,
                                    int64_t tokens, const std::vector<int64_t>& lengths);

    // x += attention(xn). first_values: values of layer 0 as projected (with value residual, layers after the
    // first).
    void forward(StepContext& run, const Saved& saved, Tensor x, const Tensor& xn,
                 const Tensor& first_values) const;
    // dxn = gradient at xn from dx at the output. With value residual dfirst_values += in the layers that
    // take the first layer's values, and in the first layer `later` is what they gathered: the gradient at
    // its own values.
    void backward(StepContext& run, Tensor dxn, Tensor dfirst_values, const Tensor& later, const Tensor& dx,
                  const Saved& saved, const Workspace& workspace, const Tensor& xn,
                  const Tensor& first_values) const;

    void set_tables(const LayerTables& tables) { tables_ = tables; }
    void set_window(int64_t window) { window_ = window; }  // a stage may narrow it
    int64_t window() const { return window_; }
    int64_t configured_window() const { return config_.window; }
    Tensor values_of(const Saved& saved, int64_t tokens) const;  // the value columns of qkv
    int64_t value_width() const { return config_.kv() * config_.head_dim; }
    double flops_per_token(int64_t length) const;  // forward, of the score and value products

  private:
    int64_t query_width() const { return config_.heads * config_.head_dim; }
    int64_t total_width() const { return query_width() + 2 * value_width(); }
    HeadSpec head_spec(int64_t length, int64_t heads) const;
    AttentionSpec attention_spec(const StepContext& run) const;
    AttentionSpec attention_shape(int64_t batch, int64_t length) const;

    AttentionConfig config_;
    int64_t window_;
    bool mixes_values_ = false;
    ParamRef qkv_, out_, lambda_;
    LayerTables tables_;
};

}  // namespace longreach
