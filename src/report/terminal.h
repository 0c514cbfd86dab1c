// Runs next to each other on the terminal: loss by context length as a table and as a small chart.
#pragma once

#include <string>

#include "report/collect.h"
#include "table/text_table.h"

namespace longreach::report {

// One row per run, one column per length that any of them has; only what may be compared.
std::string comparison_table(const Collection& collection, const table::Terminal& terminal = {});

// Loss over log2 length; each run drawn with the letter that the legend gives it.
std::string comparison_chart(const Collection& collection, const table::Terminal& terminal = {});

}  // namespace longreach::report
