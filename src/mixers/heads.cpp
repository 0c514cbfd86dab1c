#include "mixers/heads.h"

#include <cmath>

namespace longreach::model {

Heads::Heads(ParamTable& table, const std::string& name, const AttentionConfig& config, Part part, bool grows)
    : heads_(part == Part::queries ? config.heads : config.kv()),
      head_dim_(config.head_dim),
      eps_(config.qk.eps) {
    const bool queries = part == Part::queries, keys = part == Part::keys, values = part == Part::values;
    bool gain = false;
    switch (config.qk.kind) {
        case QkKind::none:
            break;
        case QkKind::qk_rms:
        case QkKind::qk_rms_eps:
            if (!values) norm_ = HeadNorm::rms;
            break;
        case QkKind::qk_rms_w:
        case QkKind::qkv_rms_w:
            gain = !values || config.qk.kind == QkKind::qkv_rms_w;
            if (gain) norm_ = HeadNorm::rms;
            break;
        case QkKind::qk_rms_full:
            full_ = !values;
            break;
        case QkKind::qk_ln:
        case QkKind::qkv_ln:
            gain = !values || config.qk.kind == QkKind::qkv_ln;
            if (gain) norm_ = HeadNorm::layer;
            break;
        case QkKind::qk_l2:
        case QkKind::cosa:
            unit_ = !values;
            break;
        case QkKind::qna:
            unit_ = queries;
            break;
        case QkKind::kna:
        case QkKind::kna_w:
            unit_ = keys;
            gain = keys && config.qk.kind == QkKind::kna_w;
            break;
    }
    if (unit_) {
        norm_ = HeadNorm::rms;  // |x| is sqrt(|x|^2 + 1e-12)
        eps_ = 1e-12 / static_cast<double>(head_dim_);
    }
    const std::string prefix = name + (queries ? "q_norm." : keys ? "k_norm." : "v_norm.");
    const auto add = [&](const char* what, int64_t count, double value) {
        return table.add({prefix + what, {count}, {InitRule::Kind::constant, value}, ParamGroup::scalar});
    };
    keeps_normalised_ = grows && !gain && norm_ != HeadNorm::none;
    if (gain) gain_ = add("gain", head_dim_, 1);
    if (full_) gain_ = add("gain", heads_ * head_dim_, 1);
    if (norm_ == HeadNorm::layer) bias_ = add("bias", head_dim_, 0);
    if (config.qk.kind == QkKind::qk_rms_eps && !values)
        log_eps_ = add("log_eps", config.qk.eps_per_head ? heads_ : 1, std::log(config.qk.eps));
}

Heads::Saved Heads::plan(Arena& arena, const std::string& name, int64_t tokens) const {
    Saved saved;
    if (gain_ || keeps_normalised_)
        saved.normalised = arena.activation(name + "_normalised", {tokens, heads_ * head_dim_});
    if (norm_ != HeadNorm::none)
        saved.inverse = arena.reserve(name + "_inverse", DType::f32, {tokens, heads_});
    if (full_) saved.inverse = arena.reserve(name + "_inverse", DType::f32, {tokens});
    return saved;
}

HeadSpec Heads::spec(const StepContext& run, const Rotation& rotation, const Tensor& ones) const {
    HeadSpec spec;
    spec.length = run.batch.length;
    spec.heads = heads_;
    spec.head_dim = head_dim_;
    spec.norm = norm_;
    spec.eps = static_cast<float>(eps_);
    spec.log_eps = run.weight(log_eps_);
    spec.gain = keeps_normalised_ ? ones.first(head_dim_) : full_ ? Tensor() : run.weight(gain_);
    spec.bias = run.weight(bias_);
    spec.cosine = rotation.cosine;
    spec.sine = rotation.sine;
    return spec;
}

void Heads::forward(StepContext& run, const Saved& saved, Tensor x, const Rotation& rotation,
                    const Tensor& ones) const {
    const int64_t n = x.rows();
    if (full_) {
        run.ops.norm(x, saved.normalised.first_rows(n), saved.inverse.first(n), x, run.weight(gain_),
                     Tensor(), full_norm());
        if (rotation.cosine) run.ops.prepare_heads(x, Tensor(), Tensor(), spec(run, rotation, ones));
        return;
    }
    run.ops.prepare_heads(x, saved.normalised.first_rows_if_any(n), saved.inverse.first_rows_if_any(n),
                          spec(run, rotation, ones));
}

void Heads::backward(StepContext& run, Tensor dx, const Tensor& x, const Saved& saved,
                     const Rotation& rotation, const Tensor& ones) const {
    const int64_t n = x.rows();
    if (full_) {
        if (rotation.cosine)
            run.ops.prepare_heads_backward(dx, Tensor(), Tensor(), Tensor(), x, Tensor(), Tensor(),
                                           spec(run, rotation, ones));
        run.ops.norm_backward(dx, run.gradient(gain_), Tensor(), dx, saved.normalised.first_rows(n),
                              saved.inverse.first(n), run.weight(gain_), full_norm(), Write::set);
        return;
    }
    run.ops.prepare_heads_backward(dx, run.gradient(gain_), run.gradient(bias_), run.gradient(log_eps_), x,
                                   saved.normalised.first_rows_if_any(n), saved.inverse.first_rows_if_any(n),
                                   spec(run, rotation, ones));
}

HeadSpec turned_heads(const StepContext& run, int64_t heads, int64_t head_dim, const Rotation& rotation) {
    HeadSpec spec;
    spec.length = run.batch.length;
    spec.heads = heads;
    spec.head_dim = head_dim;
    spec.cosine = rotation.cosine;
    spec.sine = rotation.sine;
    return spec;
}

}  // namespace longreach::model
