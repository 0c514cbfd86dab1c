#include "model/length_scale.h"

#include "model/scale_law.h"

namespace longreach::model {

LengthScale::LengthScale(ParamTable& table, const ModelConfig& model, int64_t layer)
    : config_(model.layer_attention(layer).scale),
      fixed_r_(initial_r(model.layer_attention(layer), model.train_context)) {
    if (!config_.learned()) return;
    const bool per_head = config_.granularity_used() == ScaleGranularity::head;
    if (per_head) rows_ = model.layer_attention(layer).heads;
    std::string name = fmt::format("layers.{}.attention.scale.", layer);
    if (config_.granularity_used() == ScaleGranularity::global) {
        const std::string layout = model.layout_name(layer);
        name = layout.empty() ? "attention.scale." : "layouts." + layout + ".scale.";
    }
    const auto constant = [&](const char* what, double value) {
        return table.share({name + what, {rows_}, {InitRule::Kind::constant, value}, ParamGroup::scalar});
    };
    r_ = constant("r", fixed_r_);
    if (config_.kind == ScaleKind::logn_bias) b_ = constant("b", config_.bias);
}

Tensor LengthScale::plan(Arena& arena, const std::string& name, int64_t tokens) const {
    return arena.reserve(name + "row_factor", DType::f32, {rows_, tokens});
}

Tensor LengthScale::count_start(const StepContext& run, ScaleCount count, const Tensor& row_start) {
    switch (count) {
        case ScaleCount::sequence:
            return Tensor();
        case ScaleCount::automatic:
        case ScaleCount::document:
            return run.batch.doc_start;
        case ScaleCount::visible:
            return row_start;
    }
    fail(ExitCode::internal, "unknown count");
}

RowFactorSpec LengthScale::spec(const StepContext& run, const Tensor& shape, const Tensor& row_start) const {
    RowFactorSpec spec;
    spec.length = run.batch.length;
    spec.shape = shape;
    spec.start = count_start(run, config_.scale_n, row_start);
    spec.r = run.weight(r_);
    spec.b = run.weight(b_);
    spec.constant_r = static_cast<float>(fixed_r_);
    spec.constant_b = config_.kind == ScaleKind::logn_bias ? static_cast<float>(config_.bias) : 0.0f;
    return spec;
}

Tensor LengthScale::factor(StepContext& run, const Tensor& saved, const Tensor& shape,
                           const Tensor& row_start, bool fill) const {
    if (!shape) return Tensor();
    const Tensor factor = saved.shaped({rows_, run.batch.count()});
    if (fill) run.ops.row_factors(factor, spec(run, shape, row_start));
    return factor;
}

void LengthScale::backward(StepContext& run, const Tensor& dfactor, const Tensor& shape,
                           const Tensor& row_start) const {
    run.ops.row_factors_backward(run.gradient(r_), run.gradient(b_), dfactor, spec(run, shape, row_start));
}

}  // namespace longreach::model
