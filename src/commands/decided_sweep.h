// A sweep that adds seeds until its primary contrasts are decided. What is decided is computed from the results
// after every look, and again when the sweep is continued: nothing but runs is kept.
#pragma once

#include <functional>

#include "report/contrasts.h"
#include "train/sweep_decide.h"
#include "train/sweep_queue.h"

namespace longreach::commands {

class DecidedSweep {
  public:
    // Plans the config it is given: the sweep's, with other seeds.
    using Planner = std::function<train::SweepPlan(const train::SweepConfig&)>;

    // Checks the runs of all seeds. Error(ExitCode::usage) without primary contrasts to decide.
    DecidedSweep(train::SweepConfig config, Planner planner);

    // The plan of all runs that may be needed, then how many at least and at most.
    std::string text() const;

    // Trains up to each look and tells what it decided. A contrast with runs that failed stays at its look.
    train::SweepOutcome run(train::SweepOptions options, train::Console& console);
    const std::string& directory() const { return all_.directory; }

  private:
    // What the contrasts need after the looks that results allow, and whether they may need more.
    struct State {
        train::NeededSeeds needed;
        std::vector<bool> open;
    };
    State after(const std::vector<report::ContrastResult>& results) const;
    State now() const;
    State at_first() const;

    train::SweepConfig config_;
    Planner planner_;
    train::SweepPlan all_;
};

}  // namespace longreach::commands
