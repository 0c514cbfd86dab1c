#include "optim/optimizer.h"

#include <algorithm>
#include <cmath>

#include "model/param_name.h"

namespace longreach::optim {

namespace {

// The factor on an orthogonalised update of [rows, cols].
double update_factor(const MuonConfig& muon, const std::string& name, double rows, double cols) {
    if (muon.scale == MuonScale::moonshot) return 0.2 * std::sqrt(std::max(rows, cols));
    const bool swapped = muon.swapped_mlp && model::ParamName(name).rest.starts_with("mlp.");
    return std::sqrt(std::max(1.0, swapped ? cols / rows : rows / cols));
}

}  // namespace

UpdateRule update_rule(const OptimizerConfig& config, model::ParamGroup group) {
    using Kind = UpdateRule::Kind;
    switch (group) {
        case model::ParamGroup::matrix:
            if (config.matrices == MatrixOptimizer::muon) return {Kind::muon, config.muon.lr};
            return {Kind::adam, config.adam.matrix_lr};
        case model::ParamGroup::embedding:
            return {Kind::adam, config.adam.embedding_lr};
        case model::ParamGroup::head:
            return {Kind::adam, config.adam.head_lr};
        case model::ParamGroup::scalar:
            return {Kind::adam, config.adam.scalar_lr};
    }
    fail(ExitCode::internal, "unknown parameter group");
}

std::vector<const char*> UpdateRule::moments() const {
    if (kind == Kind::muon) return {"muon.momentum"};
    return {"adam.first", "adam.second"};
}

Optimizer::Optimizer(const OptimizerConfig& config, const model::ParamTable& table, const RankShare& share)
    : config_(config),
      table_(table),
      share_(share),
      ownership_(
          table,
          [&config](const model::Param& p) {
              return update_rule(config, p.group).kind == UpdateRule::Kind::muon;
          },
          share.ranks, [this](size_t param) { return joined(param); }) {
    const auto any = [&](auto is) {
        for (size_t i = 0; i < table.params().size(); ++i)
            if (is(i)) return true;
        return false;
    };
    require(!config.muon.joined_qkv || config.matrices != MatrixOptimizer::muon ||
                any([&](size_t i) { return joined(i); }),
            ExitCode::usage,
            "optimizer.muon.joined_qkv: no layer trains queries, keys and values of its own");
    for (const std::string& pattern : config.only) {
        OptimizerConfig alone;
        alone.only = {pattern};
        const auto& all = table.params();
        require(
            std::any_of(all.begin(), all.end(), [&](const model::Param& p) { return alone.trains(p.name); }),
            ExitCode::usage, "optimizer.only: no tensor is named \"{}\"", pattern);
    }
}

Ownership::Range Optimizer::updated(size_t param) const {
    if (!config_.trains(table_.params()[param].name)) return {};
    if (!share_.sharded) return {0, table_.params()[param].count()};
    return ownership_.part(param, share_.rank);
}

bool Optimizer::joined(size_t param) const {
    if (!config_.muon.joined_qkv || config_.matrices != MatrixOptimizer::muon || param == 0) return false;
    const model::Param &p = table_.params()[param], &before = table_.params()[param - 1];
    const std::string_view name = model::ParamName(p.name).rest, module = name.substr(0, name.find('.') + 1);
    const auto follows = [&](std::string_view what, std::string_view last) {
        return name.substr(module.size()) == what && before.name.ends_with(std::string(module).append(last));
    };
    return (follows("k.weight", "q.weight") || follows("v.weight", "k.weight")) &&
           p.cols() == before.cols() && p.offset == before.offset + before.count() &&
           config_.trains(p.name) && config_.trains(before.name);
}

int64_t Optimizer::matrix_rows(size_t first) const {
    int64_t rows = table_.params()[first].rows();
    for (size_t i = first + 1; i < table_.params().size() && joined(i); ++i)
        rows += table_.params()[i].rows();
    return rows;
}

void Optimizer::plan(model::Arena& arena, Ops& ops) {
    arena.group("optimizer");
    state_.clear();
    muon_slots_.clear();
    adam_slots_.clear();
    int64_t rows_before = 0;  // of the same matrix
    for (size_t i = 0; i < table_.params().size(); ++i) {
        const model::Param& p = table_.params()[i];
        const Ownership::Range part = updated(i);
        rows_before = joined(i) ? rows_before + table_.params()[i - 1].rows() : 0;
        if (!config_.trains(p.name)) continue;
        const UpdateRule rule = update_rule(config_, p.group);
        std::vector<Tensor> moments;
        for (const char* kind : rule.moments()) {
            Tensor t, mine;
            if (part.count == p.count()) {
                t = joined(i) ? muon_slots_.back().momentum
                              : arena.reserve(kind, DType::f32, {matrix_rows(i), p.cols()});
                mine = t.row_range(rows_before, p.rows());
            } else if (part.count > 0) {
                t = mine = arena.reserve(kind, DType::f32, {part.count});
            }
            state_.push_back({std::string(kind) + "/" + p.name, i, p.shape, mine});
            moments.push_back(t);
        }
        if (part.count == 0 || joined(i)) continue;
        const Tensor matrix(nullptr, DType::f32, {matrix_rows(i), p.cols()});
        if (rule.kind == UpdateRule::Kind::muon)
            muon_slots_.push_back({.param = matrix, .gradient = matrix, .momentum = moments[0]});
        else
            adam_slots_.push_back({.param = {}, .gradient = {}, .first = moments[0], .second = moments[1]});
    }
    squares_ =
        arena.reserve("gradient_squares", DType::f64, {static_cast<int64_t>(ownership_.pieces().size())});
    if (!muon_slots_.empty())
        workspace_ = arena.reserve("newton_schulz", DType::f32, {ops.muon_workspace(muon_slots_) / 4 + 1});
}

int64_t Optimizer::state_bytes() const {
    int64_t bytes = 0;
    for (const model::Param& p : table_.params())
        if (config_.trains(p.name))
            bytes += p.count() * 4 * static_cast<int64_t>(update_rule(config_, p.group).moments().size());
    return bytes;
}

void Optimizer::measure(Ops& ops, const model::FlatParams& gradients) const {
    std::vector<Tensor> mine;  // in the order of their slots
    for (const Ownership::Piece& piece : ownership_.pieces()) {
        if (piece.owner != share_.rank) continue;
        const int64_t begin = table_.params()[piece.param].offset + piece.begin;
        mine.push_back(gradients.flat.range(begin, piece.count));
    }
    if (!mine.empty()) ops.sum_squares(squares(share_.rank), mine);
}

Tensor Optimizer::squares(int rank) const {
    return squares_.range(ownership_.first_slot(rank), ownership_.slots(rank));
}

Optimizer::GradientNorms Optimizer::gradient_norms(Ops& ops) const {
    std::vector<double> by_slot(ownership_.pieces().size());
    ops.download(by_slot.data(), squares_);
    GradientNorms norms;  // squares are summed in table order, regardless of the owners
    for (const Ownership::Piece& piece : ownership_.pieces()) {
        if (!config_.trains(table_.params()[piece.param].name)) continue;
        const double squares = by_slot[static_cast<size_t>(piece.slot)];
        norms.whole += squares;
        const int64_t layer = model::ParamName(table_.params()[piece.param].name).layer;
        if (layer < 0) continue;
        const size_t l = static_cast<size_t>(layer);
        if (norms.layers.size() <= l) norms.layers.resize(l + 1);
        norms.layers[l] += squares;
    }
    norms.whole = std::sqrt(norms.whole);
    for (double& norm : norms.layers) norm = std::sqrt(norm);
    return norms;
}

Optimizer::Result Optimizer::step(Ops& ops, const model::FlatParams& weights,
                                  const model::FlatParams& gradients, double multiplier, int64_t step) {
    const double norm = gradient_norm(ops);
    return {norm, update(ops, weights, gradients, norm, multiplier, step)};
}

bool Optimizer::update(Ops& ops, const model::FlatParams& weights, const model::FlatParams& gradients,
                       double gradient_norm, double multiplier, int64_t step) {
    if (!std::isfinite(gradient_norm)) return false;
    const double clip =
        config_.clip_norm > 0 && gradient_norm > config_.clip_norm ? config_.clip_norm / gradient_norm : 1.0;
    ++updates_;

    const MuonConfig& muon = config_.muon;
    const AdamConfig& adam = config_.adam;
    size_t next_muon = 0, next_adam = 0;
    for (size_t i = 0; i < table_.params().size(); ++i) {
        const model::Param& p = table_.params()[i];
        const Ownership::Range part = updated(i);
        if (part.count == 0 || joined(i)) continue;
        const UpdateRule rule = update_rule(config_, p.group);
        const double rate = rule.rate * multiplier * p.rate;
        if (rule.kind == UpdateRule::Kind::muon) {
            MuonSlot& slot = muon_slots_[next_muon++];
            const model::ParamRef matrix{p.offset, matrix_rows(i), p.cols()};
            const double factor = update_factor(muon, p.name, static_cast<double>(matrix.rows),
                                                static_cast<double>(matrix.cols));
            slot.param = weights.view(matrix);
            slot.gradient = gradients.view(matrix);
            slot.learning_rate = static_cast<float>(rate * factor);
            slot.weight_decay = p.decay ? static_cast<float>(rate * muon.weight_decay) : 0.0f;
        } else {
            AdamSlot& slot = adam_slots_[next_adam++];
            slot.param = weights.flat.range(p.offset + part.begin, part.count);
            slot.gradient = gradients.flat.range(p.offset + part.begin, part.count);
            slot.learning_rate = static_cast<float>(rate);
            slot.weight_decay = p.decay ? static_cast<float>(adam.weight_decay) : 0.0f;
        }
    }
    if (!muon_slots_.empty()) {
        MuonSpec spec;
        spec.momentum = static_cast<float>(muon_momentum(muon, step));
        spec.nesterov = muon.nesterov;
        spec.averaged = muon.form == MomentumForm::averaged;
        spec.iterations = static_cast<int>(muon.iterations);
        spec.gradient_scale = static_cast<float>(clip);
        ops.muon(muon_slots_, workspace_, spec);
    }
    AdamSpec spec;
    spec.beta1 = static_cast<float>(adam.beta1);
    spec.beta2 = static_cast<float>(adam.beta2);
    spec.eps = static_cast<float>(adam.eps);
    spec.step = updates_;
    spec.gradient_scale = static_cast<float>(clip);
    if (!adam_slots_.empty()) ops.adam(adam_slots_, spec);
    return true;
}

}  // namespace longreach::optim
