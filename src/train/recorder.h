// The files in which a run records its progress: metrics.jsonl, timing.jsonl, val.csv and positions.csv of
// each validation set, probe.csv, tasks.csv and the event file.
//
// Their lengths belong to the state of the run: a resumed run truncates each file to the length in its
// checkpoint. With several ranks only rank 0 has files.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "eval/lengths.h"
#include "eval/probe.h"
#include "eval/tasks.h"
#include "io/record_file.h"
#include "train/event_log.h"
#include "train/session.h"
#include "train/stepper.h"

namespace longreach::train {

class Recorder {
  public:
    explicit Recorder(Session& session) : session_(session) {}

    // later: lengths of files that are ahead of the state, as after evaluations of a saved step
    void open(const std::map<std::string, int64_t>& later);

    // Call after each step, when session.state counts it; writes a record every run.log_every steps.
    void step(const StepOutcome& outcome, double seconds);
    void losses(const ValidationSet& set, const std::vector<eval::LengthResult>& results);
    void task(const std::vector<eval::TaskRow>& rows);
    void probe(const eval::ProbeResult& result);
    void end(io::SessionEnd end) { events_.end(end); }

    void note_lengths();  // in session.state
    void sync();          // makes the records survive a power failure
    // Syncs the files to which evaluations append, and returns their lengths.
    std::map<std::string, int64_t> evaluation_lengths();

  private:
    // A CSV file, with the columns of the version that created it.
    struct Table {
        io::RecordFile file;
        std::vector<size_t> columns;  // their places among those of this version
        void append(const std::vector<std::string>& lines);
    };
    struct Losses {
        Table val, positions;
    };
    struct Record {
        std::string name;
        io::RecordFile* file;
        bool evaluations;  // only evaluations append to it
    };
    std::vector<Record> records();
    Progress progress(const StepOutcome& outcome, const Stage& stage) const;
    void write_metrics(const StepOutcome& outcome, const Stage& stage);
    void write_timing(const Progress& progress);

    Session& session_;
    io::RecordFile metrics_, timing_;
    std::vector<Losses> losses_;  // of the validation sets, in their order
    Table probe_, tasks_;
    EventLog events_;
    Stopwatch running_;
    // Training steps since the last record.
    Measured busy_;
    int64_t busy_tokens_ = 0;
};

}  // namespace longreach::train
