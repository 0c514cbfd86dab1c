// What planning asks of a GPU, answered without one.
#pragma once

#include "kernels/ops.h"

namespace longreach::cuda {

// Answers that do not depend on the device at hand.
class CudaPlanner final : public Planner {
  public:
    explicit CudaPlanner(DType type) : type_(type) {}
    DeviceTraits do_traits() const override;
    int64_t do_attention_workspace(const AttentionSpec& spec,
                                   const AttentionGradients& gradients) const override;
    int64_t do_muon_workspace(std::span<const MuonSlot> slots) const override;
    int64_t do_delta_workspace(const DeltaSpec& spec, bool backward) const override;

  private:
    DType type_;  // of activations
};

}  // namespace longreach::cuda
