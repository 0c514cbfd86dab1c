#include "model/block.h"

namespace longreach {

namespace {

ParamRef scalar(ParamTable& table, const std::string& name, double value) {
    return table.add({name, {1}, {InitRule::Kind::constant, value}, ParamGroup::scalar});
}

constexpr Coefficient one{};

Coefficient learned(const Tensor& param) {
    return {param, 1, 0};
}

}  // namespace

Block::Block(ParamTable& table, const ModelConfig& model, int64_t layer)
    : layer_(layer),
      width_(model.width),
      attention_norm_(table, fmt::format("layers.{}.attention_norm", layer), model.norm, model.width),
      mlp_norm_(table, fmt::format("layers.{}.mlp_norm", layer), model.norm, model.width),
      attention_(table, model, layer),
      mlp_(table, model, layer) {
    const std::string name = fmt::format("layers.{}.", layer);
    if (model.residual.unet) {
        // The first L/2 blocks store, the last L/2 take in reverse; the middle one of an odd count does
        // neither.
        const int64_t half = model.layers / 2;
        if (layer < half) stores_ = static_cast<int>(layer);
        if (layer >= model.layers - half) {
            takes_ = static_cast<int>(model.layers - 1 - layer);
            skip_weight_ = scalar(table, name + "skip_mix", 1);
        }
    }
    if (model.residual.x0) {
        x_weight_ = scalar(table, name + "x_mix", 1);
        x0_weight_ = scalar(table, name + "x0_mix", 0);
    }
}

Block::Saved Block::plan(Arena& arena, const std::string& name, int64_t tokens) const {
    Saved saved;
    if (x_weight_) saved.before_mix = arena.reserve(name + "before_mix", DType::f32, {tokens, width_});
    saved.attention_norm = attention_norm_.plan(arena, name + "attention_norm", tokens);
    saved.attention = attention_.plan(arena, name, tokens);
    saved.mlp_norm = mlp_norm_.plan(arena, name + "mlp_norm", tokens);
    saved.mlp = mlp_.plan(arena, name, tokens);
    return saved;
}

void Block::forward(StepContext& run, const Saved& saved, const CrossBlock& cross, Tensor x) const {
    const int64_t n = run.batch.count();
    Ops& ops = run.ops;
    if (takes_ >= 0)
        ops.mix(x, one, x, learned(run.weight(skip_weight_)),
                cross.skip[static_cast<size_t>(takes_)].first_rows(n));
    if (x_weight_) {
        ops.copy(saved.before_mix.first_rows(n), x);
        ops.mix(x, learned(run.weight(x_weight_)), x, learned(run.weight(x0_weight_)),
                cross.x0.first_rows(n));
    }
    attention_norm_.forward(run, saved.attention_norm, x);
    const bool first = layer_ == 0;
    const Tensor no_values;
    attention_.forward(run, saved.attention, x, saved.attention_norm.y.first_rows(n),
                       first || !cross.first_values ? no_values : cross.first_values.first_rows(n));
    if (first && cross.first_values)
        ops.copy(cross.first_values.first_rows(n), attention_.values_of(saved.attention, n));
    mlp_norm_.forward(run, saved.mlp_norm, x);
    mlp_.forward(run, saved.mlp, x, saved.mlp_norm.y.first_rows(n));
    if (stores_ >= 0) ops.copy(cross.skip[static_cast<size_t>(stores_)].first_rows(n), x);
}

void Block::backward(StepContext& run, Tensor dx, const Saved& saved, const CrossBlock& cross,
                     const Workspace& workspace) const {
    const int64_t n = run.batch.count();
    Ops& ops = run.ops;
    const Tensor dxn = workspace.dxn.first_rows(n), no_values;
    const bool first = layer_ == 0;
    if (stores_ >= 0) ops.add(dx, cross.dskip[static_cast<size_t>(stores_)].first_rows(n));

    mlp_.backward(run, dxn, dx, saved.mlp, workspace.mlp, saved.mlp_norm.y.first_rows(n));
    mlp_norm_.backward(run, dx, dxn, saved.mlp_norm, Write::add);

    const bool values = static_cast<bool>(cross.first_values);
    attention_.backward(run, dxn, values && !first ? cross.dfirst_values.first_rows(n) : no_values,
                        values && first ? cross.dfirst_values.first_rows(n) : no_values, dx, saved.attention,
                        workspace.attention, saved.attention_norm.y.first_rows(n),
                        values && !first ? cross.first_values.first_rows(n) : no_values);
    attention_norm_.backward(run, dx, dxn, saved.attention_norm, Write::add);

    if (x_weight_)
        ops.mix_backward(dx, cross.dx0.first_rows(n), run.gradient(x_weight_), run.gradient(x0_weight_), dx,
                         learned(run.weight(x_weight_)), saved.before_mix.first_rows(n),
                         learned(run.weight(x0_weight_)), cross.x0.first_rows(n));
    if (takes_ >= 0) {
        const size_t i = static_cast<size_t>(takes_);
        ops.zero(cross.dskip[i].first_rows(n));
        ops.mix_backward(dx, cross.dskip[i].first_rows(n), Tensor(), run.gradient(skip_weight_), dx, one,
                         Tensor(), learned(run.weight(skip_weight_)), cross.skip[i].first_rows(n));
    }
}

}  // namespace longreach
