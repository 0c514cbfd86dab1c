// The results of a sweep: every loss and task of every run and evaluation.
#pragma once

#include "io/record_columns.h"
#include "report/collect.h"
#include "table/text_table.h"

namespace longreach::report {

// A line of results.csv; data/formats/sweeps.md documents the columns.
struct SweepLoss {
    std::string variant;
    int64_t seed = 0;
    // "plain": the unchanged model, evaluated or else validated at the end of training.
    std::string evaluation;
    int64_t length = 0;
    double loss = NAN, top1 = NAN, top1_error = NAN, standard_error = NAN, scored = NAN, documents = NAN;
    std::string fingerprint;
    bool apart = false;         // as in LossRow
    std::string set;            // of data.val_sets; empty: data.val
    std::string measured = {};  // the key of its Measure
};
inline constexpr io::RecordColumns results_file(
    "results.csv", 6, io::plain("variant", &SweepLoss::variant), io::plain("seed", &SweepLoss::seed),
    io::plain("evaluation", &SweepLoss::evaluation), io::plain("length", &SweepLoss::length),
    io::plain("loss", &SweepLoss::loss), io::blank("top1", &SweepLoss::top1),
    io::blank("top1_error", &SweepLoss::top1_error), io::blank("standard_error", &SweepLoss::standard_error),
    io::blank("scored", &SweepLoss::scored), io::blank("documents", &SweepLoss::documents),
    io::plain("fingerprint", &SweepLoss::fingerprint));

// The same of data.val_sets.
inline constexpr io::RecordColumns results_sets_file(
    "results_sets.csv", 7, io::plain("set", &SweepLoss::set), io::plain("variant", &SweepLoss::variant),
    io::plain("seed", &SweepLoss::seed), io::plain("evaluation", &SweepLoss::evaluation),
    io::plain("length", &SweepLoss::length), io::plain("loss", &SweepLoss::loss),
    io::blank("top1", &SweepLoss::top1), io::blank("top1_error", &SweepLoss::top1_error),
    io::blank("standard_error", &SweepLoss::standard_error), io::blank("scored", &SweepLoss::scored),
    io::blank("documents", &SweepLoss::documents), io::plain("fingerprint", &SweepLoss::fingerprint));

// A line of results_tasks.csv.
struct SweepTask {
    std::string variant;
    int64_t seed = 0;
    std::string evaluation, task;
    int64_t length = 0;
    std::optional<double> depth;
    int64_t samples = 0;
    double accuracy = NAN;
    std::optional<double> margin;
    double loss = NAN;
    std::string fingerprint;
    bool apart = false;
    std::string measured = {};  // as in SweepLoss
};
inline constexpr io::RecordColumns results_tasks_file(
    "results_tasks.csv", 11, io::plain("variant", &SweepTask::variant), io::plain("seed", &SweepTask::seed),
    io::plain("evaluation", &SweepTask::evaluation), io::plain("task", &SweepTask::task),
    io::plain("length", &SweepTask::length), io::plain("depth", &SweepTask::depth),
    io::plain("samples", &SweepTask::samples), io::blank("accuracy", &SweepTask::accuracy),
    io::plain("margin", &SweepTask::margin), io::plain("loss", &SweepTask::loss),
    io::plain("fingerprint", &SweepTask::fingerprint));

struct SweepResults {
    size_t measured = 0;  // runs that have losses
    std::vector<SweepLoss> losses;
    std::vector<SweepTask> tasks;
};

// Run by run, and for each run in the order of the labels; only what has been
// measured. The validation of a run counts if it was made after the last step.
SweepResults sweep_results(const Collection& sweep);

// Writes results.csv and results_tasks.csv into the sweep directory; without results, only their headers.
// With losses on data.val_sets also results_sets.csv, set by set.
void write_sweep_csv(const std::string& directory);

struct TableOptions {
    table::Terminal terminal = {};
    bool pairs = false;  // also the difference of every two variants
};

// Losses by length, top-1 and tasks: means over seeds with standard errors, then differences to
// the baseline, seed by seed, with 95% intervals. Results measured on other tokens come last.
std::string sweep_tables(const Collection& sweep, const TableOptions& options = {});

}  // namespace longreach::report
