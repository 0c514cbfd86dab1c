// What the runs of a sweep measured: every loss, top-1 and task of every run and evaluation.
#pragma once

#include "report/collect.h"
#include "table/text_table.h"

namespace longreach::report {

struct SweepLoss : LossRow {
    std::string variant;
    int64_t seed = 0;
    std::string
        evaluation;  // "plain": the unchanged model, evaluated or else validated at the end of training
};

struct SweepTask : TaskCell {
    std::string variant;
    int64_t seed = 0;
    std::string evaluation;
};

struct SweepResults {
    size_t measured = 0;  // runs that have losses
    std::vector<SweepLoss> losses;
    std::vector<SweepTask> tasks;
};

// Run by run, and for each run in the order of the labels. What is not measured yet is missing. The
// validation of a run counts once it was made after its last step.
SweepResults sweep_results(const Collection& sweep);

// Writes results.csv (variant,seed,evaluation,length,loss,top1,standard_error,scored,documents,fingerprint)
// and results_tasks.csv (variant,seed,evaluation,task,length,depth,samples,accuracy,margin,loss,fingerprint)
// into the sweep directory; without results, only their headers.
void write_sweep_csv(const std::string& directory);

struct TableOptions {
    table::Terminal terminal = {};
    bool pairs = false;  // also the difference of every two variants
};

// Means over seeds and their standard errors, then the differences to the baseline, seed by seed, with 95%
// intervals: losses by length, top-1, tasks; at the end what was measured on other tokens.
std::string sweep_tables(const Collection& sweep, const TableOptions& options = {});

}  // namespace longreach::report
