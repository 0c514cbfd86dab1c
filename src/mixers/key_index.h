// An index of keys of an attention layer, the lightning indexer of DeepSeek sparse attention: a few heads with one key
// for all of them say which keys the heads of attention weigh most. An evaluation then attends to the best top_k alone.
//
//     qi | ki | w = xn Windex^T                      [N, H d | d | H] of the index; d: channels that the layer turns
//     qi, ki = rotary(qi), rotary(ki)                by the layer's angles
//     I_ij = sum over its heads of w_i relu(<qi_i, ki_j>) / sqrt(H d)
//
// In training I learns the mean of the heads' weights (Ops::index_loss). Its gradient stops at the index: all other
// weights are trained as without one, bit for bit unless gradients are clipped by their norm.
#pragma once

#include "model/layout_rules.h"
#include "model/model_config.h"
#include "model/recent_rows.h"
#include "model/step_context.h"
#include "model/tables.h"

namespace longreach::model {

void check_index(const LayoutRules& rules);

class KeyIndex {
  public:
    static bool owns(const std::string& tensor) {
        return tensor.find(".attention.index.") != std::string::npos;
    }
    struct Workspace {
        Tensor projected, dprojected;  // [N, H d + d + H]; the gradient only in training
        Tensor lse;                    // f32 [N]
    };

    KeyIndex() = default;
    KeyIndex(ParamTable& table, const ModelConfig& model, int64_t layer);
    explicit operator bool() const { return static_cast<bool>(weight_); }

    Workspace plan_workspace(Arena& arena, int64_t tokens, bool training) const;
    Tensor plan_kept(KeptTexts& kept, const std::string& name) const;

    // I of the pass; in a decoding step of its queries and of all keys before them.
    IndexScores forward(StepContext& run, const Workspace& workspace, const Tensor& cache, const Tensor& xn,
                        const LayerTables& tables) const;
    // The weights' gradient and losses f32 [N], of the attention that gave lse.
    void learn(StepContext& run, Tensor losses, const Workspace& workspace, const Tensor& xn, const Tensor& q,
               const Tensor& k, const Tensor& lse, AttentionSpec attention, const LayerTables& tables) const;

  private:
    int64_t width() const { return (heads_ + 1) * head_dim_ + heads_; }
    IndexScores scores(const Tensor& projected) const;
    int64_t heads_ = 0, head_dim_ = 0;
    ParamRef weight_;  // q|k|w
};

}  // namespace longreach::model
