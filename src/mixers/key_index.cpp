#include "mixers/key_index.h"

#include <cmath>

#include "mixers/heads.h"
#include "model/recent_rows.h"

namespace longreach::model {

KeyIndex::KeyIndex(ParamTable& table, const ModelConfig& model, int64_t layer) {
    const AttentionConfig& config = model.layer_attention(layer);
    if (config.index_heads == 0) return;
    heads_ = config.index_heads;
    head_dim_ = config.turned_dim() > 0 ? config.turned_dim() : config.head_dim;
    const std::string name = fmt::format("layers.{}.attention.index.", layer);
    const InitRule init{InitRule::Kind::uniform,
                        model.init.matrix_bound / std::sqrt(static_cast<double>(model.width))};
    const auto part = [&](const char* what, int64_t rows) {
        return Param{name + what, {rows, model.width}, init, ParamGroup::matrix, true};
    };
    weight_ = table.add_joined(
        {part("q.weight", heads_ * head_dim_), part("k.weight", head_dim_), part("w.weight", heads_)});
}

KeyIndex::Workspace KeyIndex::plan_workspace(Arena& arena, int64_t tokens, bool training) const {
    Workspace w;
    if (!weight_) return w;
    w.projected = arena.activation("index", {tokens, width()});
    if (!training) return w;
    w.dprojected = arena.activation("dindex", {tokens, width()});
    w.lse = arena.reserve("index_lse", DType::f32, {tokens});
    return w;
}

Tensor KeyIndex::plan_kept(KeptTexts& kept, const std::string& name) const {
    return kept.rows(name + "index_keys", DType::f32, kept.size().room, head_dim_);
}

IndexScores KeyIndex::scores(const Tensor& projected) const {
    const int64_t queries = heads_ * head_dim_;
    return {.queries = projected.col_range(0, queries),
            .keys = projected.col_range(queries, head_dim_),
            .weights = projected.col_range(queries + head_dim_, heads_),
            .heads = heads_,
            .head_dim = head_dim_,
            .scale = static_cast<float>(1 / std::sqrt(static_cast<double>(queries)))};
}

IndexScores KeyIndex::forward(StepContext& run, const Workspace& workspace, const Tensor& cache,
                              const Tensor& xn, const LayerTables& tables) const {
    const Tensor projected = workspace.projected.first_rows(run.batch.count());
    run.ops.linear(projected, xn, run.matrix(weight_), Write::set);
    IndexScores index = scores(projected);
    const auto turn = [&](const Tensor& x, int64_t heads, const Rotation& rotation) {
        if (rotation.cosine)
            run.ops.prepare_heads(x, Tensor(), Tensor(),
                                  turned_heads(run, heads, head_dim_, rotation.from(run.position())));
    };
    turn(index.queries, heads_, tables.queries);
    turn(index.keys, 1, tables.keys);
    if (run.generating()) keep_rows(run, cache, index.keys);
    if (run.decoding()) index.keys = cache.first_rows(run.batch.sequences * run.generation->room);
    return index;
}

void KeyIndex::learn(StepContext& run, Tensor losses, const Workspace& workspace, const Tensor& xn,
                     const Tensor& q, const Tensor& k, const Tensor& lse, AttentionSpec attention,
                     const LayerTables& tables) const {
    const int64_t n = run.batch.count();
    attention.index = forward(run, workspace, {}, xn, tables);
    const Tensor gradient = workspace.dprojected.first_rows(n);
    const IndexScores d = scores(gradient);
    run.ops.index_loss(losses, workspace.lse.first(n), d, lse, q, k, run.gradient_scale, attention);
    const auto turn_back = [&](const Tensor& dx, const Tensor& x, int64_t heads, const Rotation& rotation) {
        if (rotation.cosine)
            run.ops.prepare_heads_backward(dx, Tensor(), Tensor(), Tensor(), x, Tensor(), Tensor(),
                                           turned_heads(run, heads, head_dim_, rotation));
    };
    turn_back(d.queries, attention.index.queries, heads_, tables.queries);
    turn_back(d.keys, attention.index.keys, 1, tables.keys);
    run.weight_gradient(weight_, gradient, xn);
}

void check_index(const LayoutRules& rules) {
    if (rules.a.index_heads > 0 && rules.a.normaliser != Normaliser::softmax)
        rules.refuse(".index_heads", "an index of keys learns from the softmax", ".normaliser");
    if (rules.a.index_heads > 0 && !angle_step(rules.a).empty())
        rules.refuse(".index_heads", "an index of keys turns by positions, not by sums of tokens", ".angle");
    if (rules.a.index_heads > 0 && !fading_term(rules.a).empty())
        rules.refuse(".index_heads", "an index of keys learns from scores whose channels do not fade",
                     ".score");
}

}  // namespace longreach::model
