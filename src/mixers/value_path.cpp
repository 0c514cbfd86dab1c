#include "mixers/value_path.h"

namespace longreach::model {

ValuePath::ValuePath(ParamTable& table, const ModelConfig& model, int64_t layer) {
    const AttentionConfig& config = model.layer_attention(layer);
    width_ = config.kv() * config.head_dim;
    const std::string name = fmt::format("layers.{}.attention.", layer);
    const auto weight = [&](const char* what) {
        return table.add({name + what, {1}, {InitRule::Kind::constant, 0.5}, ParamGroup::scalar});
    };
    if (model.residual.values == ValueMix::first) {
        provides_first_ = layer == 0;
        if (layer > 0) lambda_ = weight("value_mix");
    }
    const int64_t index = model.value_embedding_of(layer);
    if (index >= 0) {
        own_weight_ = weight("own_value_mix");
        table_weight_ = weight("value_embedding_mix");
        table_ = table.share({fmt::format("value_embeddings.{}.weight", index),
                              {model.vocab_size, width_},
                              {InitRule::Kind::normal, 1},
                              ParamGroup::embedding});
    }
    norm_ = Heads(table, name, config, Heads::Part::values);
}

ValuePath::Saved ValuePath::plan(Arena& arena, const std::string& name, int64_t tokens) const {
    Saved saved;
    if (lambda_) saved.mixed = arena.activation(name + "values", {tokens, width_});
    if (table_) saved.embedded = arena.activation(name + "values_embedded", {tokens, width_});
    saved.norm = norm_.plan(arena, name + "values", tokens);
    return saved;
}

Tensor ValuePath::result(const Saved& saved, const Tensor& projected) const {
    if (table_) return saved.embedded.first_rows(projected.rows());
    if (lambda_) return saved.mixed.first_rows(projected.rows());
    return projected;
}

Tensor ValuePath::forward(StepContext& run, const Saved& saved, const Tensor& projected,
                          const SharedValues& shared) const {
    const int64_t n = projected.rows();
    Tensor v = projected;
    if (provides_first_) run.ops.copy(shared.first.first_rows(n), v);
    if (lambda_) {
        run.ops.mix(saved.mixed.first_rows(n), own_share(run), v, first_share(run),
                    shared.first.first_rows(n));
        v = saved.mixed.first_rows(n);
    }
    if (table_) {
        const Tensor looked_up = shared.looked_up.shaped({n, width_});
        run.ops.embedding(looked_up, run.weight(table_), run.batch.tokens);
        run.ops.mix(saved.embedded.first_rows(n), {run.weight(own_weight_), 1, 0}, v,
                    {run.weight(table_weight_), 1, 0}, looked_up);
        v = saved.embedded.first_rows(n);
    }
    norm_.forward(run, saved.norm, v, Rotation(), Tensor());
    return v;
}

void ValuePath::backward(StepContext& run, Tensor dprojected, Tensor dvalues, const Saved& saved,
                         const Tensor& projected, const SharedValues& shared) const {
    const int64_t n = projected.rows();
    norm_.backward(run, dvalues, result(saved, projected), saved.norm, Rotation(), Tensor());
    if (table_) {
        const Tensor looked_up = shared.looked_up.shaped({n, width_});
        const Tensor dlooked_up = shared.dlooked_up.shaped({n, width_});
        const Tensor before = lambda_ ? saved.mixed.first_rows(n) : projected;
        run.ops.embedding(looked_up, run.weight(table_), run.batch.tokens);
        run.ops.zero(dlooked_up);
        run.ops.mix_backward(lambda_ ? dvalues : dprojected, dlooked_up, run.gradient(own_weight_),
                             run.gradient(table_weight_), dvalues, {run.weight(own_weight_), 1, 0}, before,
                             {run.weight(table_weight_), 1, 0}, looked_up);
        run.ops.embedding_backward(run.gradient(table_), dlooked_up, run.batch.tokens);
    }
    if (lambda_)
        run.ops.mix_backward(dprojected, shared.dfirst.first_rows(n), run.gradient(lambda_),
                             run.gradient(lambda_), dvalues, own_share(run), projected, first_share(run),
                             shared.first.first_rows(n));
    if (provides_first_)  // add the gradient from later layers
        run.ops.mix(dprojected, Coefficient(), dprojected, Coefficient(), shared.dfirst.first_rows(n));
}

}  // namespace longreach::model
