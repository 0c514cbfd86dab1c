// How the ranks of a run share its work. The launcher, not this config, sets the number of ranks.
#pragma once

#include "config/fields.h"
#include "ranks/watchdog.h"

namespace longreach::train {

enum class Reduction {
    tree,        // a fixed order: the same bits at 1, 2, 4, 8 ranks
    all_reduce,  // the library's order: the bits depend on the number of ranks
};

struct ParallelConfig {
    bool shard_optimizer = true;
    Reduction reduction = Reduction::tree;
    double timeout = 60;         // seconds
    double first_timeout = 300;  // seconds
    void fields(config::Fields& f);
    ranks::WatchdogOptions watchdog() const;
};

}  // namespace longreach::train
