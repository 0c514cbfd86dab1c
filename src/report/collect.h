// Reads the files of run directories into plain structs; works on runs that are still training.
#pragma once

#include <cmath>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/json.h"
#include "decide/paired.h"
#include "measure/key_tokens.h"
#include "measure/probe.h"
#include "eval/tables.h"
#include "measure/task_rows.h"
#include "sweep/contrast.h"
#include "train/step_records.h"

namespace longreach::report {

using decide::mean_interval;
using decide::MeanInterval;
using decide::paired_difference;
using decide::paired_differences;
using decide::SeedValue;

// What a result was measured on. Equal fingerprints mean the same target tokens
// (for a task, the same samples). Files of earlier versions have no fingerprint.
struct Measure {
    std::string fingerprint;
    double count = NAN;      // tokens, or samples of a task
    double documents = NAN;  // the documents that contain the tokens
    // The training data, where runs read different data under the same paths; else empty.
    std::string trained_on = {};

    bool identified() const { return !fingerprint.empty(); }
    // Results may be compared if their keys are equal. Without a fingerprint the key is the count and `trained_on`.
    std::string key() const;
    std::string text() const;  // "65,536 tokens of 6 documents"
};

// Lines of the record files and what they were measured on. apart: not
// on what the compared results were measured on (report/comparable.h).
struct LossRow : eval::LossRow {
    Measure measure = {};
    bool apart = false;
};
struct BucketRow : eval::BucketRow {
    Measure measure = {};  // of all buckets of the length together
    bool apart = false;
    bool by_document() const { return by == "document"; }
};
struct TaskCell : measure::TaskRow {
    Measure measure = {};
    bool apart = false;
    double percent() const { return depth.value_or(NAN); }
};

// The losses on one of data.val_sets.
struct SetLosses {
    std::vector<LossRow> losses;
    std::vector<BucketRow> buckets;
    std::vector<measure::KeyTokenRow> key_tokens;
};

// The results in one directory: of a run, or of one of its evaluations.
struct Results {
    // Of an evaluation, from request.json: eval.align, empty if unknown, and what it changes in the run's config
    // other than which tokens it scores, rising.
    std::string align = {};
    std::vector<std::string> changes = {};
    std::vector<LossRow> losses;
    std::vector<BucketRow> buckets;
    std::vector<measure::KeyTokenRow> key_tokens;
    std::map<std::string, SetLosses> sets;  // those that have rows, by name
    std::vector<measure::ProbeRow> probes;
    std::vector<measure::ProbeRow> roles;  // of heads, at every step that was probed
    std::vector<TaskCell> tasks;
};

// Calls visit() with each row of the newest step.
template <class Rows, class Visit>
void each_newest(Rows& rows, const Visit& visit) {
    int64_t step = -1;
    for (const auto& row : rows) step = std::max(step, row.step);
    for (auto& row : rows)
        if (row.step == step) visit(row);
}
template <class Row>
std::vector<Row> newest(const std::vector<Row>& rows) {
    std::vector<Row> out;
    each_newest(rows, [&](const Row& row) { out.push_back(row); });
    return out;
}

struct RunRecord {
    std::string name, path;
    std::string group;  // runs of one group differ only in their seed
    int64_t seed = 0;
    Results own;                                 // written while training
    std::map<std::string, Results> evaluations;  // by label; "plain" is the unchanged model
    std::map<std::string, std::string> samples;  // by label: the beginning of the text `generate` wrote
    std::vector<train::MetricsRow> training;     // steps rise
    std::vector<train::TimingRow> timing;
    double tokens_per_second = NAN;              // the median
    json::Value config, build;                   // null if there is no such file
    std::map<std::string, std::string> origins;  // by dotted path: where a field of the config was set
    bool has_log = false;
    std::vector<std::string> warnings;  // lines of log.txt
    int64_t validated = 0;              // step of the newest validation
    // Another seed of its group was validated at a later step, so a mean over both would be meaningless.
    bool behind = false;
};

struct Collection {
    std::string title;
    std::vector<std::string> groups;   // in the order of the sweep or of the command line
    std::string baseline;              // one of them; empty without runs
    std::string baseline_label;        // an evaluation of it; empty: as trained
    std::vector<std::string> labels;   // of evaluations: plain, the sweep's in its order, others by name
    std::set<std::string> own_labels;  // those listed in the sweep file; without a sweep, all
    std::vector<RunRecord> runs;       // those that have results
    size_t planned = 0;                // number of runs requested
    std::vector<std::string> notes;    // remarks for the reader of the comparison
    bool sweep = false;
    std::vector<std::string> sets;           // those of data.val_sets on which any loss was measured
    std::string set;                         // in a view: the set whose losses it shows; empty: data.val
    Measure measure;                         // of the compared losses; count is NaN without losses
    std::vector<sweep::Contrast> contrasts;  // of the sweep
    std::vector<int64_t> seeds;              // in the order in which contrasts look at them

    std::string baseline_name() const;
    // What an interval is called where contrasts are tests and all else is not: "descriptive ", else nothing.
    const char* descriptive() const { return contrasts.empty() ? "" : "descriptive "; }
    std::string on_set() const { return set.empty() ? "" : " on " + set; }
};

// The same runs and evaluations with their losses on one of collection.sets in place of those on data.val.
// Its notes are about these losses alone.
Collection set_view(const Collection& collection, const std::string& set);

// "rope" as trained, or "rope + ntk".
std::string series_name(const std::string& group, const std::string& label);

// paths: run directories, or one sweep directory. baseline: a group or one of its evaluations ("rope + ntk");
// empty: the baseline of the sweep, or else the first group. Error(ExitCode::data) if a file is malformed.
Collection collect(const std::vector<std::string>& paths, const std::string& baseline = {});

// "rope" of "rope.seed3" and "rope-seed3"; other names stay.
std::string group_of(const std::string& run_name);

// The value at a path of names joined by dots; null if there is none.
const json::Value* value_at(const json::Value& config, std::string_view path);
// The same if it is a string; "" otherwise.
std::string text_at(const json::Value& config, std::string_view path);

}  // namespace longreach::report
