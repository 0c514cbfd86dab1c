#include "mixers/delta_layer.h"

#include <algorithm>
#include <cmath>

#include "model/forward_observer.h"
#include "model/recent_rows.h"

namespace longreach::model {

namespace {

InitRule uniform(const ModelConfig& model, int64_t fan_in) {
    return {InitRule::Kind::uniform, model.init.matrix_bound / std::sqrt(static_cast<double>(fan_in))};
}

// |x| is sqrt(|x|^2 + this).
constexpr double least_square = 1e-6;

void list_delta(AttentionConfig& layout, config::Fields& f) {
    f.section("delta", layout.own<DeltaConfig>(), {"the gated delta rule, of mixers with a state"});
}

void check_delta(const LayoutRules& rules) {
    rules.needs_multiple_of_4(".delta.value_dim", rules.a.own<DeltaConfig>().value_dim);
}

int64_t state_numbers(const AttentionConfig& layout) {
    return layout.heads * layout.head_dim * layout.own<DeltaConfig>().value_channels(layout.head_dim);
}

constexpr std::string_view delta_fields[] = {".delta.value_dim", ".delta.conv", ".delta.additive",
                                             ".delta.negative_eigenvalues", ".delta.start"};
constexpr std::string_view erasing_fields[] = {".delta.value_dim", ".delta.conv",
                                               ".delta.negative_eigenvalues", ".delta.start"};

constexpr MixerType delta_rows[] = {
    {.help = "Gated DeltaNet: a state of head_dim x value_dim per head that decays and is corrected by the "
             "delta rule",
     .words = "Gated DeltaNet",
     .sources = "yang2024gdn",
     .part = {.field = ".mixer", .word = "gdn", .fields = list_delta, .check = check_delta},
     .reads = delta_fields,
     .construct = make_mixer<DeltaLayer, DeltaKind::gdn>,
     .state = state_numbers},
    {.help = "Kimi Delta Attention: the same with a decay for every key channel",
     .words = "Kimi Delta Attention",
     .sources = "kimi2025linear",
     .part = {.field = ".mixer", .word = "kda", .fields = list_delta, .check = check_delta},
     .reads = delta_fields,
     .construct = make_mixer<DeltaLayer, DeltaKind::kda>,
     .state = state_numbers},
    {.help =
         "Gated DeltaNet-2: as kda, with a gate for every key channel of what is erased and one for every "
         "value channel of what is written in place of beta; on a CPU only",
     .words = "Gated DeltaNet-2",
     .sources = "hatamizadeh2026gdn2",
     .part = {.field = ".mixer",
              .word = "gdn2",
              .no_gpu = "no GPU computes gdn2",
              .fields = list_delta,
              .check = check_delta},
     .reads = erasing_fields,
     .construct = make_mixer<DeltaLayer, DeltaKind::gdn2>,
     .state = state_numbers},
};

}  // namespace

std::span<const MixerType> delta_mixers() {
    return delta_rows;
}

bool passes_states(const AttentionConfig& layout) {
    return reads(layout, ".delta.start") && layout.own<DeltaConfig>().start == StateStart::previous;
}

void DeltaConfig::fields(config::Fields& f) {
    f.integer("value_dim", value_dim, {.min = 0, .max = 512},
              {"channels of a head's values; head_dim are those of its keys; 0: head_dim"});
    f.integer("conv", conv, {.min = 0, .max = 16},
              {"positions K of the causal depthwise convolution of queries, keys and values; 0: none"});
    f.flag(
        "additive", additive,
        {.help = "add beta v to the state without taking back what it holds for the key: the recurrence of "
                 "Mamba-2 (gdn), of gated linear attention (kda)",
         .words = "states that are added to without correction",
         .sources = "dao2024mamba2"});
    f.flag(
        "negative_eigenvalues", negative_eigenvalues,
        {.help =
             "the gate of what is taken back goes up to 2: what a state holds for a key may change its sign",
         .acts = config::unless("additive", "true"),
         .words = "states whose transitions have negative eigenvalues",
         .sources = "grazzi2024negative"});
    f.choice<StateStart>(
        "start", start,
        {{StateStart::zero, "zero"},
         {StateStart::previous, "previous",
          "the state that the sequence before it in the same micro-batch left, through which no gradient goes",
          "states passed on from sequence to sequence in training", "buitrago2025"}},
        {.help = "state from which a sequence starts in training; on a CPU only"});
}

DeltaProjection::DeltaProjection(ParamTable& table, const ModelConfig& model, const std::string& name,
                                 int64_t out, int64_t narrow, ParamGroup group) {
    if (narrow == 0) {
        matrix_ = table.add({name + ".weight",
                             {out, model.width},
                             uniform(model, model.width),
                             group,
                             group == ParamGroup::matrix});
        return;
    }
    down_ = table.add({name + "_down.weight",
                       {narrow, model.width},
                       uniform(model, model.width),
                       ParamGroup::matrix,
                       true});
    matrix_ =
        table.add({name + "_up.weight", {out, narrow}, uniform(model, narrow), ParamGroup::matrix, true});
}

DeltaProjection::Saved DeltaProjection::plan(Arena& arena, const std::string& name, int64_t tokens) const {
    Saved saved{arena.activation(name, {tokens, width()}), Tensor()};
    if (down_) saved.hidden = arena.activation(name + "_hidden", {tokens, down_.rows});
    return saved;
}

Tensor DeltaProjection::forward(StepContext& run, const Saved& saved, const Tensor& xn) const {
    const Tensor y = saved.y.first_rows(xn.rows()), hidden = saved.hidden.first_rows_if_any(xn.rows());
    if (down_) run.ops.linear(hidden, xn, run.matrix(down_), Write::set);
    run.ops.linear(y, down_ ? hidden : xn, run.matrix(matrix_), Write::set);
    return y;
}

void DeltaProjection::backward(StepContext& run, Tensor dxn, const Tensor& dy, const Tensor& dhidden,
                               const Saved& saved, const Tensor& xn) const {
    if (!down_) {
        run.weight_gradient(matrix_, dy, xn);
        return run.ops.linear_backward_input(dxn, dy, run.matrix(matrix_), Write::add);
    }
    const int64_t n = xn.rows();
    const Tensor between = dhidden.shaped({n, down_.rows});
    run.weight_gradient(matrix_, dy, saved.hidden.first_rows(n));
    run.ops.linear_backward_input(between, dy, run.matrix(matrix_), Write::set);
    run.weight_gradient(down_, between, xn);
    run.ops.linear_backward_input(dxn, between, run.matrix(down_), Write::add);
}

DeltaLayer::DeltaLayer(ParamTable& table, const ModelConfig& model, int64_t layer, DeltaKind kind)
    : layer_(layer), by_channel_(kind != DeltaKind::gdn) {
    const AttentionConfig& config = model.layer_attention(layer);
    const DeltaConfig delta = config.own<DeltaConfig>();
    heads_ = config.heads;
    key_dim_ = config.head_dim;
    value_dim_ = delta.value_channels(key_dim_);
    chained_ = delta.start == StateStart::previous;
    additive_ = delta.additive && kind != DeltaKind::gdn2;
    beta_max_ = delta.negative_eigenvalues && !additive_ ? 2 : 1;
    conv_size_ = delta.conv;
    norm_ = {NormKind::rms, static_cast<float>(model.norm.eps)};
    const std::string name = fmt::format("layers.{}.delta.", layer);
    const int64_t width = model.width;
    const InitRule in = uniform(model, width);
    qkv_ = table.add_joined({
        {name + "q.weight", {key_width(), width}, in, ParamGroup::matrix, true},
        {name + "k.weight", {key_width(), width}, in, ParamGroup::matrix, true},
        {name + "v.weight", {value_width(), width}, in, ParamGroup::matrix, true},
    });
    if (conv_size_ > 0)
        conv_ = table.add({name + "conv.weight",
                           {conv_size_, total_width()},
                           {InitRule::Kind::first_row, 1},
                           ParamGroup::scalar});
    const int64_t decays = by_channel_ ? key_width() : heads_;
    decay_ =
        DeltaProjection(table, model, name + "decay", decays, by_channel_ ? key_dim_ : 0, ParamGroup::scalar);
    if (kind == DeltaKind::gdn2) {
        beta_ = DeltaProjection(table, model, name + "erase", key_width(), 0, ParamGroup::matrix);
        write_ = DeltaProjection(table, model, name + "write", value_width(), 0, ParamGroup::matrix);
    } else {
        beta_ = DeltaProjection(table, model, name + "beta", heads_, 0, ParamGroup::scalar);
    }
    a_log_ = table.add({name + "a_log",
                        {heads_},
                        {.kind = InitRule::Kind::log_between,
                         .value = by_channel_ ? 15.0 : 16.0,
                         .from = by_channel_ ? 1.0 : 0.0},
                        ParamGroup::scalar});
    time_bias_ = table.add({name + "time_bias",
                            {decays},
                            {.kind = InitRule::Kind::softplus_between, .value = 0.099, .from = 0.001},
                            ParamGroup::scalar});
    gate_ = DeltaProjection(table, model, name + "gate", value_width(), by_channel_ ? value_dim_ : 0,
                            ParamGroup::matrix);
    gain_ = table.add({name + "norm.gain", {value_dim_}, {InitRule::Kind::constant, 1}, ParamGroup::scalar});
    const InitRule out = model.init.zero_projections ? InitRule{} : uniform(model, value_width());
    out_ = table.add({name + "o.weight", {width, value_width()}, out, ParamGroup::matrix, true});
}

std::unique_ptr<Mixer::Memory> DeltaLayer::plan(Arena& arena, const std::string& name,
                                                const PassPlan& size) const {
    const int64_t tokens = size.tokens;
    auto memory = std::make_unique<Saved>();
    Saved& s = *memory;
    const auto rows = [&](const char* what, int64_t width) {
        return arena.activation(name + what, {tokens, width});
    };
    const auto f32 = [&](const char* what, int64_t width) {
        return arena.reserve(name + what, DType::f32, {tokens, width});
    };
    const int64_t earlier = size.training || !conv_ ? 0 : conv_size_ - 1;
    s.projected = arena.activation(name + "projected", {tokens + earlier, total_width()});
    if (conv_) s.convolved = rows("convolved", total_width());
    s.qkv = rows("qkv", total_width());
    s.query_inverse = f32("query_inverse", heads_);
    s.key_inverse = f32("key_inverse", heads_);
    s.u = decay_.plan(arena, name + "decay_logits", tokens);
    s.ub = beta_.plan(arena, name + (erases() ? "erase_logits" : "beta_logits"), tokens);
    s.decay = f32("decay", decay_.width());
    if (erases()) {
        s.w = write_.plan(arena, name + "write_logits", tokens);
        s.erase = rows("erase", key_width());
        s.written = rows("written", value_width());
    } else {
        s.beta = f32("beta", heads_);
    }
    if (size.training) {
        int64_t chunks = 0;
        for (int64_t t : size.lengths) chunks = std::max(chunks, (tokens + t - 1) / t * delta_chunks(t));
        s.states = arena.reserve(name + "states", DType::f32, {chunks * heads_, key_dim_ * value_dim_});
    }
    s.o = rows("delta_out", value_width());
    s.normalised = rows("output_normalised", value_width());
    s.normed = rows("output_normed", value_width());
    s.inverse = f32("output_inverse", heads_);
    s.z = gate_.plan(arena, name + "gate", tokens);
    s.gated = rows("gated", value_width());
    return memory;
}

void DeltaLayer::plan_workspace(Memory& memory, Arena& arena, Ops& ops, const PassPlan& size) const {
    const int64_t tokens = size.tokens;
    Saved& s = static_cast<Saved&>(memory);
    Workspace& w = s.workspace;
    int64_t bytes = 0;
    for (int64_t t : size.lengths)
        for (bool backward : {false, size.training}) {
            DeltaSpec spec = rule(std::max<int64_t>(1, tokens / t), t);
            spec.erase = s.erase;
            bytes = std::max(bytes, ops.delta_workspace(spec, backward));
        }
    w.rule = arena.reserve("delta_workspace", DType::f32, {bytes / 4 + 1});
    if (!size.training) return;
    w.dqkv = arena.activation("dqkv", {tokens, total_width()});
    if (conv_) w.dprojected = arena.activation("dprojected", {tokens, total_width()});
    w.dout = arena.activation("ddelta_out", {tokens, value_width()});
    w.dgate = arena.activation("dgate", {tokens, value_width()});
    w.ddecay = arena.reserve("ddecay", DType::f32, {tokens, decay_.width()});
    if (!erases()) w.dbeta = arena.reserve("dbeta", DType::f32, {tokens, heads_});
    w.du = arena.activation("ddecay_logits", {tokens, decay_.width()});
    w.dub = arena.activation(erases() ? "derase_logits" : "dbeta_logits", {tokens, beta_.width()});
    if (erases()) {
        w.dw = arena.activation("dwrite_logits", {tokens, value_width()});
        w.derase = arena.activation("derase", {tokens, key_width()});
    }
    if (by_channel_) w.dhidden = arena.activation("dhidden", {tokens, std::max(key_dim_, value_dim_)});
}

void DeltaLayer::plan_kept(Memory& memory, KeptTexts& kept, const std::string& name) const {
    Cache& cache = static_cast<Saved&>(memory).cache;
    if (conv_) {
        cache.recent = kept.recent(name + "recent", conv_size_, total_width());
        cache.convolved =
            kept.arena().activation(name + "convolved", {kept.texts() * conv_size_, total_width()});
    }
    cache.state = kept.rows(name + "state", DType::f32, heads_, key_dim_ * value_dim_);
}

HeadSpec DeltaLayer::unit_heads(int64_t length) const {
    HeadSpec spec;  // RMS norms, whose rows have length sqrt(d): rule() divides by it
    spec.length = length;
    spec.heads = heads_;
    spec.head_dim = key_dim_;
    spec.norm = HeadNorm::rms;
    spec.eps = static_cast<float>(least_square / static_cast<double>(key_dim_));
    return spec;
}

DeltaSpec DeltaLayer::rule(int64_t batch, int64_t length) const {
    const float unit = static_cast<float>(1 / std::sqrt(static_cast<double>(key_dim_)));
    DeltaSpec spec;
    spec.batch = batch;
    spec.length = length;
    spec.heads = heads_;
    spec.key_dim = key_dim_;
    spec.value_dim = value_dim_;
    spec.query_scale = unit * unit;
    spec.key_scale = unit;
    spec.additive = additive_;
    return spec;
}

DeltaSpec DeltaLayer::rule_of(const StepContext& run) const {
    DeltaSpec spec = rule(run.batch.sequences, run.batch.length);
    spec.doc_start = run.batch.doc_start;
    spec.continues = run.position() > 0;
    spec.chained = chained_ && run.training;
    return spec;
}

Tensor DeltaLayer::convolve(StepContext& run, const Saved& saved, const Tensor& xn) const {
    const int64_t n = run.batch.count();
    const Tensor projected = behind_recent(run, saved.projected, saved.cache.recent, conv_ ? conv_size_ : 1);
    run.ops.linear(projected, xn, run.matrix(qkv_), Write::set);
    if (!conv_) return projected;
    const Tensor convolved = saved.convolved.first_rows(n), weight = run.weight(conv_);
    if (run.generation != nullptr) keep_recent(run, saved.cache.recent, projected, conv_size_);
    if (!run.decoding()) {
        run.ops.short_conv(convolved, projected, weight, run.batch.doc_start, run.batch.length);
        return convolved;
    }
    const Tensor recent = saved.cache.recent.first_rows(n * conv_size_),
                 result = saved.cache.convolved.first_rows(n * conv_size_);
    run.ops.short_conv(result, recent, weight, Tensor(), conv_size_);
    run.ops.copy(convolved, every(result, conv_size_, conv_size_ - 1));
    return convolved;
}

void DeltaLayer::forward(StepContext& run, const Memory& memory, Tensor y, Write write, const Tensor& xn,
                         const SharedValues&) const {
    const Saved& s = static_cast<const Saved&>(memory);
    const int64_t n = run.batch.count();
    const Tensor qkv = s.qkv.first_rows(n), q = queries_of(qkv), k = keys_of(qkv);
    run.ops.activation(qkv, convolve(run, s, xn), Activation::silu);
    const HeadSpec heads = unit_heads(run.batch.length);
    run.ops.prepare_heads(q, Tensor(), s.query_inverse.first_rows(n), heads);
    run.ops.prepare_heads(k, Tensor(), s.key_inverse.first_rows(n), heads);

    const Tensor u = decay_.forward(run, s.u, xn), ub = beta_.forward(run, s.ub, xn);
    const Tensor decay = s.decay.first_rows(n), beta = s.beta.first_rows_if_any(n), o = s.o.first_rows(n);
    run.ops.delta_gates(decay, beta, u, erases() ? Tensor() : ub, gates(run));
    const Tensor v = erases() ? s.written.first_rows(n) : values_of(qkv),
                 erase = s.erase.first_rows_if_any(n);
    if (erases()) {
        run.ops.gate(erase, ub, k, beta_max_);
        run.ops.gate(v, write_.forward(run, s.w, xn), values_of(qkv), 1.0f);
    }
    DeltaSpec spec = rule_of(run);
    spec.erase = erase;
    Tensor states, state;
    if (run.training) states = s.states.first_rows(spec.batch * delta_chunks(spec.length) * heads_);
    if (run.generation != nullptr) state = s.cache.state.first_rows(spec.batch * heads_);
    if (run.observer)
        run.observer->delta(run, {layer_, q, k, v, decay, beta, spec, s.workspace.rule, o,
                                  spec.continues ? state : Tensor()});
    run.ops.delta_rule(o, states, state, s.workspace.rule, q, k, v, decay, beta, spec);

    const Tensor normed = s.normed.first_rows(n), gated = s.gated.first_rows(n);
    run.ops.norm(groups_of(normed), groups_of(s.normalised.first_rows(n)), s.inverse.first(n * heads_),
                 groups_of(o), run.weight(gain_), Tensor(), norm_);
    run.ops.gate(gated, gate_.forward(run, s.z, xn), normed, gate());
    run.ops.linear(y, gated, run.matrix(out_), write);
}

void DeltaLayer::backward(StepContext& run, Tensor dxn, const Tensor& dy, const Memory& memory,
                          const Tensor& xn, const SharedValues&) const {
    const Saved& s = static_cast<const Saved&>(memory);
    const Workspace& w = s.workspace;
    const int64_t n = run.batch.count();
    const Tensor qkv = s.qkv.first_rows(n), q = queries_of(qkv), k = keys_of(qkv);
    const Tensor v = erases() ? s.written.first_rows(n) : values_of(qkv);
    const Tensor dout = w.dout.shaped({n, value_width()}), dgate = w.dgate.shaped({n, value_width()});
    run.weight_gradient(out_, dy, s.gated.first_rows(n));
    run.ops.linear_backward_input(dout, dy, run.matrix(out_), Write::set);
    run.ops.gate_backward(dout, dgate, dout, s.z.y.first_rows(n), s.normed.first_rows(n), gate());
    run.ops.norm_backward(groups_of(dout), run.gradient(gain_), Tensor(), groups_of(dout),
                          groups_of(s.normalised.first_rows(n)), s.inverse.first(n * heads_),
                          run.weight(gain_), norm_, Write::set);

    const Tensor dqkv = w.dqkv.shaped({n, total_width()}), dq = queries_of(dqkv), dk = keys_of(dqkv);
    const Tensor ddecay = w.ddecay.shaped({n, decay_.width()}), dbeta = w.dbeta.first_rows_if_any(n);
    const Tensor du = w.du.shaped({n, decay_.width()}), dub = w.dub.shaped({n, beta_.width()});
    const Tensor dv = values_of(dqkv), dwrite = w.dw.first_rows_if_any(n);
    DeltaSpec spec = rule_of(run);
    if (erases()) {
        spec.erase = s.erase.first_rows(n);
        spec.derase = w.derase.shaped({n, key_width()});
    }
    run.ops.delta_rule_backward(dq, dk, dv, ddecay, dbeta, w.rule, dout,
                                s.states.first_rows(spec.batch * delta_chunks(spec.length) * heads_), q, k, v,
                                s.decay.first_rows(n), s.beta.first_rows_if_any(n), spec);
    if (erases()) {
        run.ops.gate_backward(spec.derase, dub, spec.derase, s.ub.y.first_rows(n), k, beta_max_);
        run.ops.mix(dk, Coefficient(), dk, Coefficient(), spec.derase);
        run.ops.gate_backward(dv, dwrite, dv, s.w.y.first_rows(n), values_of(qkv), 1.0f);
    }
    run.ops.delta_gates_backward(du, erases() ? Tensor() : dub, run.gradient(a_log_),
                                 run.gradient(time_bias_), ddecay, dbeta, s.u.y.first_rows(n),
                                 erases() ? Tensor() : s.ub.y.first_rows(n), gates(run));
    const HeadSpec heads = unit_heads(run.batch.length);
    run.ops.prepare_heads_backward(dq, Tensor(), Tensor(), Tensor(), q, Tensor(),
                                   s.query_inverse.first_rows(n), heads);
    run.ops.prepare_heads_backward(dk, Tensor(), Tensor(), Tensor(), k, Tensor(), s.key_inverse.first_rows(n),
                                   heads);

    const Tensor projected = s.projected.first_rows(n);
    const Tensor before = conv_ ? s.convolved.first_rows(n) : projected;
    run.ops.activation_backward(dqkv, dqkv, before, Activation::silu);
    Tensor din = dqkv;
    if (conv_) {
        din = w.dprojected.shaped({n, total_width()});
        run.ops.short_conv_backward(din, run.gradient(conv_), dqkv, projected, run.weight(conv_),
                                    run.batch.doc_start, run.batch.length);
    }
    run.weight_gradient(qkv_, din, xn);
    run.ops.linear_backward_input(dxn, din, run.matrix(qkv_), Write::set);
    decay_.backward(run, dxn, du, w.dhidden, s.u, xn);
    beta_.backward(run, dxn, dub, w.dhidden, s.ub, xn);
    if (erases()) write_.backward(run, dxn, dwrite, w.dhidden, s.w, xn);
    gate_.backward(run, dxn, dgate, w.dhidden, s.z, xn);
}

double DeltaLayer::flops_per_token(int64_t, const PassSettings&) const {
    return delta_flops_per_token(heads_, key_dim_, value_dim_, additive_);
}

}  // namespace longreach::model
