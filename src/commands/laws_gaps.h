// longreach laws --from: the temperature by number of keys that the heads of a run need, from the gap counts of its probe.
#pragma once

#include <string>

#include "table/data_table.h"

namespace longreach::commands {

struct GapLaws {
    std::string heading;     // what was measured
    table::DataTable table;  // by layer and head
    std::string pooled;      // over heads
    std::string score;       // the formula for eval.score
};
// directory: a run, or RUN/eval/LABEL. Error(ExitCode::data) with the command that makes what is missing.
GapLaws gap_laws(const std::string& directory);
void show_gap_laws(const GapLaws& laws, const table::Terminal& terminal);

}  // namespace longreach::commands
