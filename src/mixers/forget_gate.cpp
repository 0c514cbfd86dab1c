#include "mixers/forget_gate.h"

#include <cmath>

namespace longreach::model {

// A bias of 0 is the published start: f is near 1/2 everywhere, so that a head sees little more than its
// neighbours at first and the weights learn where to keep more.
ForgetGate::ForgetGate(ParamTable& table, const ModelConfig& model, int64_t layer) {
    const AttentionConfig& config = model.layer_attention(layer);
    if (config.forget == ForgetKind::none) return;
    heads_ = config.heads;
    const std::string name = fmt::format("layers.{}.attention.forget.", layer);
    const double bound = model.init.matrix_bound / std::sqrt(static_cast<double>(model.width));
    weight_ = table.add(
        {name + "weight", {heads_, model.width}, {InitRule::Kind::uniform, bound}, ParamGroup::scalar});
    bias_ = table.add({name + "bias", {heads_}, InitRule{}, ParamGroup::scalar});
}

ForgetGate::Saved ForgetGate::plan(Arena& arena, const std::string& name, int64_t tokens) const {
    if (!weight_) return {};
    return {arena.activation(name + "forget", {tokens, heads_}),
            arena.reserve(name + "forget_sums", DType::f64, {heads_, tokens})};
}

ForgetGate::Workspace ForgetGate::plan_workspace(Arena& arena, int64_t tokens) const {
    if (!weight_) return {};
    return {arena.reserve("dforget_sums", DType::f32, {heads_, tokens}),
            arena.activation("dforget", {tokens, heads_})};
}

Tensor ForgetGate::plan_cache(Arena& arena, const std::string& name, int64_t sequences, int64_t room) const {
    return weight_ ? arena.reserve(name + "forget_cache", DType::f64, {heads_, sequences * room}) : Tensor();
}

Tensor ForgetGate::sums(const Saved& saved, int64_t tokens) const {
    return saved.sums.shaped({heads_, tokens});
}
Tensor ForgetGate::gradient(const Workspace& workspace, int64_t tokens) const {
    return workspace.dsums.shaped({heads_, tokens});
}

Tensor ForgetGate::forward(StepContext& run, const Saved& saved, const Tensor& cache,
                           const Tensor& xn) const {
    const int64_t n = run.batch.count();
    const Tensor u = saved.u.first_rows(n), bias = run.weight(bias_);
    run.ops.linear(u, xn, run.matrix(weight_), Write::set);
    if (run.generation != nullptr) {
        const Tensor kept = cache.shaped({heads_, run.batch.sequences * run.generation->room});
        run.ops.forget_sums(kept, u, bias, run.batch.length, run.position());
        if (run.decoding()) return kept;
    }
    const Tensor all = sums(saved, n);
    run.ops.forget_sums(all, u, bias, run.batch.length, 0);
    return all;
}

void ForgetGate::backward(StepContext& run, Tensor dxn, const Saved& saved, const Workspace& workspace,
                          const Tensor& xn) const {
    const int64_t n = run.batch.count();
    const Tensor du = workspace.du.shaped({n, heads_});
    run.ops.forget_sums_backward(du, run.gradient(bias_), gradient(workspace, n), saved.u.first_rows(n),
                                 run.weight(bias_), run.batch.length);
    run.weight_gradient(weight_, du, xn);
    run.ops.linear_backward_input(dxn, du, run.matrix(weight_), Write::add);
}

}  // namespace longreach::model
