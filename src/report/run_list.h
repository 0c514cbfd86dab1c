// The runs below a directory: their progress and losses.
#pragma once

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

namespace longreach::report {

enum class RunState {
    running,   // a process holds its lock
    finished,  // its last checkpoint, or its last record, is of the last step
    stopped,   // ended cleanly before its last step; the same command resumes it
    failed,    // its process ended without releasing the lock, or gave up
    damaged,   // its files cannot be read
    unknown,   // "new": has neither records nor checkpoints
};
const char* name_of(RunState state);

struct RunSummary {
    std::string name;  // below the given directory: "rope.seed1", "sweep/rope.seed1"
    RunState state = RunState::unknown;
    int64_t step = 0, steps = 0;  // done and planned; steps is 0 if unknown
    double loss = NAN;            // of the last record
    double validation = NAN;      // loss of the last validation at its longest length
    int64_t length = 0;           // that length
    double age = NAN;             // seconds since the last write
    std::string problem;          // why the run is damaged
};

// Whether a process holds the lock of a run or sweep directory.
bool is_in_use(const std::string& directory);

// The run directories up to three levels below `directory` (runs, runs of a sweep, of
// several sweeps), or the directory itself if it is a run, sorted by name. Links are
// not followed. A file that cannot be read marks its run as damaged; it throws nothing.
std::vector<RunSummary> list_runs(const std::string& directory);

}  // namespace longreach::report
