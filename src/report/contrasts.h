// The contrasts of a sweep: what the looks at their seeds decided. Always computed from the results.
#pragma once

#include "decide/looks.h"
#include "report/collect.h"
#include "table/data_table.h"

namespace longreach::report {

struct ContrastResult {
    sweep::Contrast contrast;
    decide::Answer
        answer;  // of a descriptive one: look 0, and the 95% interval over all seeds that both arms have
    std::string verdict;
};

// In the order of the sweep file. The arms are paired where both measured the same tokens or samples.
std::vector<ContrastResult> contrast_results(const Collection& sweep);

// Without rows if the sweep has none.
table::DataTable contrast_table(const Collection& sweep);

// The table and the claims as text; "" if there are none.
std::string contrasts_text(const Collection& sweep, const table::Terminal& terminal = {});

}  // namespace longreach::report
