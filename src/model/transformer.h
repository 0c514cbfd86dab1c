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
    // Of evaluations: tokens of a piece, and the longest sequence that is read in pieces; 0: none is.
    int64_t piece = 0, room = 0;
    // Of training: of the activations of every block only its input is kept, and the backward pass computes the rest again.
    bool recompute = false;
    int64_t texts = 0;  // of generation: sequences at most, of any length
};

class Transformer {
  public:
    // table_rows: the longest sequence ever run (training or evaluation). post_hoc: changes that apply to
    // sequences longer than those of training.
    Transformer(const ModelConfig& config, int64_t table_rows, const PostHocConfig& post_hoc = {});
    Transformer(const Transformer&) = delete;  // losses() points into this object
    Transformer& operator=(const Transformer&) = delete;

    const ModelConfig& config() const { return config_; }
    const ParamTable& params() const { return table_; }
    // The matrices that a pass multiplies with: those of the table, and a tied embedding.
    std::vector<ParamRef> products() const;
    const std::vector<Segment>& segments() const { return segments_; }

    // Reserves the tables and other memory that lives between calls. After arena.commit(),
    // fill_tables() computes the tables.
    void plan_tables(Arena& arena);
    void fill_tables(Ops& ops);
    // Prepares forward() for sequences of this length. 0 restores the tables of
    // training, which forward_backward() requires.
    void use_length(Ops& ops, int64_t length);
    // For the next steps of training, until use_length: row i of every sequence has positions[i] below `range`.
    void place(Ops& ops, std::span<const int64_t> positions, int64_t range) {
        tables_.place(ops, positions, range);
    }
    // Reserve activations. Training keeps those of every layer; evaluation reuses one layer's memory for all
    // layers, so its memory is linear in tokens and independent of depth. Both may be planned over the same
    // memory, because neither keeps anything between calls.
    void plan_training(Arena& arena, Ops& ops, const PlanSize& size, bool document_mask);
    void plan_evaluation(Arena& arena, Ops& ops, const PlanSize& size, bool document_mask);

    // QK-clip. watch_scores() must be called before planning. forward_backward() then gathers the largest
    // score of each head since clear_maxima(); clip_scores() scales the query and key matrices of heads whose
    // largest score is above the limit.
    void watch_scores(bool absolute);
    void clear_maxima(Ops& ops) const;
    Tensor score_maxima() const { return settings_.score_maxima; }  // f32 [L, most heads]; only if watched
    void clip_scores(Ops& ops, const FlatParams& weights, float limit) const;
    float largest_score(Ops& ops) const;

    // Narrows the windows of windowed layers for a training stage; 0 restores the configured ones.
    void set_stage_window(int64_t window) { settings_.stage_window = window; }

    // Writes losses per token to training_losses(); gradients = or += (gradients.write)
    // gradient_scale * d(sum of the losses, times the batch's weights).
    // Changes nothing in host memory, so a device may replay it (Ops::replay); traffic is called by host_step().
    void forward_backward(Ops& ops, const FlatParams& weights, const FlatParams& gradients,
                          const Batch& batch, float gradient_scale, ParameterTraffic* traffic = nullptr);
    // Writes losses per token to evaluation_losses() and the most likely tokens to evaluation_best().
    // observer: may be null. at: the place of the batch in its sequence, of which it is a piece after all earlier ones;
    // null: the batch is of whole sequences.
    void forward(Ops& ops, const FlatParams& weights, const Batch& batch, ForwardObserver* observer = nullptr,
                 const Generation* at = nullptr);
    double capped_logit(double logit) const { return head_->capped(logit); }
    // f32 [N] of the last call; training and evaluation may share the memory.
    Tensor training_losses(int64_t tokens) const;
    // Layers with an index of keys; those of all passes; and the losses of these in the last training step,
    // f32 [trained_indexes * N].
    int64_t indexed_layers() const;
    int64_t trained_indexes() const { return indexed_layers() * config_.loops; }
    Tensor index_losses(int64_t tokens) const;
    // Training passes compute the gradients of indexes alone; those of other parameters mean nothing then.
    void train_indexes_alone() { indexes_alone_ = true; }
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
        Tensor unsmeared;  // [N, C] the embedding before smear, in pieces after one earlier row; with smear
        Tensor recent_embeddings, smeared;  // [2 B, C]; with smear, of sequences read in several passes
        Norm::Saved embedding_norm;
        // Of every pass through the layers, one after the other; in evaluation all in the same memory.
        std::vector<Block::Saved> blocks;
        // [N, C] x before each of these blocks, which share one memory; only in training that recomputes them.
        std::vector<Tensor> inputs;
        CrossBlock cross;
        Block::Workspace workspace;
        LossHead::Saved head;
        Masks masks;
    };
    // Plans the streams (residual.h) or their gradients. d: the prefix of their names, "" or "d".
    std::vector<Tensor> plan_streams(Arena& arena, const char* d, int64_t tokens) const;
    void plan_common(Arena& arena, Activations& a, const PlanSize& size, bool document_mask, bool training);
    Coefficient taken_back(const StepContext& run) const { return {run.weight(backout_mix_), -1, 0}; }
    void build_masks(Ops& ops, const Batch& batch, Activations& a, Masks& masks,
                     const Generation* at = nullptr) const;
    Tensor index_losses_at(size_t place, int64_t tokens) const;  // of the block at this place
    void learn_indexes(StepContext& run, Activations& a, ParameterTraffic* traffic);
    // Brings back the activations of the block at this place, if blocks share their memory: those after it are done with theirs.
    void recompute(StepContext& run, Activations& a, size_t place) const;
    void run_forward(StepContext& run, Activations& a, ParameterTraffic* traffic = nullptr);
    size_t depth() const { return blocks_.size() * static_cast<size_t>(config_.loops); }
    const Block& block_at(size_t place) const { return blocks_[place % blocks_.size()]; }
    // Whether the block at this place is in the last pass through the layers.
    bool in_last_pass(size_t place) const { return place + blocks_.size() >= depth(); }
    void end_segment();  // ends the segment of the parameters added since the last call
    ModelConfig config_;
    ParamTable table_;
    std::vector<Segment> segments_;
    Tables tables_;
    PassSettings settings_;
    bool watching_ = false;
    Tensor index_losses_;
    bool indexes_alone_ = false;
    bool training_tables_ = true;
    ParamRef embedding_, position_, smear_weight_, smear_mix_, backout_mix_;
    Norm embedding_norm_;
    std::vector<Block> blocks_;
    std::vector<AttentionMixer*> attention_;  // of the blocks that attend
    std::unique_ptr<LossHead> head_;
    Activations training_, evaluation_;
    // Plans the blocks of an evaluation or a generation, all in the same memory.
    void plan_layers(Arena& arena, Ops& ops, Activations& a, const PlanSize& size);
    // What they keep from one pass to the next.
    void plan_kept(KeptTexts& kept, Activations& a) const;
    void embed(StepContext& run, Activations& a, Tensor x);
    // x += the learned rows of its positions, and the gradient of those rows.
    void add_positions(StepContext& run, const Tensor& x) const;
    void add_positions_backward(StepContext& run, const Tensor& dx) const;
};

}  // namespace longreach::model
