// Decides which results may be compared: only those measured on the same tokens or samples.
#pragma once

#include "report/collect.h"

namespace longreach::report {

// Marks every row of the newest step that was measured on other tokens or samples than most variants
// were, and adds a note. For losses and positions, the reference is the measure that most variants have
// in the evaluations listed in the sweep (without a sweep, in all evaluations), one for all lengths. For
// tasks there is one reference per seed, task, length and depth, because samples depend on the seed.
void set_apart(Collection& collection);
// Notes in the measures which training data a run read, if runs read different data under the same paths.
void tell_training_data(Collection& collection);
void set_losses_apart(Collection& collection);  // losses and positions only

// The losses set apart, one table per measure; the label "plain" is the model as trained.
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
