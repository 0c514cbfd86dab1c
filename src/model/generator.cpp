#include "model/generator.h"

#include "model/recent_rows.h"

namespace longreach::model {

bool Generator::can_rewind() const {
    const ModelConfig& config = model_.config();
    bool all = !config.residual.smear;
    for (const int64_t layer : config.distinct_layers()) {
        const AttentionConfig& attention = config.layer_attention(layer);
        all = all && attention.attends() && attention.conv.size == 0;
    }
    return all;
}

void Generator::plan(Arena& arena, Ops& ops, int64_t sequences, int64_t tokens, int64_t room) {
    Transformer::Activations& a = activations_;
    const PlanSize size{.tokens = tokens, .lengths = {room}, .texts = sequences};
    const int64_t width = model_.config().width;
    arena.group("activations, generation");
    model_.plan_common(arena, a, size, false, false);
    model_.plan_layers(arena, ops, a, size);
    last_rows_ = arena.activation("last_rows", {sequences, width});
    head_ = model_.head_->plan_rows(arena, sequences);
    arena.group("keys and values");
    kept_ = KeptTexts(arena, sequences, {.room = room});
    model_.plan_kept(kept_, a);
}

void Generator::run(Ops& ops, const FlatParams& weights, const Batch& batch, const Generation& at) {
    check(at.position + batch.length <= at.room && (!at.step() || batch.length == 1) && !batch.doc_start,
          "{} tokens at position {} of {}", batch.length, at.position, at.room);
    Masks masks;
    if (!at.step()) model_.build_masks(ops, batch, activations_, masks);
    StepContext run{ops, weights, {}, batch, masks, false, nullptr, &at};
    run.settings = model_.settings_;
    model_.run_forward(run, activations_);
    const Tensor last = last_rows_.first_rows(batch.sequences);
    ops.copy(last, every(activations_.x.first_rows(batch.count()), batch.length, batch.length - 1));
    model_.head_->predict(run, head_, last);
}

void Generator::plan_logits(Arena& arena, int64_t rows) {
    head_ = model_.head_->plan_rows(arena, rows);
}

Tensor Generator::evaluation_logits(Ops& ops, const FlatParams& weights, int64_t begin, int64_t rows) {
    const Masks none;
    StepContext run{ops, weights, {}, {}, none};
    model_.head_->predict(run, head_, model_.evaluation_.x.row_range(begin, rows));
    return logits(rows);
}

}  // namespace longreach::model
