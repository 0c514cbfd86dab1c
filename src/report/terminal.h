// Runs side by side on the terminal: loss by context length as a table and as a small chart, of the newest
// validation of each run.
#pragma once

#include <string>
#include <vector>

#include "report/collect.h"

namespace longreach {

// One row per run, one column per length that any of them has.
std::string comparison_table(const std::vector<const RunRecord*>& runs);

// Loss over log2 length; each run drawn with the letter that the legend gives it.
std::string comparison_chart(const std::vector<const RunRecord*>& runs);

}  // namespace longreach
