#include "model/attention_layer.h"

#include <algorithm>
#include <cmath>

namespace longreach {

namespace {

InitRule uniform(double bound, int64_t fan_in) {
    return {InitRule::Kind::uniform, bound / std::sqrt(static_cast<double>(fan_in))};
}

}  // namespace

AttentionLayer::AttentionLayer(ParamTable& table, const ModelConfig& model, int64_t layer)
    : config_(model.layer_attention(layer)), window_(config_.window) {
    const std::string name = fmt::format("layers.{}.attention.", layer);
    const InitRule in = uniform(model.init.matrix_bound, model.width);
    const InitRule out =
        model.init.zero_projections ? InitRule{} : uniform(model.init.matrix_bound, query_width());
    qkv_ = table.add_joined({
        {name + "q.weight", {query_width(), model.width}, in, ParamGroup::matrix, true},
        {name + "k.weight", {value_width(), model.width}, in, ParamGroup::matrix, true},
        {name + "v.weight", {value_width(), model.width}, in, ParamGroup::matrix, true},
    });
    out_ = table.add({name + "o.weight", {model.width, query_width()}, out, ParamGroup::matrix, true});
    mixes_values_ = model.residual.values == ValueMix::first && layer > 0;
    if (mixes_values_)
        lambda_ = table.add({name + "value_mix", {1}, {InitRule::Kind::constant, 0.5}, ParamGroup::scalar});
}

AttentionLayer::Saved AttentionLayer::plan(Arena& arena, const std::string& name, int64_t tokens) const {
    Saved saved;
    saved.qkv = arena.reserve(name + "qkv", DType::f32, {tokens, total_width()});
    if (mixes_values_) saved.values = arena.reserve(name + "values", DType::f32, {tokens, value_width()});
    if (config_.qk.kind == QkKind::qk_rms)
        saved.inverse =
            arena.reserve(name + "qk_inverse", DType::f32, {tokens, config_.heads + config_.kv()});
    saved.o = arena.reserve(name + "attention", DType::f32, {tokens, query_width()});
    saved.lse = arena.reserve(name + "lse", DType::f32, {config_.heads, tokens});
    return saved;
}

AttentionLayer::Workspace AttentionLayer::plan_workspace(Arena& arena, Ops& ops,
                                                         const std::vector<const AttentionLayer*>& layers,
                                                         int64_t tokens,
                                                         const std::vector<int64_t>& lengths) {
    int64_t total = 0, values = 0, queries = 0, attention = 0;
    for (const AttentionLayer* layer : layers) {
        total = std::max(total, layer->total_width());
        queries = std::max(queries, layer->query_width());
        if (layer->mixes_values_) values = std::max(values, layer->value_width());
        for (int64_t length : lengths)
            attention =
                std::max(attention, ops.attention_workspace(layer->attention_shape(tokens / length, length),
                                                            AttentionGradients()));
    }
    Workspace w;
    w.dqkv = arena.reserve("dqkv", DType::f32, {tokens * total});
    if (values > 0) w.dvalues = arena.reserve("dvalues", DType::f32, {tokens * values});
    w.dout = arena.reserve("dattention", DType::f32, {tokens * queries});
    w.attention = arena.reserve("attention_workspace", DType::f32, {attention / 4 + 1});
    return w;
}

HeadSpec AttentionLayer::head_spec(int64_t length, int64_t heads) const {
    HeadSpec spec;
    spec.length = length;
    spec.heads = heads;
    spec.head_dim = config_.head_dim;
    spec.norm = config_.qk.kind == QkKind::qk_rms ? HeadNorm::rms : HeadNorm::none;
    spec.eps = static_cast<float>(config_.qk.eps);
    spec.cosine = tables_.cosine;
    spec.sine = tables_.sine;
    return spec;
}

AttentionSpec AttentionLayer::attention_shape(int64_t batch, int64_t length) const {
    AttentionSpec spec;
    spec.batch = batch;
    spec.length = length;
    spec.heads = config_.heads;
    spec.kv_heads = config_.kv();
    spec.head_dim = config_.head_dim;
    spec.scale = static_cast<float>(1 / std::sqrt(static_cast<double>(config_.head_dim)));
    return spec;
}

AttentionSpec AttentionLayer::attention_spec(const StepContext& run) const {
    AttentionSpec spec = attention_shape(run.batch.sequences, run.batch.length);
    spec.row_start = run.masks.of(window_);
    spec.distance_gain = tables_.gain;
    spec.distance_bias = tables_.bias;
    return spec;
}

Tensor AttentionLayer::values_of(const Saved& saved, int64_t tokens) const {
    return saved.qkv.first_rows(tokens).col_range(query_width() + value_width(), value_width());
}

void AttentionLayer::forward(StepContext& run, const Saved& saved, Tensor x, const Tensor& xn,
                             const Tensor& first_values) const {
    const int64_t n = run.batch.count();
    const Tensor qkv = saved.qkv.first_rows(n);
    run.ops.linear(qkv, xn, run.weight(qkv_), Write::set);
    Tensor values = values_of(saved, n);
    if (mixes_values_) {
        const Coefficient own{run.weight(lambda_), -1, 1}, first{run.weight(lambda_), 1, 0};
        run.ops.mix(saved.values.first_rows(n), own, values, first, first_values);
        values = saved.values.first_rows(n);
    }
    const Tensor inverse = saved.inverse ? saved.inverse.first_rows(n) : Tensor();
    const Tensor q = qkv.col_range(0, query_width()), k = qkv.col_range(query_width(), value_width());
    run.ops.prepare_heads(q, Tensor(), inverse ? inverse.col_range(0, config_.heads) : Tensor(),
                          head_spec(run.batch.length, config_.heads));
    run.ops.prepare_heads(k, Tensor(), inverse ? inverse.col_range(config_.heads, config_.kv()) : Tensor(),
                          head_spec(run.batch.length, config_.kv()));
    const Tensor o = saved.o.first_rows(n);
    const Tensor lse(saved.lse.data, DType::f32, {config_.heads, n});
    run.ops.attention(o, lse, Tensor(), qkv.col_range(0, query_width()),
                      qkv.col_range(query_width(), value_width()), values, attention_spec(run));
    run.ops.linear(x, o, run.weight(out_), Write::add);
}

void AttentionLayer::backward(StepContext& run, Tensor dxn, Tensor dfirst_values, const Tensor& later,
                              const Tensor& dx, const Saved& saved, const Workspace& workspace,
                              const Tensor& xn, const Tensor& first_values) const {
    const int64_t n = run.batch.count();
    const Tensor qkv = saved.qkv.first_rows(n), o = saved.o.first_rows(n);
    const Tensor lse(saved.lse.data, DType::f32, {config_.heads, n});
    const Tensor dout(workspace.dout.data, DType::f32, {n, query_width()});
    const Tensor dqkv(workspace.dqkv.data, DType::f32, {n, total_width()});
    const Tensor values = mixes_values_ ? saved.values.first_rows(n) : values_of(saved, n);
    const Tensor dvalues = dqkv.col_range(query_width() + value_width(), value_width());

    run.ops.linear_backward_weight(run.gradient(out_), dx, o);
    run.ops.linear_backward_input(dout, dx, run.weight(out_), Write::set);
    // With mixed values their gradient goes to a buffer of its own, to be split between this layer and the
    // first.
    const Tensor dmixed =
        mixes_values_ ? Tensor(workspace.dvalues.data, DType::f32, {n, value_width()}) : dvalues;
    run.ops.attention_backward(dqkv.col_range(0, query_width()), dqkv.col_range(query_width(), value_width()),
                               dmixed, AttentionGradients(), workspace.attention, dout, o, lse,
                               qkv.col_range(0, query_width()), qkv.col_range(query_width(), value_width()),
                               values, attention_spec(run));
    const Tensor inverse = saved.inverse ? saved.inverse.first_rows(n) : Tensor();
    run.ops.prepare_heads_backward(dqkv.col_range(0, query_width()), Tensor(), Tensor(), Tensor(),
                                   qkv.col_range(0, query_width()), Tensor(),
                                   inverse ? inverse.col_range(0, config_.heads) : Tensor(),
                                   head_spec(run.batch.length, config_.heads));
    run.ops.prepare_heads_backward(dqkv.col_range(query_width(), value_width()), Tensor(), Tensor(), Tensor(),
                                   qkv.col_range(query_width(), value_width()), Tensor(),
                                   inverse ? inverse.col_range(config_.heads, config_.kv()) : Tensor(),
                                   head_spec(run.batch.length, config_.kv()));
    if (mixes_values_) {
        const Coefficient own{run.weight(lambda_), -1, 1}, first{run.weight(lambda_), 1, 0};
        run.ops.mix_backward(dvalues, dfirst_values, run.gradient(lambda_), run.gradient(lambda_), dmixed,
                             own, values_of(saved, n), first, first_values);
    }
    if (later) run.ops.mix(dvalues, Coefficient(), dvalues, Coefficient(), later);
    run.ops.linear_backward_weight(run.gradient(qkv_), dqkv, xn);
    run.ops.linear_backward_input(dxn, dqkv, run.weight(qkv_), Write::set);
}

double AttentionLayer::flops_per_token(int64_t length) const {
    // Mean number of visible keys of a query: (T + 1) / 2, or about W when the window is short.
    const double t = static_cast<double>(length), w = static_cast<double>(window_);
    const double keys = window_ == 0 || w >= t ? (t + 1) / 2 : w - w * (w - 1) / (2 * t);
    return 4.0 * static_cast<double>(query_width()) * keys;
}

}  // namespace longreach
