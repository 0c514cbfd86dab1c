// Which runs a sweep needs that adds seeds until its primary contrasts are decided.
#pragma once

#include "sweep/sweep_plan.h"

namespace longreach::sweep {

// The seeds of the looks, in their order: those listed, then the smallest positive ones that are not.
std::vector<int64_t> seeds_of_looks(const std::vector<int64_t>& listed);

// The number of seeds that each contrast of a plan needs, in its order.
using NeededSeeds = std::vector<size_t>;

// Keeps the runs of the first look, those of later seeds that the arms of a primary contrast
// need, and those from whose weights one of these starts.
void keep_needed(SweepPlan& plan, const NeededSeeds& needed);

}  // namespace longreach::sweep
