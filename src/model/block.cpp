#include "model/block.h"

#include <algorithm>

#include "model/registry.h"

namespace longreach::model {

Block::Block(ParamTable& table, const ModelConfig& model, int64_t layer) {
    const std::string name = fmt::format("layers.{}.", layer);
    const AttentionConfig& attention = model.layer_attention(layer);
    const NormPlacement placement = model.norm.placement;
    const bool hybrid = placement == NormPlacement::hybrid, alone = placement == NormPlacement::after,
               peri = placement == NormPlacement::peri || alone;
    mixer_residual_.width = mlp_residual_.width = model.width;
    mlp_residual_.replaces = hybrid;
    if (attention.pre_norm && !hybrid && !alone)
        mixer_residual_.before = Norm(table, name + "attention_norm", model.norm, model.width);
    if (attention.post_norm || peri)
        mixer_residual_.after = Norm::after(table, name + "attention_post_norm", model.norm, model.width);
    const MixerType& type = mixer_type(attention.mixer);
    const bool mlp = type.has_mlp;
    if (mlp && peri)
        mlp_residual_.after = Norm::after(table, name + "mlp_post_norm", model.norm, model.width);
    if (mlp && !alone) mlp_residual_.before = Norm(table, name + "mlp_norm", model.norm, model.width);
    mixer_ = type.construct(table, model, layer);
    if (mlp) mlp_ = Mlp(table, model, layer);

    const auto weight = [&](const char* what, double value) {
        return table.add({name + what, {1}, {InitRule::Kind::constant, value}, ParamGroup::scalar});
    };
    if (model.residual.backout == layer) stores_.push_back(backout_stream);
    if (model.residual.unet) {
        // The first L/2 blocks store their outputs, the last L/2 add them in reverse order. The middle block
        // of an odd number does neither.
        const int64_t half = model.layers / 2;
        if (layer < half) stores_.push_back(first_skip + static_cast<size_t>(layer));
        if (layer >= model.layers - half)
            mixes_.push_back(
                {first_skip + static_cast<size_t>(model.layers - 1 - layer), weight("skip_mix", 1)});
    }
    if (model.residual.x0) {
        const ParamRef own = weight("x_mix", 1);
        mixes_.push_back({x0_stream, weight("x0_mix", 0), own});
    }
}

Block::Saved Block::plan(Arena& arena, const std::string& name, const PassPlan& size) const {
    const int64_t tokens = size.tokens;
    Saved saved;
    for (const StreamMix& mix : mixes_)
        if (mix.own) saved.before_mix = arena.activation(name + "before_mix", {tokens, mlp_residual_.width});
    saved.mixer_residual = mixer_residual_.plan(arena, name + "attention", tokens);
    saved.mixer = mixer_->plan(arena, name, size);
    if (!mlp_) return saved;
    saved.mlp_residual = mlp_residual_.plan(arena, name + "mlp", tokens);
    saved.mlp = mlp_->plan(arena, name, tokens);
    return saved;
}

Block::Workspace Block::plan_workspace(Arena& arena, Ops& ops, const std::vector<Block>& blocks,
                                       std::vector<Saved>& saved, const PassPlan& size) {
    bool after = false;
    for (const Block& block : blocks)
        after = after || block.mixer_residual_.after || block.mlp_residual_.after;
    Workspace w;
    w.residual =
        Residual::plan_workspace(arena, size.tokens, blocks[0].mlp_residual_.width, after, size.training);
    // All MLPs of a model are alike.
    const auto one = std::find_if(blocks.begin(), blocks.end(), [](const Block& b) { return bool(b.mlp_); });
    if (size.training && one != blocks.end()) w.mlp = one->mlp_->plan_workspace(arena, size.tokens);
    arena.overlay(saved.size(), [&](size_t i) {
        blocks[i % blocks.size()].mixer_->plan_workspace(*saved[i].mixer, arena, ops, size);
    });
    return w;
}

void Block::forward(StepContext& run, const Saved& saved, const CrossBlock& cross, const Workspace& workspace,
                    Tensor x) const {
    for (const StreamMix& mix : mixes_) mix.forward(run, x, saved.before_mix, cross.streams);
    mixer_residual_.forward(run, saved.mixer_residual, workspace.residual, x,
                            [&](Tensor y, Write write, const Tensor& xn) {
                                mixer_->forward(run, *saved.mixer, y, write, xn, cross.values);
                            });
    if (mlp_)
        mlp_residual_.forward(
            run, saved.mlp_residual, workspace.residual, x,
            [&](Tensor y, Write write, const Tensor& xn) { mlp_->forward(run, saved.mlp, y, write, xn); });
    for (size_t s : stores_) run.ops.copy(cross.streams.values[s].first_rows(x.rows()), x);
}

void Block::backward(StepContext& run, Tensor dx, const Saved& saved, const CrossBlock& cross,
                     const Workspace& workspace) const {
    for (size_t s : stores_) run.ops.add(dx, cross.streams.gradients[s].first_rows(dx.rows()));
    if (mlp_)
        mlp_residual_.backward(run, dx, saved.mlp_residual, workspace.residual,
                               [&](Tensor dxn, const Tensor& dy, const Tensor& xn) {
                                   mlp_->backward(run, dxn, dy, saved.mlp, workspace.mlp, xn);
                               });
    mixer_residual_.backward(run, dx, saved.mixer_residual, workspace.residual,
                             [&](Tensor dxn, const Tensor& dy, const Tensor& xn) {
                                 mixer_->backward(run, dxn, dy, *saved.mixer, xn, cross.values);
                             });
    for (size_t i = mixes_.size(); i-- > 0;) mixes_[i].backward(run, dx, saved.before_mix, cross.streams);
}

}  // namespace longreach::model
