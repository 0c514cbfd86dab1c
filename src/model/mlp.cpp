#include "model/mlp.h"

#include <cmath>

namespace longreach::model {

Mlp::Mlp(ParamTable& table, const ModelConfig& model, int64_t layer)
    : kind_(model.mlp.kind), gated_(model.mlp.gated()), hidden_(model.mlp_hidden()) {
    const std::string name = fmt::format("layers.{}.mlp.", layer);
    const double bound = model.init.matrix_bound;
    const InitRule in{InitRule::Kind::uniform, bound / std::sqrt(static_cast<double>(model.width))};
    const InitRule out =
        model.init.zero_projections
            ? InitRule{}
            : InitRule{InitRule::Kind::uniform, bound / std::sqrt(static_cast<double>(hidden_))};
    std::vector<Param> input;
    if (gated_) input.push_back({name + "gate.weight", {hidden_, model.width}, in, ParamGroup::matrix, true});
    input.push_back({name + "up.weight", {hidden_, model.width}, in, ParamGroup::matrix, true});
    up_ = table.add_joined(std::move(input));
    down_ = table.add({name + "down.weight", {model.width, hidden_}, out, ParamGroup::matrix, true});
    if (!model.mlp.bias) return;
    const auto bias = [&](const char* what, int64_t width) {
        return table.add({name + what, {width}, InitRule{}, ParamGroup::scalar});
    };
    if (gated_) gate_bias_ = bias("gate.bias", hidden_);
    up_bias_ = bias("up.bias", hidden_);
    down_bias_ = bias("down.bias", model.width);
}

Activation Mlp::activation() const {
    switch (kind_) {
        case MlpKind::gelu:
            return Activation::gelu;
        case MlpKind::gelu_tanh:
            return Activation::gelu_tanh;
        case MlpKind::swiglu:
            return Activation::swiglu;
        case MlpKind::geglu_tanh:
            return Activation::geglu_tanh;
        case MlpKind::relu2:
            break;
    }
    fail(ExitCode::internal, "relu2 is fused into the matrix product");
}

Mlp::Saved Mlp::plan(Arena& arena, const std::string& name, int64_t tokens) const {
    Saved saved;
    if (kind_ != MlpKind::relu2) saved.a = arena.activation(name + "mlp_input", {tokens, up_width()});
    saved.h = arena.activation(name + "mlp_hidden", {tokens, hidden_});
    return saved;
}

Mlp::Workspace Mlp::plan_workspace(Arena& arena, int64_t tokens) const {
    Workspace w;
    w.da = arena.activation("dmlp_input", {tokens, up_width()});
    if (kind_ != MlpKind::relu2) w.dh = arena.activation("dmlp_hidden", {tokens, hidden_});
    return w;
}

void Mlp::forward(StepContext& run, const Saved& saved, Tensor y, Write write, const Tensor& xn) const {
    const Tensor h = saved.h.first_rows(run.batch.count());
    if (kind_ == MlpKind::relu2) {
        run.ops.linear_relu2(h, xn, run.matrix(up_));
    } else {
        const Tensor a = saved.a.first_rows(run.batch.count());
        run.ops.linear(a, xn, run.matrix(up_), Write::set);
        if (gate_bias_) run.ops.add_bias(a.col_range(0, hidden_), run.weight(gate_bias_));
        if (up_bias_) run.ops.add_bias(up_of(a), run.weight(up_bias_));
        run.ops.activation(h, a, activation());
    }
    run.ops.linear(y, h, run.matrix(down_), write);
    if (down_bias_) run.ops.add_bias(y, run.weight(down_bias_));
}

void Mlp::backward(StepContext& run, Tensor dxn, const Tensor& dy, const Saved& saved,
                   const Workspace& workspace, const Tensor& xn) const {
    const int64_t n = run.batch.count();
    const Tensor h = saved.h.first_rows(n), da = workspace.da.first_rows(n);
    if (down_bias_) run.ops.add_bias_backward(run.gradient(down_bias_), dy);
    run.weight_gradient(down_, dy, h);
    if (kind_ == MlpKind::relu2) {
        run.ops.linear_relu2_backward(da, dy, run.matrix(down_), h);
    } else {
        const Tensor dh = workspace.dh.first_rows(n);
        run.ops.linear_backward_input(dh, dy, run.matrix(down_), Write::set);
        run.ops.activation_backward(da, dh, saved.a.first_rows(n), activation());
    }
    if (gate_bias_) run.ops.add_bias_backward(run.gradient(gate_bias_), da.col_range(0, hidden_));
    if (up_bias_) run.ops.add_bias_backward(run.gradient(up_bias_), up_of(da));
    run.weight_gradient(up_, da, xn);
    run.ops.linear_backward_input(dxn, da, run.matrix(up_), Write::set);
}

}  // namespace longreach::model
