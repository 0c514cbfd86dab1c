#include "sweep/needed_seeds.h"

#include <algorithm>
#include <set>

#include "decide/looks.h"

namespace longreach::sweep {

std::vector<int64_t> seeds_of_looks(const std::vector<int64_t>& listed) {
    constexpr size_t most = decide::seeds_at_look.back();
    std::vector<int64_t> seeds = listed;
    for (int64_t seed = 1; seeds.size() < most; ++seed)
        if (std::find(listed.begin(), listed.end(), seed) == listed.end()) seeds.push_back(seed);
    seeds.resize(most);
    return seeds;
}

void keep_needed(SweepPlan& plan, const NeededSeeds& needed) {
    std::set<std::string> directories;
    const auto is_needed = [&](const PlannedRun& run) {
        const auto place = static_cast<size_t>(std::find(plan.seeds.begin(), plan.seeds.end(), run.seed) -
                                               plan.seeds.begin());
        if (place < decide::seeds_at_look[0] || directories.count(run.directory) > 0) return true;
        for (size_t i = 0; i < plan.contrasts.size(); ++i) {
            const Contrast& c = plan.contrasts[i];
            if (c.primary && place < needed[i] && (run.variant == c.first || run.variant == c.second))
                return true;
        }
        return false;
    };
    // A run starts from the weights of one that is planned before it.
    for (auto run = plan.runs.rbegin(); run != plan.runs.rend(); ++run)
        if (is_needed(*run)) directories.insert({run->directory, run->experiment.run.init_from});
    std::erase_if(plan.runs, [&](const PlannedRun& run) { return directories.count(run.directory) == 0; });
}

}  // namespace longreach::sweep
