// Which results may be compared: only those measured on the same tokens or samples.
#pragma once

#include "report/collect.h"
#include "report/paired.h"

namespace longreach::report {

// Marks every row of the newest step that was measured on other tokens or samples than those of most variants,
// and adds a note. Losses and positions: the measure that the most variants have in the sweep's own evaluations (without a
// sweep, in all); the same for all lengths. Tasks: the same by seed, task, length and depth, since samples
// depend on the seed.
void set_apart(Collection& collection);

// The losses that were set apart, one table per measure; "plain" is the model as trained.
struct ApartLosses {
    Measure measure;
    struct Row {
        std::string group, label;
        std::map<int64_t, std::vector<SeedValue>> loss;  // by length
    };
    std::vector<Row> rows;
};
std::vector<ApartLosses> losses_apart(const Collection& collection);

struct ApartTask {
    std::string group, label;
    int64_t seed = 0;
    TaskCell cell;
};
std::vector<ApartTask> tasks_apart(const Collection& collection);

}  // namespace longreach::report
