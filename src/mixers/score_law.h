// A layer's law at work: it fills what attention reads besides queries and keys, and hands the gradients of
// that to the parameters of the law.
//
//   what learns nothing        tables of the model (tables.h), filled once
//   what learns                evaluated in every pass, into tables that all layers share
//   row factor, row_square     by query: of each query, the entry of the keys that it counts
#pragma once

#include "model/arena.h"
#include "model/attention_score.h"
#include "model/step_context.h"
#include "model/tables.h"

namespace longreach::model {

class ScoreLaw {
  public:
    // Shared by all layers, each of which fills them before it uses them. R: the longest sequence.
    struct Buffers {
        Tensor row, gain, bias;  // f32 [1 or H, R]
        Tensor drow;             // f32 [H, N]
        Tensor dgain, dbias;     // like gain and bias
        Tensor derivative;       // f32 [1 or H, R]
    };
    struct Saved {
        Tensor factor;  // f32 [1 or H, N]
        Tensor square;  // f32 [1, N]
    };

    ScoreLaw() = default;
    ScoreLaw(ParamTable& table, const ModelConfig& model, int64_t layer);
    double base() const { return score_->base; }
    double softcap() const { return score_->law.law().softcap; }
    bool counts() const { return score_->counts; }

    // tables: those of the layer at every length it may meet.
    Saved plan(Arena& arena, const std::string& name, int64_t tokens, const ScoreRows& rows) const;
    Buffers plan_buffers(Arena& arena, int64_t tokens, int64_t longest, bool training) const;

    // Completes the spec of a pass. The forward pass fills `saved`, the backward pass finds it filled. entry: of
    // a decoding step, the number of keys that its queries count, less 1.
    void apply(AttentionSpec& spec, StepContext& run, const ScoreTables& tables, const Saved& saved,
               const Buffers& buffers, int64_t entry, bool fill) const;
    // Where attention_backward puts the gradients of what learns.
    AttentionGradients gradients(const Buffers& buffers, int64_t tokens) const;
    void backward(StepContext& run, const ScoreTables& tables, const Buffers& buffers,
                  const AttentionGradients& gradients, const Tensor& row_start) const;

  private:
    Tensor count_start(const StepContext& run, const Tensor& row_start) const;
    // Entries [first, first + length) of a table, or of a program that learns and fills `buffer` with them:
    // [1 or H, length].
    Tensor entries(StepContext& run, const law::CompiledTable& value, const ProgramTables& tables,
                   const Tensor& buffer, bool by_distance, int64_t first, int64_t length) const;

    std::shared_ptr<const LayerScore> score_;
    ScoreCount count_ = ScoreCount::automatic;
    int64_t heads_ = 1;
    std::vector<ParamRef> parameters_;  // by parameter of the law; empty: it does not learn
};

}  // namespace longreach::model
