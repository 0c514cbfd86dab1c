// Attention by softmax, stick-breaking or entmax.
//
//     qkv = made of xn, q and k normed and turned  [N, Q], Q = (H + 2G) d; qkv_source.h
//     v   = mixed and normed values                value_path.h
//     terms = formulas of xn                       optional, score_law.h, token_rotation.h, channel_fading.h
//     o   = attention(q, k, v)                     [N, H d]; scores: attention_spec.h
//     y  += output(o) Wo^T                         attention_output.h
#pragma once

#include "mixers/attention_output.h"
#include "mixers/channel_fading.h"
#include "mixers/key_index.h"
#include "mixers/qkv_source.h"
#include "mixers/score_law.h"
#include "mixers/token_rotation.h"
#include "mixers/value_path.h"
#include "model/arena.h"
#include "model/attention_mixer.h"
#include "model/model_config.h"
#include "model/recent_rows.h"

namespace longreach::model {

class AttentionLayer : public AttentionMixer {
  public:
    // What lives only inside one call.
    struct Workspace {
        ScoreLaw::Buffers score, steps;
        ChannelFading::Buffers fading;
        Tensor row_maxima;  // [H, N]
        Tensor dqkv;        // [N, Q]
        Tensor dvalues;     // [N, G d], if values are mixed
        Tensor dout;        // [N, H d]
        AttentionOutput::Workspace output;
        KeyIndex::Workspace index;
        Tensor attention;  // workspace of the attention backward
    };
    struct Saved : Memory {
        std::unique_ptr<QkvSource::Memory> source;
        Tensor qkv;                    // [N, Q]: q, k and, unless values are mixed, v as attention reads them
        Tensor far_queries, far_keys;  // [N, H d], [N, G d] of far pairs; evaluation only
        ValuePath::Saved values;
        ScoreRows score_rows;
        ScoreLaw::Saved score;
        TokenRotation::Saved rotation;
        ChannelFading::Saved fading;
        Tensor o;    // [N, H d]
        Tensor lse;  // [H, N]
        AttentionOutput::Saved output;
        Workspace workspace;
        ScoreLaw::Cache kept_sums, kept_steps, kept_fading;
        PieceRows piece_keys, piece_values, piece_far_keys;  // of an evaluation in pieces
        bool index_chooses = false;                          // keys, in evaluations
        Tensor kept_index_keys;                              // KeyIndex::plan_kept, if it does
    };

    // source: whose matrices are in the table.
    AttentionLayer(ParamTable& table, const ModelConfig& model, int64_t layer,
                   std::unique_ptr<QkvSource> source);

    std::unique_ptr<Memory> plan(Arena& arena, const std::string& name, const PassPlan& size) const override;
    void plan_workspace(Memory& memory, Arena& arena, Ops& ops, const PassPlan& size) const override;
    void plan_kept(Memory& memory, KeptTexts& kept, const std::string& name) const override;
    void forward(StepContext& run, const Memory& memory, Tensor y, Write write, const Tensor& xn,
                 const SharedValues& shared) const override;
    void backward(StepContext& run, Tensor dxn, const Tensor& dy, const Memory& memory, const Tensor& xn,
                  const SharedValues& shared) const override;
    // Of the score and value products.
    double flops_per_token(int64_t length, const PassSettings& settings) const override;

    Reach reach() const override { return {config_.window, config_.chunk}; }
    void clip_scores(Ops& ops, const FlatParams& weights, const PassSettings& settings,
                     float limit) const override;
    bool has_index() const override { return bool(index_); }
    void learn_index(StepContext& run, const Memory& memory, const Tensor& xn) const override;

  private:
    int64_t query_width() const { return config_.heads * config_.head_dim; }
    int64_t output_width() const { return config_.output_heads() * config_.head_dim; }
    int64_t value_width() const { return config_.kv() * config_.head_dim; }
    int64_t total_width() const { return query_width() + 2 * value_width(); }
    Reach reach_in(const PassSettings& settings) const { return reach().narrowed(settings.stage_window); }
    const LayerTables& tables_of(const PassSettings& settings) const {
        return settings.tables->layer(layer_);
    }
    static TokenRotation::Memory steps_of(const Saved& saved) {
        return {saved.rotation, saved.workspace.steps, saved.kept_steps};
    }
    static ChannelFading::Memory fading_of(const Saved& saved) {
        return {saved.fading, saved.workspace.fading, saved.kept_fading};
    }
    bool clips() const;
    // The largest scores of this layer so far, f32 [H]; empty: they are not gathered.
    Tensor maxima_in(const PassSettings& settings) const;
    AttentionSpec shape(int64_t batch, int64_t length) const;
    // Attention of the queries of a piece to the keys before it and its own.
    void attend_piece(StepContext& run, const Saved& saved, const Qkv& in, AttentionSpec scores) const;
    // The spec of a pass. The forward pass fills the buffers it points to from xn; the backward pass reads them.
    AttentionSpec spec(StepContext& run, const Saved& saved, const Tensor& xn, bool fill) const;

    AttentionConfig config_;
    int64_t layer_;
    std::unique_ptr<QkvSource> source_;
    ParamRef out_, out_bias_, sink_, alpha_logit_;
    ValuePath values_;
    ScoreLaw score_;
    TokenRotation rotation_;
    ChannelFading fading_;
    AttentionOutput output_;
    KeyIndex index_;
    double base_ = 1;  // factor of <q, k>
};

}  // namespace longreach::model
