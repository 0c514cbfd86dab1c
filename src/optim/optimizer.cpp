#include "optim/optimizer.h"

#include <cmath>

namespace longreach {

Optimizer::Optimizer(const OptimizerConfig& config, const ParamTable& table)
    : config_(config), table_(table) {}

void Optimizer::plan(Arena& arena, Ops& ops) {
    arena.group("optimizer");
    state_.clear();
    muon_slots_.clear();
    adam_slots_.clear();
    const auto moment = [&](const char* kind, const Param& p) {
        const Tensor t = arena.reserve(kind, DType::f32, {p.rows(), p.cols()});
        state_.push_back({std::string(kind) + "/" + p.name, t, p.shape});
        return t;
    };
    for (const Param& p : table_.params()) {
        if (is_muon(p)) {
            MuonSlot slot;
            slot.param = Tensor(nullptr, DType::f32, {p.rows(), p.cols()});
            slot.gradient = slot.param;
            slot.momentum = moment("muon.momentum", p);
            muon_slots_.push_back(slot);
        } else {
            AdamSlot slot;
            slot.first = moment("adam.first", p);
            slot.second = moment("adam.second", p);
            adam_slots_.push_back(slot);
        }
    }
    norm_ = arena.reserve("gradient_norm", DType::f64, {1});
    if (!muon_slots_.empty())
        workspace_ = arena.reserve("newton_schulz", DType::f32, {ops.muon_workspace(muon_slots_) / 4 + 1});
}

int64_t Optimizer::state_bytes() const {
    int64_t bytes = 0;
    for (const Param& p : table_.params()) bytes += p.count() * (is_muon(p) ? 4 : 8);
    return bytes;
}

double Optimizer::adam_rate(const Param& p) const {
    switch (p.group) {
        case ParamGroup::matrix:
            return config_.adam.matrix_lr;
        case ParamGroup::embedding:
            return config_.adam.embedding_lr;
        case ParamGroup::head:
            return config_.adam.head_lr;
        case ParamGroup::scalar:
            return config_.adam.scalar_lr;
    }
    return 0;
}

void Optimizer::measure(Ops& ops, const FlatParams& gradients) const {
    ops.sum_squares(norm_, gradients.flat);
}

Optimizer::Result Optimizer::step(Ops& ops, const FlatParams& weights, const FlatParams& gradients,
                                  double multiplier, int64_t step) {
    Result result;
    double squares = 0;
    ops.download(&squares, norm_);
    result.gradient_norm = std::sqrt(squares);
    if (!std::isfinite(result.gradient_norm)) return result;
    const double clip = config_.clip_norm > 0 && result.gradient_norm > config_.clip_norm
                            ? config_.clip_norm / result.gradient_norm
                            : 1.0;
    ++updates_;
    result.applied = true;

    const MuonConfig& muon = config_.muon;
    const AdamConfig& adam = config_.adam;
    size_t next_muon = 0, next_adam = 0;
    for (const Param& p : table_.params()) {
        if (is_muon(p)) {
            MuonSlot& slot = muon_slots_[next_muon++];
            const double rows = static_cast<double>(p.rows()), cols = static_cast<double>(p.cols());
            const double factor = muon.scale == MuonScale::classic ? std::sqrt(std::max(1.0, rows / cols))
                                                                   : 0.2 * std::sqrt(std::max(rows, cols));
            slot.param = weights.view(p);
            slot.gradient = gradients.view(p);
            slot.learning_rate = static_cast<float>(muon.lr * multiplier * factor);
            slot.weight_decay = p.decay ? static_cast<float>(muon.lr * multiplier * muon.weight_decay) : 0.0f;
        } else {
            AdamSlot& slot = adam_slots_[next_adam++];
            slot.param = weights.view(p);
            slot.gradient = gradients.view(p);
            slot.learning_rate = static_cast<float>(adam_rate(p) * multiplier);
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
    ops.adam(adam_slots_, spec);
    return result;
}

}  // namespace longreach
