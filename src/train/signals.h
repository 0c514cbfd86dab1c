// Polite stop requests: TERM, USR1, USR2, HUP and INT ask for a checkpoint and an exit; a second INT ends at
// once. A HUP that was ignored when the process started (nohup) stays ignored.
#pragma once

#include <array>
#include <csignal>

namespace longreach::train {

// The first thing a process does that will train. From now on a stop signal ends it at once with
// ExitCode::stopped, since there is nothing to save yet; a StopSignals defers that. Signals that were blocked
// by whoever started the process are delivered now.
void end_at_stop_signals();

// Lets stop signals through that were blocked by whoever started the process.
void unblock_stop_signals();

// While it lives, none is delivered to this thread, nor to a process it starts before that asks for them.
class BlockedStopSignals {
  public:
    BlockedStopSignals();
    ~BlockedStopSignals();
    BlockedStopSignals(const BlockedStopSignals&) = delete;
    BlockedStopSignals& operator=(const BlockedStopSignals&) = delete;

  private:
    sigset_t before_;
};

// While it lives, stop signals are remembered and end nothing.
class StopSignals {
  public:
    static constexpr std::array numbers{SIGTERM, SIGUSR1, SIGUSR2, SIGHUP, SIGINT};

    StopSignals();
    // Restores what was there before; after end_at_stop_signals(), signals stay without effect: the work is
    // done and the process is about to end with a code of its own.
    ~StopSignals();
    StopSignals(const StopSignals&) = delete;
    StopSignals& operator=(const StopSignals&) = delete;

    static int received();  // the signal's number, or 0

  private:
    std::array<struct sigaction, numbers.size()> before_{};
};

}  // namespace longreach::train
