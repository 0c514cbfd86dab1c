#include "eval/probe_config.h"

#include <fmt/format.h>

namespace longreach {

void ProbeConfig::fields(Fields& f) {
    f.integer("every", every, {.min = 0},
              {"steps between looks at the attention of every layer and head, written to probe.csv; 0: never",
               true});
    f.integers("lengths", lengths, {.min = 1, .max = int64_t{1} << 31},
               {"context lengths looked at, in tokens; empty: eval.lengths", true});
    f.integer("tokens", tokens, {.min = 0},
              {"tokens looked at, at each length; 0: one sequence of the largest", true});
}

void ProbeConfig::check(Problems& p) const {
    for (size_t i = 0; i < lengths.size(); ++i) {
        if (i > 0 && lengths[i] <= lengths[i - 1]) p.add("probe.lengths", "lengths must rise");
        if (lengths.back() % lengths[i] != 0)
            p.add("probe.lengths",
                  fmt::format("{} does not divide the largest length {}, so the two could not "
                              "look at the same tokens",
                              lengths[i], lengths.back()));
    }
    if (every > 0) return;
    for (const char* key : {"probe.lengths", "probe.tokens"})
        if (p.is_set(key)) p.add(key, "has no effect: probe.every is 0", "probe.every");
}

}  // namespace longreach
