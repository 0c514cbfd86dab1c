#include "mixers/attention_layer.h"

#include <algorithm>
#include <cmath>

#include "model/forward_observer.h"
#include "model/recent_rows.h"

namespace longreach::model {

namespace {

InitRule uniform(double bound, int64_t fan_in) {
    return {InitRule::Kind::uniform, bound / std::sqrt(static_cast<double>(fan_in))};
}

}  // namespace

AttentionLayer::AttentionLayer(ParamTable& table, const ModelConfig& model, int64_t layer)
    : config_(model.layer_attention(layer)), layer_(layer), reach_(configured_reach()) {
    const std::string name = fmt::format("layers.{}.attention.", layer);
    const InitRule in = uniform(model.init.matrix_bound, model.width);
    const InitRule out =
        model.init.zero_projections ? InitRule{} : uniform(model.init.matrix_bound, query_width());
    if (config_.gated_unit()) {
        gau_ = GauInput(table, model, layer);
    } else if (config_.latent) {
        latent_ = Latent(table, model, layer);
    } else {
        qkv_ = table.add_joined({
            {name + "q.weight", {query_width(), model.width}, in, ParamGroup::matrix, true},
            {name + "k.weight", {value_width(), model.width}, in, ParamGroup::matrix, true},
            {name + "v.weight", {value_width(), model.width}, in, ParamGroup::matrix, true},
        });
        query_ = {qkv_.offset, query_width(), model.width};
        key_ = {qkv_.offset + query_width() * model.width, value_width(), model.width};
    }
    out_ = table.add({name + "o.weight", {model.width, query_width()}, out, ParamGroup::matrix, true});
    const auto bias = [&](bool wanted, const char* what, int64_t width) {
        return wanted ? table.add({name + what, {width}, InitRule{}, ParamGroup::scalar}) : ParamRef();
    };
    const bool biased = config_.bias != AttentionBias::none;
    q_bias_ = bias(biased, "q.bias", query_width());
    k_bias_ = bias(biased, "k.bias", value_width());
    v_bias_ = bias(biased, "v.bias", value_width());
    out_bias_ = bias(config_.bias == AttentionBias::all, "o.bias", model.width);
    if (config_.conv.size > 0) {
        const auto conv = [&](bool wanted, const char* what, int64_t width) {
            return wanted ? table.add({name + what,
                                       {config_.conv.size, width},
                                       {InitRule::Kind::first_row, 1},
                                       ParamGroup::scalar})
                          : ParamRef();
        };
        q_conv_ = conv(config_.conv.queries, "q_conv.weight", query_width());
        k_conv_ = conv(config_.conv.keys, "k_conv.weight", value_width());
        v_conv_ = conv(config_.conv.values, "v_conv.weight", value_width());
    }
    values_ = ValuePath(table, model, layer);
    const bool grows = !trained_angle(model, layer).growth.empty();
    query_heads_ = Heads(table, name, config_, Heads::Part::queries, grows);
    key_heads_ = Heads(table, name, config_, Heads::Part::keys, grows);
    score_ = ScoreLaw(table, model, layer);
    output_ = AttentionOutput(table, model, layer);
    forget_ = ForgetGate(table, model, layer);
    index_ = KeyIndex(table, model, layer);
    if (config_.sink == SinkKind::learned)
        sink_ = table.add({name + "sink", {config_.heads}, InitRule{}, ParamGroup::scalar});
    base_ = score_.base() / query_heads_.length() / key_heads_.length();
}

std::unique_ptr<Mixer::Memory> AttentionLayer::plan(Arena& arena, const std::string& name, int64_t tokens,
                                                    const std::vector<int64_t>&, bool training) const {
    auto memory = std::make_unique<Saved>();
    Saved& saved = *memory;
    saved.qkv = arena.activation(name + "qkv", {tokens, total_width()});
    if (convolves()) saved.projected = arena.activation(name + "projected", {tokens, total_width()});
    if (latent_) saved.latent = latent_.plan(arena, name, tokens);
    if (far_pairs_ && !training)
        saved.far = arena.activation(name + "far", {tokens, query_width() + value_width()});
    saved.queries = query_heads_.plan(arena, name + "queries", tokens);
    saved.keys = key_heads_.plan(arena, name + "keys", tokens);
    saved.values = values_.plan(arena, name, tokens);
    saved.score = score_.plan(arena, name, tokens, score_rows_);
    saved.o = arena.activation(name + "attention", {tokens, query_width()});
    saved.lse = arena.reserve(name + "lse", DType::f32, {config_.heads, tokens});
    saved.output = output_.plan(arena, name, tokens);
    saved.forget = forget_.plan(arena, name, tokens);
    if (gau_) saved.gau = gau_.plan(arena, name, tokens);
    return memory;
}

void AttentionLayer::plan_workspace(Memory& memory, Arena& arena, Ops& ops, int64_t tokens,
                                    const std::vector<int64_t>& lengths, bool training) const {
    Workspace& w = static_cast<Saved&>(memory).workspace;
    const int64_t longest = *std::max_element(lengths.begin(), lengths.end());
    w.score = score_.plan_buffers(arena, tokens, longest, training);
    if (latent_) w.latent = latent_.plan_workspace(arena, tokens, training);
    if (training || index_chooses_) w.index = index_.plan_workspace(arena, tokens, training);
    if (!training) return;

    if (gathers_maxima_) w.row_maxima = arena.reserve("row_maxima", DType::f32, {config_.heads, tokens});
    w.dqkv = arena.activation("dqkv", {tokens, total_width()});
    if (convolves()) w.dprojected = arena.activation("dprojected", {tokens, total_width()});
    if (values_.mixes()) w.dvalues = arena.activation("dvalues", {tokens, value_width()});
    w.dout = arena.activation("dattention", {tokens, query_width()});
    w.output = output_.plan_workspace(arena, tokens);
    w.forget = forget_.plan_workspace(arena, tokens);
    if (gau_) w.gau = gau_.plan_workspace(arena, tokens);

    AttentionGradients g = score_.gradients(w.score, tokens);  // only the shapes count
    g.forget = w.forget.dsums;
    if (sink_) g.sink = Tensor(nullptr, DType::f32, {config_.heads});
    int64_t bytes = 0;
    for (int64_t length : lengths)
        bytes = std::max(bytes, ops.attention_workspace(shape(tokens / length, length), g));
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
    spec.stick_breaking = config_.normaliser == Normaliser::stick_breaking;
    return spec;
}

AttentionSpec AttentionLayer::spec(StepContext& run, const Saved& saved, bool fill) const {
    AttentionSpec spec = shape(run.batch.sequences, run.batch.length);
    spec.scale = static_cast<float>(base_ * tables_.score.factor);
    // All queries of a decoding step, one per sequence, count the same number of keys.
    const bool visible = config_.scale.scale_n == ScaleCount::visible;
    const int64_t counted = run.position() - (visible ? first_key(run.position()) : 0);
    if (!run.decoding()) spec.row_start = run.masks.of(configured_reach());
    score_.apply(spec, run, tables_.score, saved.score, saved.workspace.score, counted, fill);
    spec.sink = config_.sink == SinkKind::zero ? tables_.zeros.first(config_.heads) : run.weight(sink_);
    spec.absolute_maxima = absolute_maxima_;
    if (!run.probing) {  // a probe looks at the model as trained
        spec.top_k = tables_.top_k;
        spec.top_k_block = tables_.top_k_block;
    }
    return spec;
}

void AttentionLayer::plan_decoding(Memory& memory, Arena& arena, const std::string& name, int64_t sequences,
                                   int64_t room) const {
    Cache& cache = static_cast<Saved&>(memory).cache;
    cache.forget = forget_.plan_cache(arena, name, sequences, room);
    if (index_chooses_) cache.index_keys = index_.plan_cache(arena, name, sequences, room);
    if (latent_) {
        cache.latent = latent_.plan_cache(arena, name, sequences, room, far_pairs_);
        return;
    }
    cache.keys = arena.cached(name + "keys", {sequences * room, value_width()});
    cache.values = arena.cached(name + "values", {sequences * room, value_width()});
    if (far_pairs_) cache.far_keys = arena.cached(name + "far_keys", {sequences * room, value_width()});
    if (convolves()) {
        const int64_t rows = sequences * config_.conv.size;
        cache.recent = arena.activation(name + "recent", {rows, total_width()});
        cache.convolved = arena.activation(name + "convolved", {rows, total_width()});
    }
}

int64_t AttentionLayer::first_key(int64_t position) const {
    int64_t first = 0;
    if (reach_.window > 0) first = std::max(first, position - reach_.window + 1);
    if (reach_.chunk > 0) first = std::max(first, position / reach_.chunk * reach_.chunk);
    return first;
}

void AttentionLayer::add_biases(StepContext& run, const Tensor& projected) const {
    if (!q_bias_) return;
    run.ops.add_bias(queries_of(projected), run.weight(q_bias_));
    run.ops.add_bias(keys_of(projected), run.weight(k_bias_));
    run.ops.add_bias(values_of(projected), run.weight(v_bias_));
}

void AttentionLayer::project(StepContext& run, const Saved& saved, const Tensor& xn) const {
    const int64_t n = run.batch.count();
    const Tensor qkv = saved.qkv.first_rows(n);
    if (gau_) return gau_.forward(run, saved.gau, queries_of(qkv), keys_of(qkv), values_of(qkv), xn);
    if (latent_)
        return latent_.project(run, saved.latent, saved.workspace.latent, queries_of(qkv), keys_of(qkv),
                               values_of(qkv), xn);
    if (!convolves()) {
        run.ops.linear(qkv, xn, run.matrix(qkv_), Write::set);
        return add_biases(run, qkv);
    }
    Tensor projected = saved.projected.first_rows(n), result = qkv;
    int64_t length = run.batch.length;
    run.ops.linear(projected, xn, run.matrix(qkv_), Write::set);
    add_biases(run, projected);
    if (run.generation != nullptr) keep_recent(run, saved.cache.recent, projected, config_.conv.size);
    if (run.decoding()) {  // convolve the recent rows; the last is the new one
        length = config_.conv.size;
        projected = saved.cache.recent.first_rows(n * length);
        result = saved.cache.convolved.first_rows(n * length);
    }
    const auto convolve = [&](const Tensor& to, const Tensor& from, const ParamRef& w) {
        w ? run.ops.short_conv(to, from, run.weight(w), run.batch.doc_start, length) : run.ops.copy(to, from);
    };
    convolve(queries_of(result), queries_of(projected), q_conv_);
    convolve(keys_of(result), keys_of(projected), k_conv_);
    convolve(values_of(result), values_of(projected), v_conv_);
    if (run.decoding()) run.ops.copy(qkv, every(result, length, length - 1));
}

void AttentionLayer::treat(StepContext& run, const Saved& saved, const Tensor& q, const Tensor& k,
                           bool far) const {
    const Rotation queries = (far ? tables_.far_queries : tables_.queries).from(run.position());
    const Rotation keys = (far ? tables_.far_keys : tables_.keys).from(run.position());
    if (latent_)
        return latent_.turn(run, saved.latent, saved.workspace.latent,
                            far ? saved.cache.latent.far_rows : saved.cache.latent.rows, q, k, queries, keys);
    query_heads_.forward(run, saved.queries, q, queries, tables_.ones);
    key_heads_.forward(run, saved.keys, k, keys, tables_.ones);
}

void AttentionLayer::decode(StepContext& run, const Cache& cache, const Tensor& o, const Tensor& q,
                            AttentionSpec scores) const {
    scores.length = run.generation->room;
    const int64_t first = first_key(run.position());
    if (latent_) return latent_.decode(run, cache.latent, o, q, scores, first);
    const auto kept = [&](const Tensor& rows) { return rows.first_rows(q.rows() * scores.length); };
    if (scores.far_keys) scores.far_keys = kept(cache.far_keys);
    run.ops.attention_decode(o, q, kept(cache.keys), kept(cache.values), scores, first, run.position());
}

void AttentionLayer::forward(StepContext& run, const Memory& memory, Tensor y, Write write, const Tensor& xn,
                             const SharedValues& shared) const {
    const Saved& saved = static_cast<const Saved&>(memory);
    const int64_t n = run.batch.count();
    const Tensor qkv = saved.qkv.first_rows(n), q = queries_of(qkv), k = keys_of(qkv);
    project(run, saved, xn);
    AttentionSpec scores = spec(run, saved, true);
    if (forget_) scores.forget = forget_.forward(run, saved.forget, saved.cache.forget, xn);
    if (index_chooses_ && scores.top_k > 0)
        scores.index = index_.forward(run, saved.workspace.index, saved.cache.index_keys, xn, tables_);
    if (tables_.far_from > 0) {
        const Tensor far = saved.far.first_rows(n);
        scores.far_queries = queries_of(far);
        scores.far_keys = keys_of(far);
        scores.far_from = tables_.far_from;
        run.ops.copy(scores.far_queries, q);
        run.ops.copy(scores.far_keys, k);
        treat(run, saved, scores.far_queries, scores.far_keys, true);
    }
    treat(run, saved, q, k, false);
    const Tensor v = values_.forward(run, saved.values, values_of(qkv), shared);
    const Tensor o = saved.o.first_rows(n);
    const Tensor lse = saved.lse.shaped({config_.heads, n});
    Tensor row_maxima;
    if (maxima_ && run.training) row_maxima = saved.workspace.row_maxima.shaped({config_.heads, n});
    if (run.generation != nullptr && !latent_) {
        keep_rows(run, saved.cache.keys, k);
        keep_rows(run, saved.cache.values, v);
        if (scores.far_keys) keep_rows(run, saved.cache.far_keys, scores.far_keys);
    }
    if (run.decoding()) {
        decode(run, saved.cache, o, q, scores);
    } else {
        run.ops.attention(o, lse, row_maxima, q, k, v, scores);
    }
    if (row_maxima) run.ops.head_maxima(maxima_, row_maxima);
    const Tensor gathered = output_.forward(run, saved.output, o, xn, tables_.output.from(run.position()));
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
    const int64_t n = run.batch.count();
    const Tensor qkv = saved.qkv.first_rows(n), o = saved.o.first_rows(n);
    const Tensor q = queries_of(qkv), k = keys_of(qkv), v = values_.result(saved.values, values_of(qkv));
    const Tensor lse = saved.lse.shaped({config_.heads, n});
    const Tensor dout = workspace.dout.shaped({n, query_width()});
    const Tensor dqkv = workspace.dqkv.shaped({n, total_width()});
    const Tensor dq = queries_of(dqkv), dk = keys_of(dqkv), dprojected_values = values_of(dqkv);
    // Mixed values have their own gradient, which is split between this layer's values and those mixed in.
    const Tensor dv = values_.mixes() ? workspace.dvalues.shaped({n, value_width()}) : dprojected_values;

    if (out_bias_) run.ops.add_bias_backward(run.gradient(out_bias_), dy);
    run.weight_gradient(out_, dy, output_.result(saved.output, o));
    run.ops.linear_backward_input(dout, dy, run.matrix(out_), Write::set);
    output_.backward(run, dout, saved.output, workspace.output, o, xn, tables_.output);
    AttentionSpec scores = spec(run, saved, false);
    AttentionGradients also = score_.gradients(workspace.score, n);
    also.sink = run.gradient(sink_);
    if (forget_) {
        scores.forget = forget_.sums(saved.forget, n);
        also.forget = forget_.gradient(workspace.forget, n);
    }
    learn_index(run, memory, xn);
    run.ops.attention_backward(dq, dk, dv, also, workspace.attention, dout, o, lse, q, k, v, scores);
    score_.backward(run, tables_.score, workspace.score, also, scores.row_start);
    if (latent_) {
        latent_.backward(run, dxn, {dq, dk, dv}, saved.latent, workspace.latent, xn, tables_);
    } else {
        query_heads_.backward(run, dq, q, saved.queries, tables_.queries, tables_.ones);
        key_heads_.backward(run, dk, k, saved.keys, tables_.keys, tables_.ones);
        values_.backward(run, dprojected_values, dv, saved.values, values_of(qkv), shared);
        project_backward(run, dxn, dqkv, saved, xn);
    }
    output_.backward_input(run, dxn, workspace.output);
    if (forget_) forget_.backward(run, dxn, saved.forget, workspace.forget, xn);
}

void AttentionLayer::learn_index(StepContext& run, const Memory& memory, const Tensor& xn) const {
    if (!index_) return;
    const Saved& saved = static_cast<const Saved&>(memory);
    const int64_t n = run.batch.count();
    const Tensor qkv = saved.qkv.first_rows(n), lse = saved.lse.shaped({config_.heads, n});
    AttentionSpec scores = spec(run, saved, false);
    if (forget_) scores.forget = forget_.sums(saved.forget, n);
    index_.learn(run, run.index_losses.range(index_place_ * n, n), saved.workspace.index, xn, queries_of(qkv),
                 keys_of(qkv), lse, scores, tables_);
}

void AttentionLayer::project_backward(StepContext& run, Tensor dxn, const Tensor& dqkv, const Saved& saved,
                                      const Tensor& xn) const {
    const int64_t n = run.batch.count();
    const Tensor dq = queries_of(dqkv), dk = keys_of(dqkv), dv = values_of(dqkv);
    if (gau_) return gau_.backward(run, dxn, dq, dk, dv, saved.gau, saved.workspace.gau, xn);
    Tensor din = dqkv;
    if (convolves()) {
        din = saved.workspace.dprojected.shaped({n, total_width()});
        const Tensor projected = saved.projected.first_rows(n);
        const auto convolve = [&](const Tensor& dx, const Tensor& dconvolved, const Tensor& x,
                                  const ParamRef& w) {
            w ? run.ops.short_conv_backward(dx, run.gradient(w), dconvolved, x, run.weight(w),
                                            run.batch.doc_start, run.batch.length)
              : run.ops.copy(dx, dconvolved);
        };
        convolve(queries_of(din), dq, queries_of(projected), q_conv_);
        convolve(keys_of(din), dk, keys_of(projected), k_conv_);
        convolve(values_of(din), dv, values_of(projected), v_conv_);
    }
    if (q_bias_) {
        run.ops.add_bias_backward(run.gradient(q_bias_), queries_of(din));
        run.ops.add_bias_backward(run.gradient(k_bias_), keys_of(din));
        run.ops.add_bias_backward(run.gradient(v_bias_), values_of(din));
    }
    run.weight_gradient(qkv_, din, xn);
    run.ops.linear_backward_input(dxn, din, run.matrix(qkv_), Write::set);
}

void AttentionLayer::gather_maxima(Tensor max, bool absolute) {
    // Layers that norm queries or keys are not clipped. Neither are sticks: one large score does not take
    // weight from nearer keys.
    if (config_.qk.kind != QkKind::none || config_.normaliser != Normaliser::softmax) return;
    gathers_maxima_ = true;
    maxima_ = max;
    absolute_maxima_ = absolute;
}

void AttentionLayer::clip_scores(Ops& ops, const FlatParams& weights, float limit) const {
    if (!maxima_) return;
    if (gau_) return gau_.clip(ops, weights, maxima_, limit);
    if (latent_) return latent_.clip_scores(ops, weights, maxima_, limit);
    ops.qk_clip(weights.view(query_), weights.view(key_), maxima_, config_.head_dim, limit);
    if (!q_bias_) return;
    const auto column = [&](const ParamRef& bias) { return weights.view(bias).shaped({bias.cols, 1}); };
    ops.qk_clip(column(q_bias_), column(k_bias_), maxima_, config_.head_dim, limit);
}

double AttentionLayer::flops_per_token(int64_t length) const {
    // Mean number of visible keys of a query: (T + 1) / 2, or about W if the window is short. A chunk counts
    // as a sequence of its length.
    const double w = static_cast<double>(reach_.window), c = static_cast<double>(reach_.chunk);
    double t = static_cast<double>(length);
    if (reach_.chunk > 0) t = std::min(t, c);
    const double keys = reach_.window == 0 || w >= t ? (t + 1) / 2 : w - w * (w - 1) / (2 * t);
    return 4.0 * static_cast<double>(query_width()) * keys;
}

}  // namespace longreach::model
