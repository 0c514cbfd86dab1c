#include "mixers/gau_input.h"

#include <cmath>

#include "mixers/latent.h"

namespace longreach::model {

GauInput::GauInput(ParamTable& table, const ModelConfig& model, int64_t layer) : QkvHeads(model, layer) {
    heads_ = config_.heads;
    dim_ = config_.head_dim;
    const InitRule in{InitRule::Kind::uniform,
                      model.init.matrix_bound / std::sqrt(static_cast<double>(model.width))};
    matrix_ = table.add_joined({
        {name_ + "v.weight", {heads_ * dim_, model.width}, in, ParamGroup::matrix, true},
        {name_ + "z.weight", {dim_, model.width}, in, ParamGroup::matrix, true},
    });
    const auto affine = [&](const char* part) {
        const auto vector = [&](const char* what, double value) {
            return table.add(
                {name_ + part + what, {dim_}, {InitRule::Kind::constant, value}, ParamGroup::scalar});
        };
        const ParamRef gain = vector(".gain", 1);
        return Affine{gain, vector(".bias", 0)};
    };
    query_ = affine("q");
    key_ = affine("k");
}

std::unique_ptr<QkvSource::Memory> GauInput::plan(Arena& arena, const std::string& name,
                                                  int64_t tokens) const {
    auto memory = std::make_unique<Memory>();
    memory->projected = arena.activation(name + "projected", {tokens, matrix_.rows});
    memory->z = arena.activation(name + "z", {tokens, dim_});
    plan_heads(*memory, arena, name, tokens);
    return memory;
}

void GauInput::plan_workspace(QkvSource::Memory& memory, Arena& arena, int64_t tokens, bool training) const {
    if (!training) return;
    Memory& m = static_cast<Memory&>(memory);
    m.dprojected = arena.activation("dprojected", {tokens, matrix_.rows});
    m.dz = arena.activation("dz", {tokens, dim_});
    m.dz_keys = arena.activation("dz_keys", {tokens, dim_});
}

// A gain by channel is a convolution of one position.
void GauInput::spread(StepContext& run, const Tensor& copies, const Tensor& z, const Affine& affine) const {
    const Tensor first = head(copies, 0);
    run.ops.short_conv(first, z, run.weight(affine.gain), Tensor(), run.batch.length);
    run.ops.add_bias(first, run.weight(affine.bias));
    for (int64_t h = 1; h < heads_; ++h) run.ops.copy(head(copies, h), first);
}

void GauInput::gather(StepContext& run, const Tensor& dz, const Tensor& dcopies, const Tensor& z,
                      const Affine& affine) const {
    const Tensor sum = head(dcopies, 0);
    for (int64_t h = 1; h < heads_; ++h)
        run.ops.mix(sum, Coefficient(), sum, Coefficient(), head(dcopies, h));
    run.ops.add_bias_backward(run.gradient(affine.bias), sum);
    run.ops.short_conv_backward(dz, run.gradient(affine.gain), sum, z, run.weight(affine.gain), Tensor(),
                                run.batch.length);
}

void GauInput::forward(StepContext& run, const QkvSource::Memory& memory, const Tensor& qkv,
                       const Tensor& xn) const {
    const Memory& m = static_cast<const Memory&>(memory);
    const int64_t n = xn.rows();
    const Tensor projected = m.projected.first_rows(n), z = m.z.first_rows(n);
    const Qkv to = parts_of(qkv);
    run.ops.linear(projected, xn, run.matrix(matrix_), Write::set);
    run.ops.activation(to.v, values_of(projected), Activation::silu);
    run.ops.activation(z, z_of(projected), Activation::silu);
    spread(run, to.q, z, query_);
    spread(run, to.k, z, key_);
}

void GauInput::backward(StepContext& run, Tensor dxn, const Tensor& dqkv, const Tensor& qkv,
                        const QkvSource::Memory& memory, const Tensor& xn, const LayerTables& tables) const {
    const Memory& m = static_cast<const Memory&>(memory);
    turn_back(run, dqkv, qkv, m, tables);
    const int64_t n = xn.rows();
    const Qkv d = parts_of(dqkv);
    const Tensor projected = m.projected.first_rows(n), z = m.z.first_rows(n);
    const Tensor dprojected = m.dprojected.first_rows(n);
    const Tensor dz = m.dz.first_rows(n), dz_keys = m.dz_keys.first_rows(n);
    gather(run, dz, d.q, z, query_);
    gather(run, dz_keys, d.k, z, key_);
    run.ops.add(dz, dz_keys);
    run.ops.activation_backward(values_of(dprojected), d.v, values_of(projected), Activation::silu);
    run.ops.activation_backward(z_of(dprojected), dz, z_of(projected), Activation::silu);
    run.weight_gradient(matrix_, dprojected, xn);
    run.ops.linear_backward_input(dxn, dprojected, run.matrix(matrix_), Write::set);
}

void GauInput::clip_scores(Ops& ops, const FlatParams& weights, const Tensor& maxima, float limit) const {
    const auto column = [&](const ParamRef& ref) { return weights.view(ref).shaped({dim_, 1}); };
    ops.qk_clip(column(query_.gain), column(key_.gain), maxima.first(1), dim_, limit);
    ops.qk_clip(column(query_.bias), column(key_.bias), maxima.first(1), dim_, limit);
}

void check_gau(const LayoutRules& rules) {
    const AttentionConfig& a = rules.a;
    const auto without = [&](bool used, const char* key, const char* message) {
        if (used) rules.refuse(key, message, ".mixer");
    };
    without(a.kv() != a.heads, ".kv_heads", "a gated attention unit has values for each of its heads");
    without(bool(a.own<LatentConfig>()), ".latent.width",
            "a gated attention unit has one key for all heads already");
    without(a.bias != AttentionBias::none, ".bias", "the matrices of a gated attention unit have no biases");
    without(a.conv.size > 0, ".conv.size", "a gated attention unit has no convolution");
    without(a.differential, ".differential", "the values of a gated attention unit belong to one head each");
    without(a.gate.kind != GateKind::none, ".gate.kind", "a gated attention unit has a gate of its own");
}

void check_gau_norms(const ModelConfig& model, const LayoutRules& rules) {
    if (model.norm.placement == NormPlacement::hybrid)
        rules.p.add(rules.path + ".mixer",
                    "placement hybrid norms the stream for the MLP, which a gated attention unit has not",
                    "model.norm.placement");
}

}  // namespace longreach::model
