#include "model/block.h"

#include "model/attention_layer.h"

namespace longreach::model {

namespace {

ParamRef scalar(ParamTable& table, const std::string& name, double value) {
    return table.add({name, {1}, {InitRule::Kind::constant, value}, ParamGroup::scalar});
}

constexpr Coefficient one{};

Coefficient learned(const Tensor& param) {
    return {param, 1, 0};
}

std::optional<Norm> norm_before_attention(ParamTable& table, const ModelConfig& model, int64_t layer) {
    if (!model.layer_attention(layer).pre_norm || model.norm.placement == NormPlacement::hybrid) return {};
    return Norm(table, fmt::format("layers.{}.attention_norm", layer), model.norm, model.width);
}

std::optional<Norm> norm_behind(bool wanted, ParamTable& table, const ModelConfig& model, int64_t layer,
                                const char* module) {
    if (!wanted) return {};
    return Norm::behind(table, fmt::format("layers.{}.{}_post_norm", layer, module), model.norm, model.width);
}

}  // namespace

Block::Block(ParamTable& table, const ModelConfig& model, int64_t layer)
    : width_(model.width),
      hybrid_(model.norm.placement == NormPlacement::hybrid),
      attention_norm_(norm_before_attention(table, model, layer)),
      attention_post_norm_(
          norm_behind(model.norm.placement == NormPlacement::peri || model.layer_attention(layer).post_norm,
                      table, model, layer, "attention")),
      mlp_post_norm_(norm_behind(model.norm.placement == NormPlacement::peri, table, model, layer, "mlp")),
      mlp_norm_(table, fmt::format("layers.{}.mlp_norm", layer), model.norm, model.width),
      mixer_(std::make_unique<AttentionLayer>(table, model, layer)),
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

Block::Saved Block::plan(Arena& arena, const std::string& name, int64_t tokens, bool training) const {
    Saved saved;
    const auto norm = [&](const std::optional<Norm>& n, const char* what) {
        return n ? n->plan(arena, name + what, tokens) : Norm::Saved();
    };
    if (x_weight_) saved.before_mix = arena.activation(name + "before_mix", {tokens, width_});
    if (!attention_norm_) saved.input = arena.activation(name + "attention_input", {tokens, width_});
    saved.attention_norm = norm(attention_norm_, "attention_norm");
    saved.mixer = mixer_->plan(arena, name, tokens, training);
    saved.attention_post_norm = norm(attention_post_norm_, "attention_post_norm");
    saved.mlp_norm = mlp_norm_.plan(arena, name + "mlp_norm", tokens);
    saved.mlp = mlp_.plan(arena, name, tokens);
    saved.mlp_post_norm = norm(mlp_post_norm_, "mlp_post_norm");
    return saved;
}

Block::Workspace Block::plan_workspace(Arena& arena, Ops& ops, const std::vector<Block>& blocks,
                                       std::vector<Saved>& saved, int64_t tokens,
                                       const std::vector<int64_t>& lengths, bool training) {
    Workspace w;
    bool behind = false;
    for (const Block& block : blocks) behind = behind || block.norms_behind();
    const int64_t width = blocks[0].width_;
    if (behind) w.module = arena.activation("module", {tokens, width});
    if (training) {
        w.dxn = arena.activation("dnorm", {tokens, width});
        if (behind) w.dmodule = arena.activation("dmodule", {tokens, width});
        w.mlp = blocks[0].mlp_.plan_workspace(arena, tokens);
    }
    arena.overlay(blocks.size(), [&](size_t l) {
        blocks[l].mixer_->plan_workspace(*saved[l].mixer, arena, ops, tokens, lengths, training);
    });
    return w;
}

Tensor Block::attention_input(const Saved& saved, int64_t tokens) const {
    return attention_norm_ ? saved.attention_norm.y.first_rows(tokens) : saved.input.first_rows(tokens);
}

void Block::forward(StepContext& run, const Saved& saved, const CrossBlock& cross, const Workspace& workspace,
                    Tensor x) const {
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
    // Runs a module that adds to x, or one whose output is normed before it is added.
    const auto add_module = [&](const std::optional<Norm>& behind, const Norm::Saved& behind_saved,
                                auto module) {
        if (!behind) return module(x, Write::add);
        const Tensor y = workspace.module.first_rows(n);
        module(y, Write::set);
        behind->forward(run, behind_saved, y);
        ops.add(x, behind_saved.y.first_rows(n));
    };
    const Tensor input = attention_input(saved, n);
    attention_norm_ ? attention_norm_->forward(run, saved.attention_norm, x) : ops.copy(input, x);
    add_module(attention_post_norm_, saved.attention_post_norm, [&](Tensor y, Write write) {
        mixer_->forward(run, *saved.mixer, y, write, input, cross.values);
    });
    mlp_norm_.forward(run, saved.mlp_norm, x);
    const Tensor normed = saved.mlp_norm.y.first_rows(n);
    if (hybrid_) ops.copy(x, normed);
    add_module(mlp_post_norm_, saved.mlp_post_norm,
               [&](Tensor y, Write write) { mlp_.forward(run, saved.mlp, y, write, normed); });
    if (stores_ >= 0) ops.copy(cross.skip[static_cast<size_t>(stores_)].first_rows(n), x);
}

void Block::mlp_backward(StepContext& run, Tensor dx, const Saved& saved, const Workspace& workspace) const {
    const int64_t n = run.batch.count();
    const Tensor dxn = workspace.dxn.first_rows(n), normed = saved.mlp_norm.y.first_rows(n);
    Tensor dy = dx;
    if (mlp_post_norm_) {
        dy = workspace.dmodule.first_rows(n);
        mlp_post_norm_->backward(run, dy, dx, saved.mlp_post_norm, Write::set);
    }
    mlp_.backward(run, dxn, dy, saved.mlp, workspace.mlp, normed);
    if (hybrid_) {
        run.ops.add(dxn, dx);  // the residual stream goes on from the normed x
        mlp_norm_.backward(run, dx, dxn, saved.mlp_norm, Write::set);
    } else {
        mlp_norm_.backward(run, dx, dxn, saved.mlp_norm, Write::add);
    }
}

void Block::attention_backward(StepContext& run, Tensor dx, const Saved& saved, const CrossBlock& cross,
                               const Workspace& workspace) const {
    const int64_t n = run.batch.count();
    const Tensor dxn = workspace.dxn.first_rows(n);
    Tensor dy = dx;
    if (attention_post_norm_) {
        dy = workspace.dmodule.first_rows(n);
        attention_post_norm_->backward(run, dy, dx, saved.attention_post_norm, Write::set);
    }
    mixer_->backward(run, dxn, dy, *saved.mixer, attention_input(saved, n), cross.values);
    attention_norm_ ? attention_norm_->backward(run, dx, dxn, saved.attention_norm, Write::add)
                    : run.ops.add(dx, dxn);
}

void Block::backward(StepContext& run, Tensor dx, const Saved& saved, const CrossBlock& cross,
                     const Workspace& workspace) const {
    const int64_t n = run.batch.count();
    Ops& ops = run.ops;
    if (stores_ >= 0) ops.add(dx, cross.dskip[static_cast<size_t>(stores_)].first_rows(n));
    mlp_backward(run, dx, saved, workspace);
    attention_backward(run, dx, saved, cross, workspace);
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

}  // namespace longreach::model
