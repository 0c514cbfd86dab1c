// The files in which a run records its progress: metrics.jsonl, timing.jsonl, the event file
// and the records of its evaluations.
//
// Their lengths belong to the state of the run: a resumed run truncates each file to the length in its
// checkpoint. With several ranks only rank 0 has files.
#pragma once

#include <map>
#include <string>
#include <vector>

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
    // Appends lines to a record of an evaluation, on rank 0.
    void append(const std::string& record, const std::vector<std::string>& lines);
    EventLog& events() { return events_; }
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
    std::map<std::string, Table> tables_;  // of evaluations, by path
    EventLog events_;
    Stopwatch running_;
    // Training steps since the last record.
    Measured busy_;
    int64_t busy_tokens_ = 0;
};

}  // namespace longreach::train
