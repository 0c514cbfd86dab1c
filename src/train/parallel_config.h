// How the ranks of a run share its work. Nothing here is about their number: that is the launcher's.
#pragma once

#include "config/fields.h"
#include "ranks/watchdog.h"

namespace longreach::train {

enum class Reduction {
    tree,        // a fixed order: the same bits at 1, 2, 4, 8 ranks
    all_reduce,  // the library's order: other bits at every number of ranks
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
