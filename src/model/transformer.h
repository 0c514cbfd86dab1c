// The model: embedding, blocks, loss head. Reads as the list of its parts, forward and backward.
#pragma once

#include <memory>
#include <optional>

#include "model/block.h"
#include "model/loss_head.h"

namespace longreach {

// The largest micro-batches a plan must serve.
struct PlanSize {
    int64_t tokens = 0;            // N of the largest micro-batch
    std::vector<int64_t> lengths;  // every T that may occur (each with at most `tokens` tokens)
};

class Transformer {
  public:
    // table_rows: the longest sequence ever run (training or evaluation).
    Transformer(const ModelConfig& config, int64_t table_rows);
    Transformer(const Transformer&) = delete;  // losses() points into this object
    Transformer& operator=(const Transformer&) = delete;

    const ModelConfig& config() const { return config_; }
    const ParamTable& params() const { return table_; }

    // Reserves tables; after arena.commit() and a second pass, fill_tables computes them.
    void plan_tables(Arena& arena);
    void fill_tables(Ops& ops) const { tables_.fill(ops); }
    // Activations. Training keeps every layer's; evaluation reuses one layer's memory for all, so it is
    // linear in tokens and independent of depth. Both may be planned over the same memory: neither keeps
    // anything between calls.
    void plan_training(Arena& arena, Ops& ops, const PlanSize& size, bool document_mask);
    void plan_evaluation(Arena& arena, const PlanSize& size, bool document_mask);

    // A stage may narrow the windows of windowed layers; 0 restores the configured ones.
    void set_stage_window(int64_t window);

    // Losses per token in losses(); gradients += gradient_scale * d(sum of losses).
    void forward_backward(Ops& ops, const FlatParams& weights, const FlatParams& gradients,
                          const Batch& batch, float gradient_scale);
    // Losses per token only.
    void forward(Ops& ops, const FlatParams& weights, const Batch& batch);
    Tensor losses(int64_t tokens) const;  // f32 [N] of the last call

    // Model FLOPs of a training step per token: 6 per matrix parameter, 3 times the forward attention
    // products.
    double training_flops_per_token(int64_t length) const;
    double evaluation_flops_per_token(int64_t length) const;

  private:
    struct Activations {
        Tensor x, dx;
        Norm::Saved embedding_norm;
        std::vector<Block::Saved> blocks;  // in evaluation all over the same memory
        CrossBlock cross;
        Block::Workspace workspace;
        LossHead::Saved head;
        Masks masks;
    };
    void plan_common(Arena& arena, Activations& a, const PlanSize& size, bool document_mask);
    void build_masks(Ops& ops, const Batch& batch, Activations& a, Masks& masks) const;
    void run_forward(StepContext& run, Activations& a);
    ModelConfig config_;
    ParamTable table_;
    Tables tables_;
    ParamRef embedding_;
    Norm embedding_norm_;
    std::vector<Block> blocks_;
    std::unique_ptr<LossHead> head_;
    Activations training_, evaluation_;
    const Activations* last_ = nullptr;
};

}  // namespace longreach
