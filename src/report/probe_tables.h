// What attention does inside, as text: the numbers of probe.csv with intervals over seeds.
#pragma once

#include "report/collect.h"
#include "table/text_table.h"

namespace longreach::report {

// Of each statistic its mean over layers and heads at each length, and its rise per unit of log(length) from the
// shortest to the longest, paired by seed; of what belongs to no length, such as learned scalars, the mean over
// the heads of each layer. Empty without probes.
std::string probe_tables(const Collection& collection, const table::Terminal& terminal);

}  // namespace longreach::report
