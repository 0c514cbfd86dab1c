// The optimisers of a run: Muon for hidden matrices, Adam for the rest, as ParamTable's groups say.
#pragma once

#include <string>
#include <vector>

#include "model/arena.h"
#include "model/param_table.h"
#include "optim/optimizer_config.h"

namespace longreach {

class Optimizer {
  public:
    Optimizer(const OptimizerConfig& config, const ParamTable& table);

    void plan(Arena& arena, Ops& ops);
    int64_t state_bytes() const;  // of what state() holds once planned

    struct Result {
        double gradient_norm = 0;  // before clipping
        bool applied = false;      // false: the norm was not finite and nothing changed, not even the moments
    };
    // Queues the norm of the gradients, on which the step after it depends.
    void measure(Ops& ops, const FlatParams& gradients) const;
    // One update with measured gradients. multiplier: schedule times stage factor. step: 0-based step of the
    // run (momentum warmup).
    Result step(Ops& ops, const FlatParams& weights, const FlatParams& gradients, double multiplier,
                int64_t step);

    // State to save: whole tensors under names that outlive any sharding, and the count of applied updates.
    struct Named {
        std::string name;  // "muon.momentum/<param>", "adam.first/<param>", "adam.second/<param>"
        Tensor tensor;
        std::vector<int64_t> shape;
    };
    const std::vector<Named>& state() const { return state_; }
    int64_t updates() const { return updates_; }
    void set_updates(int64_t updates) { updates_ = updates; }

  private:
    bool is_muon(const Param& p) const {
        return p.group == ParamGroup::matrix && config_.matrices == MatrixOptimizer::muon;
    }
    double adam_rate(const Param& p) const;

    OptimizerConfig config_;
    const ParamTable& table_;
    std::vector<Named> state_;
    Tensor norm_;       // f64 [1]
    Tensor workspace_;  // Newton-Schulz
    std::vector<MuonSlot> muon_slots_;
    std::vector<AdamSlot> adam_slots_;
    int64_t updates_ = 0;
};

}  // namespace longreach
