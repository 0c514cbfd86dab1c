// The optimiser of a run: one update rule per parameter group, Muon or Adam.
#pragma once

#include <string>
#include <vector>

#include "model/arena.h"
#include "model/param_table.h"
#include "optim/optimizer_config.h"
#include "optim/ownership.h"

namespace longreach::optim {

// One of `ranks` processes that each compute a share of every step of the same run.
struct RankShare {
    int rank = 0, ranks = 1;
    bool sharded = true;  // this rank keeps moments and updates weights only where it owns them; false: all
};

struct UpdateRule {
    enum class Kind { muon, adam } kind;
    double rate;  // learning rate, before the schedule
    // Names under which a parameter's moments are saved.
    std::vector<const char*> moments() const;
};
UpdateRule update_rule(const OptimizerConfig& config, model::ParamGroup group);

class Optimizer {
  public:
    Optimizer(const OptimizerConfig& config, const model::ParamTable& table, const RankShare& share = {});

    void plan(model::Arena& arena, Ops& ops);
    int64_t state_bytes() const;  // of all moments, on all ranks together
    const Ownership& ownership() const { return ownership_; }
    bool sharded() const { return share_.sharded && share_.ranks > 1; }

    // Of the trained parameters, before clipping.
    struct GradientNorms {
        double whole = 0;
        std::vector<double> layers;  // of the parameters of each layer alone
    };
    struct Result {
        double gradient_norm = 0;  // before clipping
        bool applied = false;      // false: the norm was not finite and nothing changed, not even the moments
    };
    // Queues the sums of squares of the gradient's pieces that this rank owns. The step that follows needs
    // those of all ranks: f64, one per piece, in the order of their slots (Ownership::Piece::slot).
    void measure(Ops& ops, const model::FlatParams& gradients) const;
    Tensor squares(int rank) const;
    // The norms of gradients that were measured. Waits for the device.
    GradientNorms gradient_norms(Ops& ops) const;
    double gradient_norm(Ops& ops) const { return gradient_norms(ops).whole; }
    // Updates this rank's share of the weights from measured gradients. multiplier: schedule times stage
    // factor. step: 0-based step of the run (momentum warmup). Returns false and changes nothing
    // if the norm is not finite.
    bool update(Ops& ops, const model::FlatParams& weights, const model::FlatParams& gradients,
                double gradient_norm, double multiplier, int64_t step);
    Result step(Ops& ops, const model::FlatParams& weights, const model::FlatParams& gradients,
                double multiplier, int64_t step);

    // State to save, under names that outlive any sharding, and the count of applied updates.
    struct Named {
        std::string name;  // "muon.momentum/<param>", "adam.first/<param>", "adam.second/<param>"
        size_t param = 0;  // index into the table
        std::vector<int64_t> shape;
        Tensor tensor;  // what this rank keeps: the whole, ownership().part(param, rank) or nothing
    };
    const std::vector<Named>& state() const { return state_; }
    int64_t updates() const { return updates_; }
    void set_updates(int64_t updates) { updates_ = updates; }

  private:
    // The part of a parameter that this rank updates; none of one that is not trained.
    Ownership::Range updated(size_t param) const;
    // With muon.joined_qkv: whether a parameter, of keys or values, is further rows of the matrix before it in the table.
    bool joined(size_t param) const;
    int64_t matrix_rows(size_t first) const;  // of a parameter and those joined to it

    OptimizerConfig config_;
    const model::ParamTable& table_;
    RankShare share_;
    Ownership ownership_;
    std::vector<Named> state_;
    Tensor squares_;    // f64 [pieces]
    Tensor workspace_;  // Newton-Schulz
    std::vector<MuonSlot> muon_slots_;
    std::vector<AdamSlot> adam_slots_;
    int64_t updates_ = 0;
};

}  // namespace longreach::optim
