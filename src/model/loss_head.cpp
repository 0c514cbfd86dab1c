#include "model/loss_head.h"

#include <algorithm>
#include <cmath>

namespace longreach::model {

LossHead::LossHead(ParamTable& table, const ModelConfig& model, const ParamRef& embedding)
    : width_(model.width), vocab_(model.vocab_size), norm_(table, "final_norm", model.norm, model.width) {
    const SoftcapConfig& softcap = model.head.softcap;
    spec_.softcap = softcap.kind;
    spec_.cap = static_cast<float>(softcap.cap);
    spec_.shift = static_cast<float>(softcap.shift);
    spec_.temperature = static_cast<float>(softcap.temperature);
    spec_.z_loss = static_cast<float>(model.head.z_loss);
    if (model.head.tied) {
        matrix_ = embedding;
        return;
    }
    const double bound = model.init.matrix_bound / std::sqrt(static_cast<double>(model.width));
    const InitRule init = model.init.zero_head ? InitRule{} : InitRule{InitRule::Kind::uniform, bound};
    matrix_ = table.add({"head.weight", {vocab_, width_}, init, ParamGroup::head, true});
}

// Large enough for fast matrix products, small enough to stay near a CPU's cache or to take little of a GPU's
// memory. It depends on the vocabulary and the kind of device only, because the order in which chunks add to
// dW must not depend on the batch.
int64_t LossHead::chunk_rows(const DeviceTraits& device) const {
    return std::clamp<int64_t>(device.chunk_logits / vocab_ / 64 * 64, 256, device.chunk_rows);
}

LossHead::Saved LossHead::plan(Arena& arena, int64_t tokens, bool training) const {
    Saved saved;
    saved.norm = norm_.plan(arena, "final_norm", tokens);
    saved.logits = arena.activation("logits", {std::min(tokens, chunk_rows(arena.traits())), vocab_});
    saved.losses = arena.reserve("losses", DType::f32, {tokens});
    if (training) saved.dy = arena.activation("dfinal", {tokens, width_});
    if (!training) saved.best = arena.reserve("best", DType::i32, {tokens});
    return saved;
}

LossHead::Saved LossHead::plan_rows(Arena& arena, int64_t rows) const {
    Saved saved;
    saved.norm = norm_.plan(arena, "final_norm", rows);
    saved.logits = arena.activation("logits", {rows, vocab_});
    saved.best = arena.reserve("best", DType::i32, {rows});
    return saved;
}

void LossHead::predict(StepContext& run, const Saved& saved, const Tensor& x) const {
    const int64_t n = x.rows();
    Batch rows;
    rows.sequences = n;
    rows.length = 1;
    StepContext of_rows{run.ops, run.weights, {}, rows, run.masks};
    norm_.forward(of_rows, saved.norm, x);
    const Tensor logits = saved.logits.first_rows(n);
    run.ops.linear(logits, saved.norm.y.first_rows(n), run.matrix(matrix_), Write::set);
    run.ops.top1(saved.best.first(n), logits);
}

double LossHead::capped(double logit) const {
    const double cap = spec_.cap;
    if (spec_.softcap == Softcap::tanh) return cap * std::tanh(logit / cap);
    if (spec_.softcap == Softcap::sigmoid)
        return cap / (1 + std::exp(-(logit + double{spec_.shift}) / double{spec_.temperature}));
    return logit;
}

void LossHead::forward(StepContext& run, const Saved& saved, const Tensor& x) const {
    run_chunks(run, saved, x, 0, false);
}

void LossHead::forward_backward(StepContext& run, Tensor dx, const Saved& saved, const Tensor& x,
                                float gradient_scale) const {
    run_chunks(run, saved, x, gradient_scale, true);
    norm_.backward(run, dx, saved.dy.first_rows(run.batch.count()), saved.norm, Write::set);
}

void LossHead::run_chunks(StepContext& run, const Saved& saved, const Tensor& x, float gradient_scale,
                          bool training) const {
    const int64_t n = run.batch.count();
    norm_.forward(run, saved.norm, x);
    LossSpec spec = spec_;
    spec.gradient_scale = gradient_scale;
    const Tensor matrix = run.matrix(matrix_);
    const int64_t chunk = saved.logits.rows();
    for (int64_t begin = 0; begin < n; begin += chunk) {
        const int64_t rows = std::min(chunk, n - begin);
        const Tensor y = saved.norm.y.row_range(begin, rows), logits = saved.logits.first_rows(rows);
        const Tensor losses(saved.losses.f32() + begin, DType::f32, {rows});
        const Tensor targets(run.batch.targets.i32() + begin, DType::i32, {rows});
        if (run.batch.loss_weights) spec.weights = run.batch.loss_weights.range(begin, rows);
        run.ops.linear(logits, y, matrix, Write::set);
        run.ops.cross_entropy(losses, logits, targets, spec, training);
        if (!training) {
            run.ops.top1(saved.best.range(begin, rows), logits);
            continue;
        }
        run.weight_gradient(matrix_, logits, y, begin == 0);
        run.ops.linear_backward_input(saved.dy.row_range(begin, rows), logits, matrix, Write::set);
    }
}

}  // namespace longreach::model
