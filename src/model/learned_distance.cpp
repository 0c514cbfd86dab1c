#include "model/learned_distance.h"

#include <cmath>

namespace longreach::model {

LearnedDistance::LearnedDistance(ParamTable& table, const std::string& name, const AttentionConfig& config)
    : active_(config.distance.learned()), config_(config.distance) {
    if (!active_) return;
    const auto add = [&](const char* what, int64_t count, InitRule init) {
        return table.add({name + "distance." + what, {count}, init, ParamGroup::scalar});
    };
    if (config_.kind == DistanceKind::kerple_log || config_.kind == DistanceKind::kerple_power) {
        bias_rows_ = config.heads;
        p_ = add("p", config.heads, {InitRule::Kind::positive, 2});
        a_ = add("a", config.heads, {InitRule::Kind::positive, 1});
    }
    if (config_.learn_tau) log_tau_ = add("log_tau", 1, {InitRule::Kind::constant, std::log(config_.tau)});
    if (config_.learn_decay) decay_ = add("decay", 1, {InitRule::Kind::constant, config_.decay});
}

LearnedDistance::Buffers LearnedDistance::plan(Arena& arena, int64_t longest, bool training) const {
    Buffers b;
    b.gain = arena.reserve("distance_gain", DType::f32, {1, longest});
    b.bias = arena.reserve("distance_bias", DType::f32, {bias_rows_, longest});
    if (!training) return b;
    b.dgain = arena.reserve("ddistance_gain", DType::f32, {1, longest});
    b.dbias = arena.reserve("ddistance_bias", DType::f32, {bias_rows_, longest});
    return b;
}

DistanceFormSpec LearnedDistance::spec(const StepContext& run) const {
    DistanceFormSpec spec;
    switch (config_.kind) {
        case DistanceKind::scale_invariant:
            spec.form = DistanceForm::scale_invariant;
            break;
        case DistanceKind::log_bias:
            spec.form = DistanceForm::log_bias;
            break;
        case DistanceKind::kerple_log:
            spec.form = DistanceForm::kerple_log;
            break;
        case DistanceKind::kerple_power:
            spec.form = DistanceForm::kerple_power;
            break;
        case DistanceKind::none:
        case DistanceKind::si_interp:
        case DistanceKind::alibi:
            fail(ExitCode::internal, "this distance form learns nothing");
    }
    spec.length = run.position() + run.batch.length;
    spec.log_tau = run.weight(log_tau_);
    spec.decay = run.weight(decay_);
    spec.p = run.weight(p_);
    spec.a = run.weight(a_);
    spec.tau = static_cast<float>(config_.tau);
    spec.constant_decay = static_cast<float>(config_.decay);
    return spec;
}

void LearnedDistance::forward(StepContext& run, const Buffers& own) const {
    run.ops.distance_tables(own.gain, own.bias, spec(run));
}

void LearnedDistance::backward(StepContext& run, const Buffers& own) const {
    run.ops.distance_tables_backward(run.gradient(log_tau_), run.gradient(decay_), run.gradient(p_),
                                     run.gradient(a_), own.dgain, own.dbias, spec(run));
}

}  // namespace longreach::model
