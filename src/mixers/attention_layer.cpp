#include "mixers/attention_layer.h"

#include <algorithm>
#include <cmath>

#include "model/attention_angle.h"
#include "model/forward_observer.h"

namespace longreach::model {

AttentionLayer::AttentionLayer(ParamTable& table, const ModelConfig& model, int64_t layer,
                               std::unique_ptr<QkvSource> source)
    : config_(model.layer_attention(layer)), layer_(layer), source_(std::move(source)) {
    const std::string name = fmt::format("layers.{}.attention.", layer);
    const InitRule out{InitRule::Kind::uniform,
                       model.init.matrix_bound / std::sqrt(static_cast<double>(output_width()))};
    out_ = table.add({name + "o.weight",
                      {model.width, output_width()},
                      model.init.zero_projections ? InitRule{} : out,
                      ParamGroup::matrix,
                      true});
    source_->add_biases(table);
    if (config_.bias == AttentionBias::all)
        out_bias_ = table.add({name + "o.bias", {model.width}, InitRule{}, ParamGroup::scalar});
    source_->add_convolutions(table);
    values_ = ValuePath(table, model, layer);
    const bool steps = !angle_step(config_).empty();
    source_->add_heads(table, steps || !trained_angle(model, layer).growth.empty());
    score_ = ScoreLaw(table, model, layer, layer_score(model, layer));
    if (steps) rotation_ = TokenRotation(table, model, layer);
    if (!fading_term(config_).empty()) fading_ = ChannelFading(table, model, layer);
    output_ = AttentionOutput(table, model, layer);
    index_ = KeyIndex(table, model, layer);
    if (config_.sink == SinkKind::learned)
        sink_ = table.add({name + "sink", {config_.heads}, InitRule{}, ParamGroup::scalar});
    if (config_.normaliser == Normaliser::entmax && config_.entmax_learned) {
        const double share = config_.entmax_alpha - 1;
        const InitRule logit{.kind = InitRule::Kind::constant, .value = std::log(share / (1 - share))};
        alpha_logit_ = table.add({name + "entmax.alpha_logit", {config_.heads}, logit, ParamGroup::scalar});
    }
    base_ = source_->base(score_.base());
}

std::unique_ptr<Mixer::Memory> AttentionLayer::plan(Arena& arena, const std::string& name,
                                                    const PassPlan& size) const {
    const Tables& tables = *size.settings.tables;
    const int64_t tokens = size.tokens;
    auto memory = std::make_unique<Saved>();
    Saved& saved = *memory;
    saved.index_chooses = index_ && tables.takes_top_by_index();
    saved.qkv = arena.activation(name + "qkv", {tokens, total_width()});
    saved.source = source_->plan(arena, name, tokens);
    if (tables.has_far_pairs(layer_) && !size.training) {
        saved.far_queries = arena.activation(name + "far_queries", {tokens, query_width()});
        saved.far_keys = arena.activation(name + "far_keys", {tokens, value_width()});
    }
    saved.values = values_.plan(arena, name, tokens);
    saved.score_rows = tables.score_rows(layer_);
    saved.score = score_.plan(arena, name, tokens, saved.score_rows);
    saved.rotation = rotation_.plan(arena, name, tokens);
    saved.fading = fading_.plan(arena, name, tokens);
    saved.o = arena.activation(name + "attention", {tokens, query_width()});
    saved.lse = arena.reserve(name + "lse", DType::f32, {config_.heads, tokens});
    saved.output = output_.plan(arena, name, tokens);
    return memory;
}

void AttentionLayer::plan_workspace(Memory& memory, Arena& arena, Ops& ops, const PassPlan& size) const {
    Saved& saved = static_cast<Saved&>(memory);
    Workspace& w = saved.workspace;
    const int64_t tokens = size.tokens;
    const bool training = size.training;
    const int64_t longest = *std::max_element(size.lengths.begin(), size.lengths.end());
    w.score = score_.plan_buffers(arena, tokens, longest, saved.score_rows, training);
    w.steps = rotation_.plan_buffers(arena, tokens, longest, training);
    w.fading = fading_.plan_buffers(arena, size, shape(1, longest));
    source_->plan_workspace(*saved.source, arena, tokens, training);
    if (training || saved.index_chooses) w.index = index_.plan_workspace(arena, tokens, training);
    if (!training) return;

    if (maxima_in(size.settings))
        w.row_maxima = arena.reserve("row_maxima", DType::f32, {config_.heads, tokens});
    w.dqkv = arena.activation("dqkv", {tokens, total_width()});
    if (values_.mixes()) w.dvalues = arena.activation("dvalues", {tokens, value_width()});
    w.dout = arena.activation("dattention", {tokens, query_width()});
    w.output = output_.plan_workspace(arena, tokens);

    AttentionGradients g = score_.gradients(w.score, tokens);  // only the shapes count
    if (sink_) g.sink = Tensor(nullptr, DType::f32, {config_.heads});
    if (alpha_logit_) g.alpha_logit = Tensor(nullptr, DType::f32, {config_.heads});
    int64_t bytes = 0;
    for (int64_t length : size.lengths) {
        AttentionSpec spec = shape(tokens / length, length);
        if (fading_) spec.channel_sums = Tensor(nullptr, DType::f64, {query_width(), tokens});
        bytes = std::max(bytes, ops.attention_workspace(spec, g));
    }
    w.attention = arena.reserve("attention_workspace", DType::f32, {bytes / 4 + 1});
}

AttentionSpec AttentionLayer::shape(int64_t batch, int64_t length) const {
    AttentionSpec spec;
    spec.batch = batch;
    spec.length = length;
    spec.heads = config_.heads;
    spec.kv_heads = config_.kv();
    spec.head_dim = config_.head_dim;
    spec.softcap = static_cast<float>(score_.softcap());
    spec.normaliser = config_.normaliser;
    spec.alpha = static_cast<float>(config_.entmax_alpha);
    return spec;
}

AttentionSpec AttentionLayer::spec(StepContext& run, const Saved& saved, const Tensor& xn, bool fill) const {
    const LayerTables& tables = tables_of(run.settings);
    AttentionSpec spec = shape(run.batch.sequences, run.batch.length);
    spec.scale = static_cast<float>(base_ * tables.score.factor);
    // All queries of a decoding step, one per sequence, count the same number of keys.
    const bool visible = config_.score_count == ScoreCount::visible;
    const int64_t counted = run.position() - (visible ? reach_in(run.settings).first_key(run.position()) : 0);
    if (!run.decoding()) spec.row_start = run.masks.of(reach());
    score_.apply(spec, run, tables.score, {saved.score, saved.workspace.score, saved.kept_sums}, counted,
                 fill);
    if (fading_) fading_.apply(spec, run, fading_of(saved), xn, tables, fill);
    spec.sink = config_.sink == SinkKind::zero ? tables.zeros.first(config_.heads) : run.weight(sink_);
    spec.alpha_logit = run.weight(alpha_logit_);
    spec.absolute_maxima = clips() && run.settings.absolute_maxima;
    if (!run.probing) {  // a probe looks at the model as trained
        spec.top_k = tables.top_k;
        spec.top_k_block = tables.top_k_block;
    }
    return spec;
}

void AttentionLayer::plan_kept(Memory& memory, KeptTexts& kept, const std::string& name) const {
    Saved& saved = static_cast<Saved&>(memory);
    saved.kept_sums = score_.plan_kept(kept, name, saved.score_rows);
    saved.kept_steps = rotation_.plan_kept(kept, name);
    saved.kept_fading = fading_.plan_kept(kept, name);
    if (kept.size().piece > 0) {
        saved.piece_keys.plan(kept, name + "keys", value_width(), reach());
        saved.piece_values.plan(kept, name + "values", value_width(), reach());
        if (saved.far_keys) saved.piece_far_keys.plan(kept, name + "far_keys", value_width(), reach());
        return source_->plan_pieces(*saved.source, kept, name);
    }
    if (saved.index_chooses) saved.kept_index_keys = index_.plan_kept(kept, name);
    source_->plan_kept(*saved.source, kept, name, bool(saved.far_keys));
}

void AttentionLayer::attend_piece(StepContext& run, const Saved& saved, const Qkv& in,
                                  AttentionSpec scores) const {
    check(scores.top_k == 0, "attention to the largest scores in pieces");
    const int64_t n = run.batch.count(), before = saved.piece_keys.before(run);
    const Tensor k = saved.piece_keys.add(run, in.k), v = saved.piece_values.add(run, in.v);
    if (scores.far_keys) scores.far_keys = saved.piece_far_keys.add(run, scores.far_keys);
    for (Tensor* sums : {&scores.forget, &scores.channel_sums})
        if (*sums) *sums = sums->col_range(run.position() - before, before + n);
    run.ops.attention(saved.o.first_rows(n), saved.lse.shaped({config_.heads, n}), Tensor(), in.q, k, v,
                      scores);
}

void AttentionLayer::forward(StepContext& run, const Memory& memory, Tensor y, Write write, const Tensor& xn,
                             const SharedValues& shared) const {
    const Saved& saved = static_cast<const Saved&>(memory);
    const LayerTables& tables = tables_of(run.settings);
    const int64_t n = run.batch.count();
    const Tensor qkv = saved.qkv.first_rows(n);
    const Tensor q = source_->parts_of(qkv).q, k = source_->parts_of(qkv).k;
    source_->forward(run, *saved.source, qkv, xn);
    score_.read(run, saved.score, xn);
    AttentionSpec scores = spec(run, saved, xn, true);
    if (saved.index_chooses && scores.top_k > 0)
        scores.index = index_.forward(run, saved.workspace.index, saved.kept_index_keys, xn, tables);
    if (tables.far_from > 0) {
        scores.far_queries = saved.far_queries.first_rows(n);
        scores.far_keys = saved.far_keys.first_rows(n);
        scores.far_from = tables.far_from;
        run.ops.copy(scores.far_queries, q);
        run.ops.copy(scores.far_keys, k);
        source_->turn(run, *saved.source, scores.far_queries, scores.far_keys, tables, true);
    }
    source_->turn(run, *saved.source, q, k, tables, false);
    if (rotation_) rotation_.forward(run, steps_of(saved), q, k, xn, tables);
    const Tensor v = values_.forward(run, saved.values, source_->parts_of(qkv).v, shared);
    const Tensor o = saved.o.first_rows(n);
    const Tensor lse = saved.lse.shaped({config_.heads, n});
    const Tensor maxima = run.training ? maxima_in(run.settings) : Tensor();
    Tensor row_maxima;
    if (maxima) row_maxima = saved.workspace.row_maxima.shaped({config_.heads, n});
    if (run.generating()) source_->keep(run, *saved.source, k, v, scores.far_keys);
    if (run.in_pieces()) {
        attend_piece(run, saved, {q, k, v}, scores);
    } else if (run.decoding()) {
        AttentionSpec kept = scores;
        kept.length = run.generation->room;
        source_->decode(run, *saved.source, o, q, kept, reach_in(run.settings).first_key(run.position()));
    } else {
        run.ops.attention(o, lse, row_maxima, q, k, v, scores);
    }
    if (maxima) run.ops.head_maxima(maxima, row_maxima);
    const Tensor gathered =
        output_.forward(run, saved.output, {o, xn, v, tables.output.from(run.position())});
    if (run.observer)
        run.observer->attention(run, {layer_, xn, q, k, o, lse, scores, output_.gates_of(saved.output, n),
                                      gathered, run.matrix(out_), v});
    run.ops.linear(y, gathered, run.matrix(out_), write);
    if (out_bias_) run.ops.add_bias(y, run.weight(out_bias_));
}

void AttentionLayer::backward(StepContext& run, Tensor dxn, const Tensor& dy, const Memory& memory,
                              const Tensor& xn, const SharedValues& shared) const {
    const Saved& saved = static_cast<const Saved&>(memory);
    const Workspace& workspace = saved.workspace;
    const LayerTables& tables = tables_of(run.settings);
    const int64_t n = run.batch.count();
    const Tensor qkv = saved.qkv.first_rows(n), o = saved.o.first_rows(n);
    const auto [q, k, own_values] = source_->parts_of(qkv);
    const Tensor v = values_.result(saved.values, own_values);
    const Tensor lse = saved.lse.shaped({config_.heads, n});
    const Tensor dout = workspace.dout.shaped({n, query_width()});
    const Tensor dqkv = workspace.dqkv.shaped({n, total_width()});
    const auto [dq, dk, dprojected_values] = source_->parts_of(dqkv);
    // Mixed values have their own gradient, which is split between this layer's values and those mixed in.
    const Tensor dv = values_.mixes() ? workspace.dvalues.shaped({n, value_width()}) : dprojected_values;

    if (out_bias_) run.ops.add_bias_backward(run.gradient(out_bias_), dy);
    run.weight_gradient(out_, dy, output_.result(saved.output, o));
    run.ops.linear_backward_input(output_.gradient(workspace.output, dout), dy, run.matrix(out_), Write::set);
    output_.backward(run, dout, saved.output, workspace.output, {o, xn, v, tables.output});
    AttentionSpec scores = spec(run, saved, xn, false);
    AttentionGradients also = score_.gradients(workspace.score, n);
    also.channel_sums = fading_.gradient(workspace.fading, n);
    also.sink = run.gradient(sink_);
    also.alpha_logit = run.gradient(alpha_logit_);
    learn_index(run, memory, xn);
    run.ops.attention_backward(dq, dk, dv, also, workspace.attention, dout, o, lse, q, k, v, scores);
    if (rotation_) rotation_.backward(run, steps_of(saved), {dq, dk, dv}, {q, k, v}, tables);
    if (fading_) fading_.backward(run, fading_of(saved), tables);
    output_.backward_values(run, dv, workspace.output);
    score_.backward(run, tables.score, saved.score, workspace.score, also, scores.row_start);
    values_.backward(run, dprojected_values, dv, saved.values, own_values, shared);
    source_->backward(run, dxn, dqkv, qkv, *saved.source, xn, tables);
    output_.backward_input(run, dxn, workspace.output);
    score_.backward_input(run, dxn, workspace.score, xn);
    if (rotation_) rotation_.backward_input(run, dxn, workspace.steps, xn);
    if (fading_) fading_.backward_input(run, dxn, workspace.fading, xn);
}

void AttentionLayer::learn_index(StepContext& run, const Memory& memory, const Tensor& xn) const {
    if (!index_) return;
    const Saved& saved = static_cast<const Saved&>(memory);
    const int64_t n = run.batch.count();
    const Tensor qkv = saved.qkv.first_rows(n), lse = saved.lse.shaped({config_.heads, n});
    AttentionSpec scores = spec(run, saved, xn, false);
    const auto [q, k, v] = source_->parts_of(qkv);
    index_.learn(run, run.index_losses, saved.workspace.index, xn, q, k, lse, scores,
                 tables_of(run.settings));
}

// Layers that norm queries or keys are not clipped. Neither are sticks, where one large score takes no weight from nearer
// keys, nor entmax, whose kernels gather no maxima.
bool AttentionLayer::clips() const {
    return config_.qk.kind == QkKind::none && config_.normaliser == Normaliser::softmax && !fading_;
}

Tensor AttentionLayer::maxima_in(const PassSettings& settings) const {
    if (!settings.score_maxima || !clips()) return Tensor();
    return settings.score_maxima.row_range(layer_, 1).shaped({config_.heads});
}

void AttentionLayer::clip_scores(Ops& ops, const FlatParams& weights, const PassSettings& settings,
                                 float limit) const {
    if (const Tensor maxima = maxima_in(settings)) source_->clip_scores(ops, weights, maxima, limit);
}

double AttentionLayer::flops_per_token(int64_t length, const PassSettings& settings) const {
    return 4.0 * static_cast<double>(query_width()) * reach_in(settings).mean_keys(length);
}

}  // namespace longreach::model
