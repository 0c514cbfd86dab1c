#include "mixers/token_rotation.h"

#include "model/attention_angle.h"

namespace longreach::model {

namespace {
constexpr ScoreRows step_rows{.sums = true};
}  // namespace

TokenRotation::TokenRotation(ParamTable& table, const ModelConfig& model, int64_t layer)
    : steps_(std::make_shared<const ScoreLaw>(table, model, layer, layer_steps(model, layer))),
      heads_(model.layer_attention(layer).heads),
      key_heads_(model.layer_attention(layer).kv()),
      head_dim_(model.layer_attention(layer).head_dim),
      pairs_(static_cast<int64_t>(trained_angle(model, layer).near.size())) {}

TokenRotation::Saved TokenRotation::plan(Arena& arena, const std::string& name, int64_t tokens) const {
    Saved saved;
    if (!*this) return saved;
    saved.steps = steps_->plan(arena, name + "steps.", tokens, step_rows);
    saved.cosine = arena.reserve(name + "token_cosine", DType::f32, {tokens, key_heads_ * pairs_});
    saved.sine = arena.reserve(name + "token_sine", DType::f32, {tokens, key_heads_ * pairs_});
    return saved;
}

ScoreLaw::Buffers TokenRotation::plan_buffers(Arena& arena, int64_t tokens, int64_t longest,
                                              bool training) const {
    return *this ? steps_->plan_buffers(arena, tokens, longest, step_rows, training) : ScoreLaw::Buffers();
}

ScoreLaw::Cache TokenRotation::plan_kept(KeptTexts& kept, const std::string& name) const {
    return *this ? steps_->plan_kept(kept, name + "steps.", step_rows) : ScoreLaw::Cache();
}

HeadSpec TokenRotation::turned(const Saved& saved, int64_t tokens, int64_t heads) const {
    HeadSpec spec;
    spec.length = tokens;  // every token has a row of its own
    spec.heads = heads;
    spec.head_dim = head_dim_;
    spec.cosine = saved.cosine.first_rows(tokens);
    spec.sine = saved.sine.first_rows(tokens);
    spec.angle_heads = key_heads_;
    return spec;
}

void TokenRotation::forward(StepContext& run, const Memory& memory, const Tensor& q, const Tensor& k,
                            const Tensor& xn, const LayerTables& tables) const {
    const Saved& saved = memory.saved;
    const int64_t n = q.rows();
    steps_->read(run, saved.steps, xn);
    AttentionSpec sums;
    steps_->apply(sums, run, tables.steps, {saved.steps, memory.buffers, memory.cache}, run.position(), true);
    run.ops.token_angles(saved.cosine.first_rows(n), saved.sine.first_rows(n), sums.forget, tables.theta,
                         run.batch.length, run.position());
    run.ops.prepare_heads(q, Tensor(), Tensor(), turned(saved, n, heads_));
    run.ops.prepare_heads(k, Tensor(), Tensor(), turned(saved, n, key_heads_));
}

void TokenRotation::backward(StepContext& run, const Memory& memory, const Qkv& gradients, const Qkv& at,
                             const LayerTables& tables) const {
    const Saved& saved = memory.saved;
    const int64_t n = at.q.rows();
    const AttentionGradients sums = steps_->gradients(memory.buffers, n);
    run.ops.token_angles_backward(sums.forget, gradients.q, at.q, tables.theta, head_dim_, Write::set);
    run.ops.token_angles_backward(sums.forget, gradients.k, at.k, tables.theta, head_dim_, Write::add);
    steps_->backward(run, tables.steps, saved.steps, memory.buffers, sums, Tensor());
    run.ops.prepare_heads_backward(gradients.q, Tensor(), Tensor(), Tensor(), at.q, Tensor(), Tensor(),
                                   turned(saved, n, heads_));
    run.ops.prepare_heads_backward(gradients.k, Tensor(), Tensor(), Tensor(), at.k, Tensor(), Tensor(),
                                   turned(saved, n, key_heads_));
}

}  // namespace longreach::model
