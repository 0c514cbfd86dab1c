// Runs side by side on the terminal: loss by context length as a table and as a small chart.
#pragma once

#include <string>
#include <vector>

#include "report/run_results.h"

namespace longreach {

// One row per run, one column per length that any of them has.
std::string comparison_table(const std::vector<RunResults>& runs);

// Loss over log2 length; each run drawn with the letter that the legend gives it.
std::string comparison_chart(const std::vector<RunResults>& runs);

}  // namespace longreach
