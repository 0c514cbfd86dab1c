// What a sweep directory holds, read back: every loss, top-1 and task of every run and evaluation.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "report/paired.h"

namespace longreach {

inline constexpr const char* sweep_file = "sweep.json";

struct SweepLoss {
    std::string variant;
    int64_t seed = 0;
    std::string
        evaluation;  // "plain": the unchanged model, evaluated or else validated at the end of training
    int64_t length = 0;
    double loss = 0;
    std::optional<double> top1;
};

struct SweepTask {
    std::string variant;
    int64_t seed = 0;
    std::string evaluation, task;
    int64_t length = 0;
    std::string depth;  // percent, or "" where a task has none
    int64_t samples = 0;
    std::optional<double> accuracy, margin, loss;
};

struct SweepResults {
    std::string name, directory, baseline;
    std::vector<std::string> variants, evaluations;  // in the order of sweep.json; plain first
    size_t runs = 0, measured = 0;                   // runs of the sweep; those that have results
    std::vector<SweepLoss> losses;                   // in the order of sweep.json
    std::vector<SweepTask> tasks;
};

bool is_sweep_directory(const std::string& path);

// What is not measured yet is missing; Error(ExitCode::data) if a file is not understood. A run that is still
// training has results once it has trained all its steps.
SweepResults read_sweep(const std::string& path);

// Writes results.csv (variant,seed,evaluation,length,loss,top1) and results_tasks.csv
// (variant,seed,evaluation, task,length,depth,samples,accuracy,margin,loss) into the directory.
void write_sweep_csv(const std::string& path);

// Means over seeds and their standard errors, then the differences to the baseline, seed by seed, with 95%
// intervals: losses by length, top-1, tasks.
std::string sweep_tables(const SweepResults& results);

}  // namespace longreach
