#include "mixers/attention_output.h"

#include <cmath>

#include "mixers/gau_input.h"

namespace longreach::model {

AttentionOutput::AttentionOutput(ParamTable& table, const ModelConfig& model, int64_t layer)
    : norm_{NormKind::rms, static_cast<float>(model.norm.eps)} {
    const AttentionConfig& config = model.layer_attention(layer);
    const std::string name = fmt::format("layers.{}.attention.", layer);
    width_ = config.output_heads() * config.head_dim;
    heads_ = config.output_heads();
    head_dim_ = config.head_dim;
    value_width_ = config.kv() * config.head_dim;
    exclusive_ = config.output_norm.kind == OutputNorm::exclusive;
    multiplies_ = config.output_norm.kind == OutputNorm::position;
    differs_ = config.differential;
    if (differs_)
        share_ = table.add(
            {name + "difference.weight",
             {heads_, model.width},
             {InitRule::Kind::uniform, model.init.matrix_bound / std::sqrt(static_cast<double>(model.width))},
             ParamGroup::scalar});
    if (config.output_norm.kind == OutputNorm::head || config.output_norm.kind == OutputNorm::all) {
        groups_ = config.output_norm.kind == OutputNorm::head ? heads_ : 1;
        if (config.output_norm.gain)
            gain_ = table.add({name + "output_norm.gain",
                               {width_ / groups_},
                               {InitRule::Kind::constant, 1},
                               ParamGroup::scalar});
    }
    if (gated_unit(config) || config.gate.kind != GateKind::none) add_gates(table, model, name, config);
}

void AttentionOutput::add_gates(ParamTable& table, const ModelConfig& model, const std::string& name,
                                const AttentionConfig& config) {
    const GateConfig& gate = config.gate;
    const bool unit = gated_unit(config), elementwise = unit || gate.kind == GateKind::elementwise;
    gates_ = elementwise ? width_ : heads_;
    gate_inputs_ = gate.kind == GateKind::sparse ? sparse_gate_channels : model.width;
    gate_spec_ = {!unit && gate.doubled ? 2.0f : 1.0f, unit};
    InitRule init;
    if (unit || !gate.zero_init)
        init = {InitRule::Kind::uniform,
                model.init.matrix_bound / std::sqrt(static_cast<double>(gate_inputs_))};
    // With one gate per channel this is an ordinary matrix; with few gates it is too flat for orthogonal
    // updates, so it counts as scalars.
    gate_ = table.add({name + (unit ? "u.weight" : "gate.weight"),
                       {gates_, gate_inputs_},
                       init,
                       elementwise ? ParamGroup::matrix : ParamGroup::scalar,
                       elementwise});
}

AttentionOutput::Saved AttentionOutput::plan(Arena& arena, const std::string& name, int64_t tokens) const {
    Saved saved;
    if (differs_) {
        saved.share = arena.activation(name + "difference_share", {tokens, heads_});
        saved.difference = arena.activation(name + "difference", {tokens, width_});
    }
    if (changes_output()) saved.normed = arena.activation(name + "output_normed", {tokens, width_});
    if (groups_ > 0) {
        saved.inverse = arena.reserve(name + "output_inverse", DType::f32, {tokens * groups_});
        saved.normalised =
            gain_ ? arena.activation(name + "output_normalised", {tokens, width_}) : saved.normed;
    }
    if (gates_ > 0) {
        saved.u = arena.activation(name + "gate", {tokens, gates_});
        saved.gated = arena.activation(name + "gated", {tokens, width_});
    }
    return saved;
}

AttentionOutput::Workspace AttentionOutput::plan_workspace(Arena& arena, int64_t tokens) const {
    Workspace workspace;
    if (differs_) {
        workspace.dshare = arena.activation("ddifference_share", {tokens, heads_});
        workspace.ddifference = arena.activation("ddifference", {tokens, width_});
    }
    if (gates_ > 0) workspace.du = arena.activation("dgate", {tokens, gates_});
    if (exclusive_) workspace.dvalues = arena.activation("down_values", {tokens, value_width_});
    return workspace;
}

Tensor AttentionOutput::groups_of(const Tensor& x) const {
    return x.shaped({x.rows() * groups_, width_ / groups_});
}

Tensor AttentionOutput::normed(const Saved& saved, const Tensor& o) const {
    return changes_output() ? saved.normed.first_rows(o.rows()) : subtracted(saved, o);
}

Tensor AttentionOutput::gate_input(const Tensor& xn) const {
    return xn.col_range(0, gate_inputs_);
}

Tensor AttentionOutput::result(const Saved& saved, const Tensor& o) const {
    return gates_ > 0 ? saved.gated.first_rows(o.rows()) : normed(saved, o);
}

HeadSpec AttentionOutput::multiplied(const StepContext& run, const Rotation& factors) const {
    HeadSpec spec;
    spec.length = run.batch.length;
    spec.heads = heads_;
    spec.head_dim = head_dim_;
    spec.cosine = factors.cosine;
    spec.sine = factors.sine;
    return spec;
}

void AttentionOutput::subtract(StepContext& run, const Saved& saved, const Inputs& in) const {
    const int64_t n = in.o.rows();
    const Tensor share = saved.share.first_rows(n), to = of_heads(saved.difference.first_rows(n), head_dim_);
    run.ops.linear(share, in.xn, run.matrix(share_), Write::set);
    run.ops.gate(to, of_heads(share, 1), of_pairs(in.o, 1), GateSpec());
    run.ops.mix(to, Coefficient(), of_pairs(in.o, 0), Coefficient{.offset = -1}, to);
}

void AttentionOutput::subtract_backward(StepContext& run, const Tensor& dout, const Saved& saved,
                                        const Workspace& workspace, const Inputs& in) const {
    const int64_t n = in.o.rows();
    const Tensor dshare = workspace.dshare.first_rows(n);
    const Tensor dy = of_heads(workspace.ddifference.first_rows(n), head_dim_);
    const Tensor first = of_pairs(dout, 0), second = of_pairs(dout, 1);
    run.ops.mix(first, Coefficient{.offset = -1}, dy, Coefficient{.offset = 0}, dy);
    run.ops.gate_backward(second, of_heads(dshare, 1), first, of_heads(saved.share.first_rows(n), 1),
                          of_pairs(in.o, 1), GateSpec());
    run.ops.copy(first, dy);
    run.weight_gradient(share_, dshare, in.xn);
}

Tensor AttentionOutput::forward(StepContext& run, const Saved& saved, const Inputs& in) const {
    if (differs_) subtract(run, saved, in);
    const Tensor o = subtracted(saved, in.o);
    const int64_t n = o.rows();
    if (multiplies_) {
        run.ops.copy(normed(saved, in.o), o);
        run.ops.prepare_heads(normed(saved, in.o), Tensor(), Tensor(), multiplied(run, in.factors));
    }
    if (exclusive_) run.ops.exclude_own_value(normed(saved, in.o), o, in.v, head_dim_);
    if (groups_ > 0)
        run.ops.norm(groups_of(saved.normed.first_rows(n)), groups_of(saved.normalised.first_rows(n)),
                     saved.inverse.first(n * groups_), groups_of(o), run.weight(gain_), Tensor(), norm_);
    if (gates_ > 0) {
        run.ops.linear(saved.u.first_rows(n), gate_input(in.xn), run.matrix(gate_), Write::set);
        run.ops.gate(saved.gated.first_rows(n), saved.u.first_rows(n), normed(saved, in.o), gate_spec_);
    }
    return result(saved, in.o);
}

void AttentionOutput::backward(StepContext& run, Tensor to, const Saved& saved, const Workspace& workspace,
                               const Inputs& in) const {
    const Tensor dout = gradient(workspace, to), o = subtracted(saved, in.o);
    const int64_t n = o.rows();
    if (gates_ > 0) {
        const Tensor du = workspace.du.shaped({n, gates_});
        run.ops.gate_backward(dout, du, dout, saved.u.first_rows(n), normed(saved, in.o), gate_spec_);
        run.weight_gradient(gate_, du, gate_input(in.xn));
    }
    if (multiplies_)
        run.ops.prepare_heads_backward(dout, Tensor(), Tensor(), Tensor(), normed(saved, in.o), Tensor(),
                                       Tensor(), multiplied(run, in.factors));
    if (exclusive_)
        run.ops.exclude_own_value_backward(dout, workspace.dvalues.first_rows(n), dout, o, in.v, head_dim_);
    if (groups_ > 0)
        run.ops.norm_backward(groups_of(dout), run.gradient(gain_), Tensor(), groups_of(dout),
                              groups_of(saved.normalised.first_rows(n)), saved.inverse.first(n * groups_),
                              run.weight(gain_), norm_, Write::set);
    if (differs_) subtract_backward(run, to, saved, workspace, in);
}

void AttentionOutput::backward_values(StepContext& run, Tensor dv, const Workspace& workspace) const {
    if (exclusive_)
        run.ops.mix(dv, Coefficient(), dv, Coefficient(), workspace.dvalues.first_rows(dv.rows()));
}

void AttentionOutput::backward_input(StepContext& run, Tensor dxn, const Workspace& workspace) const {
    if (differs_)
        run.ops.linear_backward_input(dxn, workspace.dshare.first_rows(dxn.rows()), run.matrix(share_),
                                      Write::add);
    if (gates_ == 0) return;
    const Tensor du = workspace.du.shaped({dxn.rows(), gates_});
    run.ops.linear_backward_input(gate_input(dxn), du, run.matrix(gate_), Write::add);
}

}  // namespace longreach::model
