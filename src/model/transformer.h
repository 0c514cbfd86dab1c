// The model: embedding, blocks, loss head. Reads as the list of its parts, forward and backward.
#pragma once

#include <memory>
#include <optional>

#include "model/block.h"
#include "model/forward_observer.h"
#include "model/loss_head.h"
#include "model/parameter_traffic.h"

namespace longreach::model {

// The largest micro-batches a plan must serve.
struct PlanSize {
    int64_t tokens = 0;            // N of the largest micro-batch
    std::vector<int64_t> lengths;  // every T that may occur (each with at most `tokens` tokens)
};

class Transformer {
  public:
    // table_rows: the longest sequence ever run (training or evaluation). post_hoc: what changes for
    // sequences longer than those of training.
    Transformer(const ModelConfig& config, int64_t table_rows, const PostHocConfig& post_hoc = {});
    Transformer(const Transformer&) = delete;  // losses() points into this object
    Transformer& operator=(const Transformer&) = delete;

    const ModelConfig& config() const { return config_; }
    const ParamTable& params() const { return table_; }
    const std::vector<Segment>& segments() const { return segments_; }

    // Reserves tables and what lives between calls; after arena.commit(), fill_tables computes them.
    void plan_tables(Arena& arena);
    void fill_tables(Ops& ops);
    // Prepares forward() for sequences of this length; 0: as in training, for forward_backward().
    void use_length(Ops& ops, int64_t length);
    // Activations. Training keeps every layer's; evaluation reuses one layer's memory for all,
    // so it is linear in tokens and independent of depth. Both may be planned over the same memory: neither
    // keeps anything between calls.
    void plan_training(Arena& arena, Ops& ops, const PlanSize& size, bool document_mask);
    void plan_evaluation(Arena& arena, Ops& ops, const PlanSize& size, bool document_mask);

    // QK-clip. Scores are watched during forward_backward() from clear_maxima() on; clip() then scales the
    // query and key matrices of heads whose largest score is above the limit. Ask before planning.
    void watch_scores(bool absolute);
    void clear_maxima(Ops& ops) const;
    Tensor score_maxima() const { return maxima_; }  // f32 [L, most heads]; only if watched
    void clip_scores(Ops& ops, const FlatParams& weights, float limit) const;
    float largest_score(Ops& ops) const;

    // A stage may narrow the windows of windowed layers; 0 restores the configured ones.
    void set_stage_window(int64_t window);

    // Losses per token in training_losses(); gradients += gradient_scale * d(sum of losses).
    // Leaves nothing behind in the host's memory, so that a device may repeat it (Ops::replay) if there
    // is no traffic (null).
    void forward_backward(Ops& ops, const FlatParams& weights, const FlatParams& gradients,
                          const Batch& batch, float gradient_scale, ParameterTraffic* traffic = nullptr);
    // Losses per token, in evaluation_losses(), and most likely tokens, in evaluation_best().
    // observer: may be null.
    void forward(Ops& ops, const FlatParams& weights, const Batch& batch,
                 ForwardObserver* observer = nullptr);
    double capped_logit(double logit) const { return head_->capped(logit); }
    // f32 [N] of the last call; training and evaluation may share the memory.
    Tensor training_losses(int64_t tokens) const;
    Tensor evaluation_losses(int64_t tokens) const;
    // i32 [N] of the last forward(): the most likely next token at each position, scored or not.
    Tensor evaluation_best(int64_t tokens) const;

    // Model FLOPs of a training step per token: 6 per matrix parameter, 3 times
    // the forward attention products.
    double training_flops_per_token(int64_t length) const;
    double evaluation_flops_per_token(int64_t length) const;

  private:
    friend class Generator;  // runs the same parts with memory of its own
    struct Activations {
        Tensor x, dx;
        Tensor unsmeared;                   // [N, C] the embedding before smear; with smear
        Tensor recent_embeddings, smeared;  // [2 B, C]; generation with smear
        Norm::Saved embedding_norm;
        std::vector<Block::Saved> blocks;  // in evaluation all over the same memory
        CrossBlock cross;
        Block::Workspace workspace;
        LossHead::Saved head;
        Masks masks;
    };
    // Streams (residual.h), or their gradients: d is "" or "d", the start of their names.
    std::vector<Tensor> plan_streams(Arena& arena, const char* d, int64_t tokens) const;
    void plan_common(Arena& arena, Activations& a, const PlanSize& size, bool document_mask, bool training);
    Coefficient taken_back(const StepContext& run) const { return {run.weight(backout_mix_), -1, 0}; }
    void build_masks(Ops& ops, const Batch& batch, Activations& a, Masks& masks) const;
    void run_forward(StepContext& run, Activations& a, ParameterTraffic* traffic = nullptr);
    void end_segment();  // of the parameters added to the table so far
    ModelConfig config_;
    ParamTable table_;
    std::vector<Segment> segments_;
    Tables tables_;
    bool watching_ = false, absolute_ = false;
    Tensor maxima_;
    bool training_tables_ = true;
    int64_t stage_window_ = 0;
    void share_tables();
    ParamRef embedding_, smear_weight_, smear_mix_, backout_mix_;
    Norm embedding_norm_;
    std::vector<Block> blocks_;
    std::unique_ptr<LossHead> head_;
    Activations training_, evaluation_;
    // Blocks of an evaluation or a generation, all over the same memory.
    void plan_layers(Arena& arena, Ops& ops, Activations& a, const PlanSize& size);
    void embed(StepContext& run, Activations& a, Tensor x);
};

}  // namespace longreach::model
