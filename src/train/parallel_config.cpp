#include "train/parallel_config.h"

namespace longreach::train {

void ParallelConfig::fields(config::Fields& f) {
    f.flag("shard_optimizer", shard_optimizer,
           {"each rank keeps the moments of, and updates, a share of the weights; false: every rank all of "
            "them. Never changes a result",
            true});
    f.choice<Reduction>("reduction", reduction,
                        {{Reduction::tree, "tree", "in a fixed order: the same bits at 1, 2, 4 and 8 ranks"},
                         {Reduction::all_reduce, "all_reduce", "in the order of the communication library"}},
                        {"how gradients are summed over ranks"});
    f.number("timeout", timeout, {.min = 1, .max = 86400},
             {"seconds for which ranks may wait for another before the run ends and says for which", true});
    f.number("first_timeout", first_timeout, {.min = 1, .max = 86400},
             {"the same until every rank has completed a step", true});
}

ranks::WatchdogOptions ParallelConfig::watchdog() const {
    ranks::WatchdogOptions options;
    options.timeout = timeout;
    options.first_timeout = first_timeout;
    return options;
}

}  // namespace longreach::train
