// A sweep that adds seeds until its primary contrasts are decided. What is decided is computed from the results
// after every look, and again when the sweep is continued: nothing but runs is kept.
#pragma once

#include <functional>

#include "report/contrasts.h"
#include "sweep/needed_seeds.h"
#include "sweep/sweep_queue.h"

namespace longreach::commands {

class DecidedSweep {
  public:
    // Plans the config it is given: the sweep's, with other seeds.
    using Planner = std::function<sweep::SweepPlan(const sweep::SweepConfig&)>;

    // Checks the runs of all seeds. Error(ExitCode::usage) without primary contrasts to decide.
    DecidedSweep(sweep::SweepConfig config, Planner planner);

    // The plan of all runs that may be needed, then how many at least and at most.
    std::string text() const;

    // Trains up to each look and tells what it decided. A contrast with runs that failed stays at its look.
    sweep::SweepOutcome run(sweep::SweepOptions options, train::Console& console);
    const std::string& directory() const { return all_.directory; }
    const sweep::SweepPlan& all() const { return all_; }  // the runs that may be needed

  private:
    // What the contrasts need after the looks that results allow, and whether they may need more.
    struct State {
        sweep::NeededSeeds needed;
        std::vector<bool> open;
    };
    State after(const std::vector<report::ContrastResult>& results) const;
    State now() const;
    State at_first() const;

    sweep::SweepConfig config_;
    Planner planner_;
    sweep::SweepPlan all_;
};

}  // namespace longreach::commands
