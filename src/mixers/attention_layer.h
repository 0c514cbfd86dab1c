// Softmax or stick-breaking attention.
//
//     qkv = xn Wqkv^T + bias                       [N, Q], Q = (H + 2G) d; or made of a latent, latent.h
//     q, k, v = short convolutions of them         optional
//     q, k = rotary(norm(q)), rotary(norm(k))      heads.h
//     v   = mixed and normed values                value_path.h
//     c   = sums of the gates of xn                optional, forget_gate.h
//     o   = attention(q, k, v)                     [N, H d]; scores: attention_spec.h
//     y  += output(o) Wo^T                         attention_output.h
//
// In a gated attention unit gau_input.h takes the place of the first line, and G = H.
#pragma once

#include "mixers/attention_output.h"
#include "mixers/forget_gate.h"
#include "mixers/gau_input.h"
#include "mixers/heads.h"
#include "mixers/key_index.h"
#include "mixers/latent.h"
#include "mixers/score_law.h"
#include "mixers/value_path.h"
#include "model/arena.h"
#include "model/attention_mixer.h"
#include "model/model_config.h"

namespace longreach::model {

class AttentionLayer : public AttentionMixer {
  public:
    // What a generation keeps for B sequences of up to R positions.
    struct Cache {
        Tensor keys, values, far_keys;  // [B R, G d]; far_keys only if there may be far pairs
        // [B K, Q]: the last K projected rows of every sequence, and their convolutions; with convolutions.
        Tensor recent, convolved;
        Tensor forget;         // ForgetGate::plan_cache
        Tensor index_keys;     // KeyIndex::plan_cache, if it chooses keys
        Latent::Cache latent;  // in place of keys and values
    };
    // What lives only inside one call.
    struct Workspace {
        ScoreLaw::Buffers score;
        Tensor row_maxima;  // [H, N]
        Tensor dqkv;        // [N, Q]
        Tensor dprojected;  // [N, Q], with convolutions
        Tensor dvalues;     // [N, G d], if values are mixed
        Tensor dout;        // [N, H d]
        AttentionOutput::Workspace output;
        ForgetGate::Workspace forget;
        GauInput::Workspace gau;
        Latent::Workspace latent;
        KeyIndex::Workspace index;
        Tensor attention;  // workspace of the attention backward
    };
    struct Saved : Memory {
        Tensor projected;  // [N, Q] before the convolutions; empty without any
        // [N, Q]: q, k and, unless values are mixed, v as attention reads them; with a latent one after the other
        // instead of side by side.
        Tensor qkv;
        Latent::Saved latent;
        Tensor far;  // [N, (H + G) d]: q and k of far pairs; evaluation only
        Heads::Saved queries, keys;
        ValuePath::Saved values;
        ScoreLaw::Saved score;
        Tensor o;    // [N, H d]
        Tensor lse;  // [H, N]
        AttentionOutput::Saved output;
        ForgetGate::Saved forget;
        GauInput::Saved gau;
        Workspace workspace;
        Cache cache;
    };

    AttentionLayer(ParamTable& table, const ModelConfig& model, int64_t layer);

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
    Tensor queries_of(const Tensor& qkv) const { return part_of(qkv, 0, query_width()); }
    Tensor keys_of(const Tensor& qkv) const { return part_of(qkv, query_width(), value_width()); }
    Tensor values_of(const Tensor& qkv) const {
        return part_of(qkv, query_width() + value_width(), value_width());
    }
    Tensor part_of(const Tensor& qkv, int64_t begin, int64_t width) const {
        const int64_t n = qkv.rows();
        return latent_ ? qkv.range(n * begin, n * width).shaped({n, width}) : qkv.col_range(begin, width);
    }
    Reach configured_reach() const { return {config_.window, config_.chunk}; }
    bool convolves() const { return q_conv_ || k_conv_ || v_conv_; }
    void add_biases(StepContext& run, const Tensor& projected) const;
    void project(StepContext& run, const Saved& saved, const Tensor& xn) const;
    // dxn = the gradient at xn from dqkv, that at the projected queries, keys and values, which is overwritten.
    void project_backward(StepContext& run, Tensor dxn, const Tensor& dqkv, const Saved& saved,
                          const Tensor& xn) const;
    // Norms and turns queries and keys; far: those of far pairs.
    void treat(StepContext& run, const Saved& saved, const Tensor& q, const Tensor& k, bool far) const;
    // First key that the token of a decoding step sees.
    int64_t first_key(int64_t position) const;
    // Attention of one query per sequence to what is kept; scores: of the step alone.
    void decode(StepContext& run, const Cache& cache, const Tensor& o, const Tensor& q,
                AttentionSpec scores) const;
    AttentionSpec shape(int64_t batch, int64_t length) const;
    // The spec of a pass. The forward pass fills the buffers it points to; the backward pass reads them.
    AttentionSpec spec(StepContext& run, const Saved& saved, bool fill) const;

    AttentionConfig config_;
    int64_t layer_;
    Reach reach_;  // narrowed by the stage
    ParamRef query_, key_, qkv_, out_, sink_;
    ParamRef q_bias_, k_bias_, v_bias_, out_bias_;
    ParamRef q_conv_, k_conv_, v_conv_;
    Heads query_heads_, key_heads_;
    Latent latent_;
    ValuePath values_;
    ScoreLaw score_;
    AttentionOutput output_;
    ForgetGate forget_;
    GauInput gau_;
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
