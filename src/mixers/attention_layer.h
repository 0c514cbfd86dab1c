// Softmax or stick-breaking attention.
//
//     qkv = made of xn, q and k normed and turned  [N, Q], Q = (H + 2G) d; qkv_source.h
//     v   = mixed and normed values                value_path.h
//     c   = sums of the gates of xn                optional, forget_gate.h
//     o   = attention(q, k, v)                     [N, H d]; scores: attention_spec.h
//     y  += output(o) Wo^T                         attention_output.h
#pragma once

#include "mixers/attention_output.h"
#include "mixers/forget_gate.h"
#include "mixers/key_index.h"
#include "mixers/qkv_source.h"
#include "mixers/score_law.h"
#include "mixers/value_path.h"
#include "model/arena.h"
#include "model/attention_mixer.h"
#include "model/model_config.h"

namespace longreach::model {

class AttentionLayer : public AttentionMixer {
  public:
    // What lives only inside one call.
    struct Workspace {
        ScoreLaw::Buffers score;
        Tensor row_maxima;  // [H, N]
        Tensor dqkv;        // [N, Q]
        Tensor dvalues;     // [N, G d], if values are mixed
        Tensor dout;        // [N, H d]
        AttentionOutput::Workspace output;
        ForgetGate::Workspace forget;
        KeyIndex::Workspace index;
        Tensor attention;  // workspace of the attention backward
    };
    struct Saved : Memory {
        std::unique_ptr<QkvSource::Memory> source;
        Tensor qkv;                    // [N, Q]: q, k and, unless values are mixed, v as attention reads them
        Tensor far_queries, far_keys;  // [N, H d], [N, G d] of far pairs; evaluation only
        ValuePath::Saved values;
        ScoreLaw::Saved score;
        Tensor o;    // [N, H d]
        Tensor lse;  // [H, N]
        AttentionOutput::Saved output;
        ForgetGate::Saved forget;
        Workspace workspace;
        Tensor kept_gates;       // ForgetGate::plan_cache
        Tensor kept_index_keys;  // KeyIndex::plan_cache, if it chooses keys
    };

    // source: whose matrices are in the table.
    AttentionLayer(ParamTable& table, const ModelConfig& model, int64_t layer,
                   std::unique_ptr<QkvSource> source);

    std::unique_ptr<Memory> plan(Arena& arena, const std::string& name, int64_t tokens,
                                 const std::vector<int64_t>& lengths, bool training) const override;
    void plan_workspace(Memory& memory, Arena& arena, Ops& ops, int64_t tokens,
                        const std::vector<int64_t>& lengths, bool training) const override;
    void plan_decoding(Memory& memory, Arena& arena, const std::string& name, int64_t sequences,
                       int64_t room) const override;
    void forward(StepContext& run, const Memory& memory, Tensor y, Write write, const Tensor& xn,
                 const SharedValues& shared) const override;
    void backward(StepContext& run, Tensor dxn, const Tensor& dy, const Memory& memory, const Tensor& xn,
                  const SharedValues& shared) const override;
    double flops_per_token(int64_t length) const override;  // of the score and value products

    int64_t layer() const override { return layer_; }
    Reach reach() const override { return configured_reach(); }
    void set_stage_window(int64_t window) override { reach_ = configured_reach().narrowed(window); }
    void use_tables(const Tables& tables) override {
        tables_ = tables.layer(layer_);
        score_rows_ = tables.score_rows(layer_);
        far_pairs_ = tables.has_far_pairs(layer_);
        index_chooses_ = index_ && tables.takes_top_by_index();
    }
    void gather_maxima(Tensor max, bool absolute) override;
    void clip_scores(Ops& ops, const FlatParams& weights, float limit) const override;
    bool has_index() const override { return bool(index_); }
    void place_index_losses(int64_t place) override { index_place_ = place; }
    void learn_index(StepContext& run, const Memory& memory, const Tensor& xn) const override;

  private:
    int64_t query_width() const { return config_.heads * config_.head_dim; }
    int64_t value_width() const { return config_.kv() * config_.head_dim; }
    int64_t total_width() const { return query_width() + 2 * value_width(); }
    Reach configured_reach() const { return {config_.window, config_.chunk}; }
    // First key that the token of a decoding step sees.
    int64_t first_key(int64_t position) const;
    AttentionSpec shape(int64_t batch, int64_t length) const;
    // The spec of a pass. The forward pass fills the buffers it points to; the backward pass reads them.
    AttentionSpec spec(StepContext& run, const Saved& saved, bool fill) const;

    AttentionConfig config_;
    int64_t layer_;
    Reach reach_;  // narrowed by the stage
    std::unique_ptr<QkvSource> source_;
    ParamRef out_, out_bias_, sink_;
    ValuePath values_;
    ScoreLaw score_;
    AttentionOutput output_;
    ForgetGate forget_;
    KeyIndex index_;
    double base_ = 1;  // factor of <q, k>
    LayerTables tables_;
    ScoreRows score_rows_;
    bool far_pairs_ = false;
    Tensor maxima_;  // [H]
    bool gathers_maxima_ = false, absolute_maxima_ = false;
    bool index_chooses_ = false;  // in evaluations
    int64_t index_place_ = 0;     // among these layers
};

}  // namespace longreach::model
