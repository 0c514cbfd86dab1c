// What the states of the gated delta rule hold: measured while they grow, at four positions of every bin.
// A sequence may come in pieces.
#pragma once

#include "measure/probe_sums.h"
#include "model/forward_observer.h"

namespace longreach::measure {

// Adds the states of one layer and the batch of `run` to those of its heads. state: f32 [H, d e] or larger, for the
// states of one sequence. decay: that of the view, on the host, [N, W].
void add_states(const model::StepContext& run, const model::DeltaView& view, const Tensor& state,
                std::span<const float> decay, std::vector<StateSums>& heads);

}  // namespace longreach::measure
