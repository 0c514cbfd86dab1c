// Runs side by side on the terminal: loss by context length as a table and as a small chart.
#pragma once

#include <string>

#include "report/collect.h"
#include "table/text_table.h"

namespace longreach::report {

// One row per run and one column per length of any run; only losses that may be compared.
std::string comparison_table(const Collection& collection, const table::Terminal& terminal = {});

// Loss over log2 length; the legend gives each run a letter.
std::string comparison_chart(const Collection& collection, const table::Terminal& terminal = {});

}  // namespace longreach::report
