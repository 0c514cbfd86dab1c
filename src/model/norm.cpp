#include "model/norm.h"

namespace longreach::model {

Norm::Norm(ParamTable& table, const std::string& name, const NormConfig& config, int64_t width)
    : Norm(table, name, config, width, 1.0) {}

Norm Norm::after(ParamTable& table, const std::string& name, NormConfig config, int64_t width) {
    config.gain = true;
    return Norm(table, name, config, width, config.out_gain);
}

Norm::Norm(ParamTable& table, const std::string& name, const NormConfig& config, int64_t width,
           double first_gain)
    : spec_{config.kind, static_cast<float>(config.eps)}, width_(width) {
    if (!config.gain) return;
    gain_ = table.add({name + ".gain", {width}, {InitRule::Kind::constant, first_gain}, ParamGroup::scalar});
    if (config.kind == NormKind::layer)
        bias_ = table.add({name + ".bias", {width}, {InitRule::Kind::constant, 0.0}, ParamGroup::scalar});
}

Norm::Saved Norm::plan(Arena& arena, const std::string& name, int64_t tokens) const {
    Saved saved;
    saved.y = arena.activation(name, {tokens, width_});
    saved.normalised = gain_ ? arena.activation(name + "_normalised", {tokens, width_}) : saved.y;
    saved.inverse = arena.reserve(name + "_inverse", DType::f32, {tokens});
    return saved;
}

void Norm::forward(StepContext& run, const Saved& saved, const Tensor& x) const {
    const int64_t n = run.batch.count();
    run.ops.norm(saved.y.first_rows(n), saved.normalised.first_rows(n), saved.inverse.first(n), x,
                 run.weight(gain_), run.weight(bias_), spec_);
}

void Norm::replace(StepContext& run, const Saved& saved, Tensor x) const {
    check(!gain_, "a norm with a gain saves what it does not put out");
    const int64_t n = run.batch.count();
    run.ops.norm(x, saved.y.first_rows(n), saved.inverse.first(n), x, Tensor(), Tensor(), spec_);
}

void Norm::backward(StepContext& run, Tensor dx, const Tensor& dy, const Saved& saved, Write write) const {
    const int64_t n = run.batch.count();
    run.ops.norm_backward(dx, run.gradient(gain_), run.gradient(bias_), dy, saved.normalised.first_rows(n),
                          saved.inverse.first(n), run.weight(gain_), spec_, write);
}

}  // namespace longreach::model
