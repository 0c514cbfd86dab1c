#include "kernels/cuda/planner.h"

#include "kernels/cpu_device.h"
#include "kernels/cuda/gemm.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda_device.h"

namespace longreach {

namespace cuda {

DeviceTraits CudaPlanner::do_traits() const {
    return {.activations = type_, .cached = type_, .chunk_logits = int64_t{1} << 29, .chunk_rows = 8192};
}

int64_t CudaPlanner::do_attention_workspace(const AttentionSpec& spec,
                                            const AttentionGradients& gradients) const {
    const bool sticks = spec.normaliser == Normaliser::stick_breaking;
    return (sticks ? stick_workspace : attention_backward_workspace)(spec, gradients);
}

int64_t CudaPlanner::do_muon_workspace(std::span<const MuonSlot> slots) const {
    return muon_workspace(slots, type_);
}

int64_t CudaPlanner::do_delta_workspace(const DeltaSpec& spec, bool backward) const {
    return delta_workspace(spec, backward, type_);
}

}  // namespace cuda

std::unique_ptr<Ops> make_cuda_plan(Precision precision) {
    std::unique_ptr<Ops> ops = make_cpu_ops({});
    ops->plan_as(
        std::make_shared<cuda::CudaPlanner>(precision == Precision::fp32 ? DType::f32 : DType::bf16));
    return ops;
}

}  // namespace longreach
