// `--ranks N` on one machine: a parent that starts N processes of the same program and ends when they do.
#pragma once

#include <string>
#include <vector>

#include "ranks/launch.h"

namespace longreach::ranks {

struct SpawnOptions {
    int ranks = 2;
    std::string program = "/proc/self/exe";  // the very file this process runs, even if it was rebuilt since
    std::vector<std::string> arguments;      // with the program's name in front
    double grace = 30;                       // seconds between the polite end of the other ranks and SIGKILL
    // The ranks start with the signals that are passed on blocked, and unblock them themselves: none can
    // arrive before a rank has its handlers.
    bool block_signals = false;
};

// The variables that rank `rank` gets beside those of `parent`.
Environment rank_environment(const Environment& parent, int rank, int ranks, int port,
                             const std::string& token);

// Returns the exit code for this process: that of the first rank that failed (128 + number for a signal),
// otherwise ExitCode::stopped if a rank ended so, otherwise 0. Call it before there are other threads.
//
// Output: rank 0 writes to this process's own streams, so that its progress line knows its terminal. The
// other ranks' standard error appears here with "[rank 2] " in front of each line; their standard output only
// repeats what rank 0 reports and is kept back, but for the last lines of a rank that failed.
//
// Signals: TERM, INT, HUP, USR1 and USR2 are passed on, each exactly once to every rank.
// The ranks are in process groups of their own, so a terminal's Ctrl-C does not reach them a second time.
// Standard input is empty for them.
//
// The end: when a rank fails the others get SIGTERM, and SIGKILL after the grace period; if this process
// dies, the kernel kills them.
int spawn_ranks(const SpawnOptions& options);

}  // namespace longreach::ranks
