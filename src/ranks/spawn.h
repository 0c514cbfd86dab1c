// `--ranks N` on one machine: the parent starts N processes of the same program and ends when they end.
#pragma once

#include <string>
#include <vector>

#include "ranks/launch.h"

namespace longreach::ranks {

struct SpawnOptions {
    int ranks = 2;
    std::string program = "/proc/self/exe";  // the file that this process runs, even if it was rebuilt since
    std::vector<std::string> arguments;      // with the program's name in front
    double grace = 30;                       // seconds between SIGTERM to the other ranks and SIGKILL
    // The ranks start with the forwarded signals blocked and unblock them once their handlers are installed,
    // so that no signal arrives before.
    bool block_signals = false;
};

// The environment of rank `rank`: that of `parent` and the variables that give it its place.
Environment rank_environment(const Environment& parent, int rank, int ranks, int port,
                             const std::string& token);

// Returns the exit code for this process: that of the first rank that failed (128 + number for a signal),
// otherwise ExitCode::stopped if a rank ended with it, otherwise 0. Call it before any thread is started.
//
// Output: rank 0 writes to this process's own streams, so that its progress line sees the terminal. Standard
// error of the other ranks is shown with "[rank 2] " before each line. Their standard output repeats rank 0's
// and is dropped, except for the last lines of a rank that failed.
//
// Signals: TERM, INT, HUP, USR1 and USR2 are forwarded, each exactly once to every rank. The ranks are in
// process groups of their own, so that a terminal's Ctrl-C does not reach them a second time. Their
// standard input is empty.
//
// End: if a rank fails, the others get SIGTERM, and SIGKILL after the grace period. If it only reports that
// another rank failed, SIGTERM waits 2 s for that rank to end by itself. If this process dies,
// the kernel kills the ranks.
int spawn_ranks(const SpawnOptions& options);

}  // namespace longreach::ranks
