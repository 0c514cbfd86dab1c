// A layer's law at work: it fills what attention reads besides queries and keys, and hands the gradients of
// that to the parameters of the law.
//
//   what learns nothing        tables of the model (tables.h), filled once
//   what learns                evaluated in every pass, into tables that all layers share
//   row factor, row_square     by query: of each query, the entry of the keys that it counts
//   terms                      x = <w, xn> + b of each token and head, and what the formulas make of it: factors of the
//                              query, and c of AttentionSpec::forget. Sums run along the whole sequence and take no
//                              notice of documents, windows and chunks. A mask decides which differences are used; the
//                              difference of two positions of a document contains nothing of another one.
#pragma once

#include "model/attention_score.h"
#include "model/recent_rows.h"
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
        // Of terms, f32 [H, N].
        Tensor between, key;  // what is summed, and what is added to the sums
        Tensor dsums;         // at the sums
        Tensor of_token;      // a derivative
        Tensor du;            // [N, K H], like u
    };
    struct Saved {
        Tensor factor;  // f32 [1 or H, N]
        Tensor square;  // f32 [1, N]
        Tensor u;       // [N, K H]: x of the K terms
        Tensor sums;    // f64 [H, N]: c
    };
    // Of what a generation has read; empty: there are no sums.
    struct Cache {
        Tensor sums;   // f64 [H, B R]
        Tensor total;  // f64 [H, B]
    };
    struct Memory {
        const Saved& saved;
        const Buffers& buffers;
        const Cache& cache;
    };

    ScoreLaw() = default;
    ScoreLaw(ParamTable& table, const ModelConfig& model, int64_t layer, LayerScore score);
    double base() const { return score_->base; }
    double softcap() const { return score_->law.law().softcap; }
    bool counts() const { return score_->counts; }

    // tables: those of the layer at every length it may meet.
    Saved plan(Arena& arena, const std::string& name, int64_t tokens, const ScoreRows& rows) const;
    Buffers plan_buffers(Arena& arena, int64_t tokens, int64_t longest, const ScoreRows& rows,
                         bool training) const;
    Cache plan_kept(KeptTexts& kept, const std::string& name, const ScoreRows& rows) const;

    // Computes x of the terms, before apply().
    void read(StepContext& run, const Saved& saved, const Tensor& xn) const;

    // Completes the spec of a pass. The forward pass fills `saved`, the backward pass finds it filled. entry: of
    // a decoding step, the number of keys that its queries count, less 1.
    void apply(AttentionSpec& spec, StepContext& run, const ScoreTables& tables, const Memory& memory,
               int64_t entry, bool fill) const;
    // Where attention_backward puts the gradients of what learns.
    AttentionGradients gradients(const Buffers& buffers, int64_t tokens) const;
    void backward(StepContext& run, const ScoreTables& tables, const Saved& saved, const Buffers& buffers,
                  const AttentionGradients& gradients, const Tensor& row_start) const;
    // dxn += what arrives through the terms; after backward().
    void backward_input(StepContext& run, Tensor dxn, const Buffers& buffers, const Tensor& xn) const;

  private:
    struct Term {
        ParamRef weight, bias;
    };
    // Where a part stands by token: f32 [H, N].
    struct ByToken {
        const Saved& saved;
        LawEntries queries;
        int64_t first, count;  // entries of the table that tokens read: [first, first + count)
    };
    Tensor of_tokens(StepContext& run, const law::CompiledTable& value, const ProgramTables& tables,
                     const Tensor& to, const ByToken& at) const;
    void apply_sums(AttentionSpec& spec, StepContext& run, const ScoreTables& tables, const Memory& memory,
                    const ByToken& at, bool fill) const;
    LawSpec law_spec(const StepContext& run, const law::CompiledTable& value) const;
    // The columns of term k.
    Tensor columns(const Tensor& u, size_t term) const {
        return u.col_range(static_cast<int64_t>(term) * heads_, heads_);
    }
    Tensor count_start(const StepContext& run, const Tensor& row_start) const;
    // Entries [first, first + length) of a table, or of a program that learns and fills `buffer` with them:
    // [1 or H, length].
    Tensor entries(StepContext& run, const law::CompiledTable& value, const ProgramTables& tables,
                   const Tensor& buffer, bool by_distance, int64_t first, int64_t length) const;

    std::shared_ptr<const LayerScore> score_;
    ScoreCount count_ = ScoreCount::automatic;
    int64_t heads_ = 1;
    std::vector<ParamRef> parameters_;  // by parameter of the law; empty: it does not learn
    std::vector<Term> terms_;
};

}  // namespace longreach::model
