// When a run probes its attention, and at what lengths.
#pragma once

#include "config/fields.h"
#include "config/problems.h"

namespace longreach::eval {

struct ProbeConfig {
    int64_t every = 0;
    std::vector<int64_t> lengths;
    int64_t tokens = 0;
    void fields(config::Fields& f);
    void check(config::Problems& problems) const;
};

}  // namespace longreach::eval
