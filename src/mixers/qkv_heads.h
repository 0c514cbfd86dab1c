// A source whose key heads have keys and values of their own, which a generation keeps.
#pragma once

#include "mixers/heads.h"
#include "mixers/qkv_source.h"
#include "model/model_config.h"

namespace longreach::model {

class QkvHeads : public QkvSource {
  public:
    struct Memory : QkvSource::Memory {
        Heads::Saved queries, keys;
        Tensor kept_keys, kept_values, kept_far_keys;  // [B R, G d]; far ones only if there may be far pairs
    };
    void add_heads(ParamTable& table, bool grows) override;
    Qkv parts_of(const Tensor& qkv) const override {  // side by side
        const int64_t q = query_width(), v = value_width();
        return {qkv.col_range(0, q), qkv.col_range(q, v), qkv.col_range(q + v, v)};
    }
    double base(double given) const override { return given / queries_.length() / keys_.length(); }
    void plan_kept(QkvSource::Memory& memory, KeptTexts& kept, const std::string& name,
                   bool far) const override;
    void turn(StepContext& run, const QkvSource::Memory& memory, const Tensor& q, const Tensor& k,
              const LayerTables& tables, bool far) const override;
    void keep(StepContext& run, const QkvSource::Memory& memory, const Tensor& k, const Tensor& v,
              const Tensor& far_keys) const override;
    void decode(StepContext& run, const QkvSource::Memory& memory, const Tensor& o, const Tensor& q,
                AttentionSpec scores, int64_t first) const override;

  protected:
    QkvHeads(const ModelConfig& model, int64_t layer)
        : config_(model.layer_attention(layer)), name_(fmt::format("layers.{}.attention.", layer)) {}
    void plan_heads(Memory& memory, Arena& arena, const std::string& name, int64_t tokens) const;
    // The gradients before turn().
    void turn_back(StepContext& run, const Tensor& dqkv, const Tensor& qkv, const Memory& memory,
                   const LayerTables& tables) const;
    int64_t query_width() const { return config_.heads * config_.head_dim; }
    int64_t value_width() const { return config_.kv() * config_.head_dim; }

    AttentionConfig config_;
    std::string name_;  // of the layer's tensors, up to the last dot

  private:
    Heads queries_, keys_;
};

}  // namespace longreach::model
