#include "model/residual.h"

namespace longreach::model {

namespace {

Coefficient coefficient(const StepContext& run, const ParamRef& ref) {
    return ref ? Coefficient{run.weight(ref), 1, 0} : Coefficient();
}

}  // namespace

Residual::Saved Residual::plan(Arena& arena, const std::string& name, int64_t tokens) const {
    Saved saved;
    if (before) saved.before = before->plan(arena, name + "_norm", tokens);
    saved.input = before ? saved.before.y : arena.activation(name + "_input", {tokens, width});
    if (after) saved.after = after->plan(arena, name + "_post_norm", tokens);
    return saved;
}

Residual::Workspace Residual::plan_workspace(Arena& arena, int64_t tokens, int64_t width, bool after,
                                             bool training) {
    Workspace w;
    if (after) w.module = arena.activation("module", {tokens, width});
    if (training) w.dinput = arena.activation("dnorm", {tokens, width});
    if (training && after) w.dmodule = arena.activation("dmodule", {tokens, width});
    return w;
}

void StreamMix::forward(StepContext& run, Tensor x, const Tensor& before, const Streams& streams) const {
    const int64_t n = run.batch.count();
    if (own) run.ops.copy(before.first_rows(n), x);
    run.ops.mix(x, coefficient(run, own), x, coefficient(run, other), streams.values[stream].first_rows(n));
}

void StreamMix::backward(StepContext& run, Tensor dx, const Tensor& before, const Streams& streams) const {
    const int64_t n = run.batch.count();
    run.ops.mix_backward(dx, streams.gradients[stream].first_rows(n), run.gradient(own), run.gradient(other),
                         dx, coefficient(run, own), own ? before.first_rows(n) : Tensor(),
                         coefficient(run, other), streams.values[stream].first_rows(n));
}

}  // namespace longreach::model
