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
#include "eval/probe.h"
#include "eval/tables.h"
#include "eval/task_rows.h"

namespace longreach::report {

// What a result was measured on. Equal fingerprints: the very same target tokens (of a task: the same
// samples). Files of earlier versions hold no fingerprint.
struct Measure {
    std::string fingerprint;
    double count = NAN;      // tokens, or samples of a task
    double documents = NAN;  // that the tokens come from

    bool identified() const { return !fingerprint.empty(); }
    // Results with equal keys may be compared. Without fingerprints, equal counts have to suffice.
    std::string key() const;
    std::string text() const;  // "65,536 tokens of 6 documents"
};

// Lines of the record files with what they were measured on. apart: measured on something else than the results
// that are compared (report/comparable.h).
struct LossRow : eval::LossRow {
    Measure measure = {};
    bool apart = false;
};
struct BucketRow : eval::BucketRow {
    Measure measure = {};  // of all buckets of the length together
    bool apart = false;
    bool by_document() const { return by == "document"; }
};
struct TaskCell : eval::TaskRow {
    Measure measure = {};
    bool apart = false;
    double percent() const { return depth.value_or(NAN); }
};

// What one directory holds: a run, or one of its evaluations.
struct Results {
    std::vector<LossRow> losses;
    std::vector<BucketRow> buckets;
    std::vector<eval::ProbeRow> probes;
    std::vector<TaskCell> tasks;
};

// The rows of the newest step among them.
template <class Row>
std::vector<Row> newest(const std::vector<Row>& rows) {
    int64_t step = -1;
    for (const Row& r : rows) step = std::max(step, r.step);
    std::vector<Row> out;
    for (const Row& r : rows)
        if (r.step == step) out.push_back(r);
    return out;
}

// A line of metrics.jsonl.
struct TrainingRow {
    int64_t step = 0, tokens = 0, context = 0;
    double loss = NAN, gradient_norm = NAN, lr = NAN;
    int64_t skipped = 0;  // steps so far
};
// A line of timing.jsonl.
struct TimingRow {
    int64_t step = 0;
    double seconds = NAN, tokens_per_second = NAN, mfu = NAN, memory_bytes = NAN;
};

struct RunRecord {
    std::string name, path;
    std::string group;  // runs of one group differ only in their seed
    int64_t seed = 0;
    Results own;                                 // written while training
    std::map<std::string, Results> evaluations;  // by label; "plain" is the unchanged model
    std::map<std::string, std::string> samples;  // by label: the beginning of what `generate` wrote
    std::vector<TrainingRow> training;           // steps rise
    std::vector<TimingRow> timing;
    double tokens_per_second = NAN;              // the median
    json::Value config, build;                   // null if there is no such file
    std::map<std::string, std::string> origins;  // by dotted path: where a field of the config was set
    bool has_log = false;
    std::vector<std::string> warnings;  // lines of log.txt
    int64_t validated = 0;              // step of the newest validation
    // Other seeds of its group have been validated at a later step: a mean with them would compare nothing.
    bool behind = false;
};

struct Collection {
    std::string title;
    std::vector<std::string> groups;   // in the order of the sweep or of the command line
    std::string baseline;              // one of them; empty without runs
    std::string baseline_label;        // an evaluation of it; empty: as trained
    std::vector<std::string> labels;   // of evaluations: plain, the sweep's in its order, others by name
    std::set<std::string> own_labels;  // those that the sweep itself asked for; without a sweep, all
    std::vector<RunRecord> runs;       // those that have results
    size_t planned = 0;                // runs asked for
    std::vector<std::string> notes;    // what a reader of the comparison should know about its runs
    bool sweep = false;
    Measure measure;  // what the losses that are compared were measured on; count NaN without losses

    std::string baseline_name() const;
};

// "rope" as trained, or "rope + ntk".
std::string series_name(const std::string& group, const std::string& label);

// paths: run directories, or one sweep directory. baseline: a group or one of its evaluations ("rope + ntk"),
// or empty for the sweep's own, otherwise the first. Error(ExitCode::data) where a file is not understood.
Collection collect(const std::vector<std::string>& paths, const std::string& baseline = {});

// "rope" of "rope.seed3" and "rope-seed3"; other names stay.
std::string group_of(const std::string& run_name);

// The value at a path of names joined by dots; null if there is none.
const json::Value* value_at(const json::Value& config, std::string_view path);

}  // namespace longreach::report
