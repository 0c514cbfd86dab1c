// The contrasts of a sweep file: the rules between their fields, and what the planned runs say of them.
#pragma once

#include <functional>
#include <set>

#include "sweep/sweep_plan.h"

namespace longreach::sweep {

// More would need more seeds than a sweep decides with.
constexpr size_t most_primary_contrasts = 6;

// Fills in what follows from the file alone, and adds its problems.
void check_contrasts(SweepConfig& sweep, config::Problems& problems);

// Fills in plan.contrasts and plan.seeds. add: reports a problem at a place of the sweep file.
// refused: variants whose problems have been reported.
void plan_contrasts(const SweepConfig& sweep, SweepPlan& plan, const std::set<std::string>& refused,
                    const std::function<void(const std::string& at, const std::string& text)>& add);

}  // namespace longreach::sweep
