#include "mixers/qkv_projection.h"

#include <cmath>

#include "model/recent_rows.h"

namespace longreach::model {

QkvProjection::QkvProjection(ParamTable& table, const ModelConfig& model, int64_t layer)
    : QkvHeads(model, layer) {
    const InitRule in{InitRule::Kind::uniform,
                      model.init.matrix_bound / std::sqrt(static_cast<double>(model.width))};
    qkv_ = table.add_joined({
        {name_ + "q.weight", {query_width(), model.width}, in, ParamGroup::matrix, true},
        {name_ + "k.weight", {value_width(), model.width}, in, ParamGroup::matrix, true},
        {name_ + "v.weight", {value_width(), model.width}, in, ParamGroup::matrix, true},
    });
    query_ = {qkv_.offset, query_width(), model.width};
    key_ = {qkv_.offset + query_width() * model.width, value_width(), model.width};
}

void QkvProjection::add_biases(ParamTable& table) {
    if (config_.bias == AttentionBias::none) return;
    const auto bias = [&](const char* what, int64_t width) {
        return table.add({name_ + what, {width}, InitRule{}, ParamGroup::scalar});
    };
    q_bias_ = bias("q.bias", query_width());
    k_bias_ = bias("k.bias", value_width());
    v_bias_ = bias("v.bias", value_width());
}

void QkvProjection::add_convolutions(ParamTable& table) {
    const ConvConfig& conv = config_.conv;
    if (conv.size == 0) return;
    const auto add = [&](bool wanted, const char* what, int64_t width) {
        const InitRule first{InitRule::Kind::first_row, 1};
        return wanted ? table.add({name_ + what, {conv.size, width}, first, ParamGroup::scalar}) : ParamRef();
    };
    q_conv_ = add(conv.queries, "q_conv.weight", query_width());
    k_conv_ = add(conv.keys, "k_conv.weight", value_width());
    v_conv_ = add(conv.values, "v_conv.weight", value_width());
}

std::unique_ptr<QkvSource::Memory> QkvProjection::plan(Arena& arena, const std::string& name,
                                                       int64_t tokens) const {
    auto memory = std::make_unique<Memory>();
    if (convolves())
        memory->projected =
            arena.activation(name + "projected", {tokens + config_.conv.size - 1, total_width()});
    plan_heads(*memory, arena, name, tokens);
    return memory;
}

void QkvProjection::plan_workspace(QkvSource::Memory& memory, Arena& arena, int64_t tokens,
                                   bool training) const {
    if (!training || !convolves()) return;
    static_cast<Memory&>(memory).dprojected = arena.activation("dprojected", {tokens, total_width()});
}

void QkvProjection::plan_kept(QkvSource::Memory& memory, KeptTexts& kept, const std::string& name,
                              bool far) const {
    QkvHeads::plan_kept(memory, kept, name, far);
    plan_pieces(memory, kept, name);
}

void QkvProjection::plan_pieces(QkvSource::Memory& memory, KeptTexts& kept, const std::string& name) const {
    if (!convolves()) return;
    Memory& m = static_cast<Memory&>(memory);
    const int64_t size = config_.conv.size;
    m.recent = kept.recent(name + "recent", size, total_width());
    m.convolved = kept.arena().activation(name + "convolved", {kept.texts() * size, total_width()});
}

void QkvProjection::add_biases_to(StepContext& run, const Tensor& projected) const {
    if (!q_bias_) return;
    const Qkv to = parts_of(projected);
    run.ops.add_bias(to.q, run.weight(q_bias_));
    run.ops.add_bias(to.k, run.weight(k_bias_));
    run.ops.add_bias(to.v, run.weight(v_bias_));
}

void QkvProjection::forward(StepContext& run, const QkvSource::Memory& memory, const Tensor& qkv,
                            const Tensor& xn) const {
    if (!convolves()) {
        run.ops.linear(qkv, xn, run.matrix(qkv_), Write::set);
        return add_biases_to(run, qkv);
    }
    const Memory& m = static_cast<const Memory&>(memory);
    const int64_t n = run.batch.count();
    Tensor projected = behind_recent(run, m.projected, m.recent, config_.conv.size), result = qkv;
    int64_t length = run.batch.length;
    run.ops.linear(projected, xn, run.matrix(qkv_), Write::set);
    add_biases_to(run, projected);
    if (run.generation != nullptr) keep_recent(run, m.recent, projected, config_.conv.size);
    if (run.decoding()) {  // convolve the recent rows; the last is the new one
        length = config_.conv.size;
        projected = m.recent.first_rows(n * length);
        result = m.convolved.first_rows(n * length);
    }
    const auto convolve = [&](const Tensor& to, const Tensor& from, const ParamRef& w) {
        w ? run.ops.short_conv(to, from, run.weight(w), run.batch.doc_start, length) : run.ops.copy(to, from);
    };
    const Qkv to = parts_of(result), from = parts_of(projected);
    convolve(to.q, from.q, q_conv_);
    convolve(to.k, from.k, k_conv_);
    convolve(to.v, from.v, v_conv_);
    if (run.decoding()) run.ops.copy(qkv, every(result, length, length - 1));
}

void QkvProjection::backward(StepContext& run, Tensor dxn, const Tensor& dqkv, const Tensor& qkv,
                             const QkvSource::Memory& memory, const Tensor& xn,
                             const LayerTables& tables) const {
    const Memory& m = static_cast<const Memory&>(memory);
    turn_back(run, dqkv, qkv, m, tables);
    const int64_t n = run.batch.count();
    Tensor din = dqkv;
    if (convolves()) {
        din = m.dprojected.shaped({n, total_width()});
        const auto convolve = [&](const Tensor& dx, const Tensor& dconvolved, const Tensor& x,
                                  const ParamRef& w) {
            w ? run.ops.short_conv_backward(dx, run.gradient(w), dconvolved, x, run.weight(w),
                                            run.batch.doc_start, run.batch.length)
              : run.ops.copy(dx, dconvolved);
        };
        const Qkv to = parts_of(din), d = parts_of(dqkv), x = parts_of(m.projected.first_rows(n));
        convolve(to.q, d.q, x.q, q_conv_);
        convolve(to.k, d.k, x.k, k_conv_);
        convolve(to.v, d.v, x.v, v_conv_);
    }
    if (q_bias_) {
        const Qkv d = parts_of(din);
        run.ops.add_bias_backward(run.gradient(q_bias_), d.q);
        run.ops.add_bias_backward(run.gradient(k_bias_), d.k);
        run.ops.add_bias_backward(run.gradient(v_bias_), d.v);
    }
    run.weight_gradient(qkv_, din, xn);
    run.ops.linear_backward_input(dxn, din, run.matrix(qkv_), Write::set);
}

void QkvProjection::clip_scores(Ops& ops, const FlatParams& weights, const Tensor& maxima,
                                float limit) const {
    ops.qk_clip(weights.view(query_), weights.view(key_), maxima, config_.head_dim, limit);
    if (!q_bias_) return;
    const auto column = [&](const ParamRef& bias) { return weights.view(bias).shaped({bias.cols, 1}); };
    ops.qk_clip(column(q_bias_), column(k_bias_), maxima, config_.head_dim, limit);
}

}  // namespace longreach::model
