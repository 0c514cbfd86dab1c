// When a run looks at its attention, and at what lengths.
#pragma once

#include "config/fields.h"
#include "config/problems.h"

namespace longreach {

struct ProbeConfig {
    int64_t every = 0;
    std::vector<int64_t> lengths;
    int64_t tokens = 0;
    void fields(Fields& f);
    void check(Problems& problems) const;
};

}  // namespace longreach
