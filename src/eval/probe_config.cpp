#include "eval/probe_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>

namespace longreach::eval {

void ProbeConfig::fields(config::Fields& f) {
    f.integer(
        "every", every, {.min = 0},
        {"steps between probes of the attention of every layer and head, written to probe.csv; 0: never",
         true});
    f.integers("lengths", lengths, {.min = 1, .max = int64_t{1} << 31, .tokens = true},
               {.help = "context lengths of probes, in tokens; empty: eval.lengths",
                .resumable = true,
                .acts = config::unless("every", "0")});
    f.integer("tokens", tokens, {.min = 0, .tokens = true},
              {.help = "tokens examined at each length; 0: one sequence of the largest",
               .resumable = true,
               .acts = config::unless("every", "0")});
}

void ProbeConfig::check(config::Problems& p) const {
    const bool rising = std::is_sorted(lengths.begin(), lengths.end(), std::less_equal<>());
    if (!rising) p.add("probe.lengths", "lengths must rise");
    for (size_t i = 0; rising && i < lengths.size(); ++i) {
        if (lengths.back() % lengths[i] != 0)
            p.add(
                "probe.lengths",
                fmt::format("{} does not divide the largest length {}, so the two cannot use the same tokens",
                            lengths[i], lengths.back()));
    }
}

}  // namespace longreach::eval
