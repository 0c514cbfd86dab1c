// Stop signals: TERM, USR1, USR2, HUP and INT ask for a checkpoint and an exit; a second INT ends the process
// at once. A HUP that was ignored when the process started (nohup) stays ignored.
#pragma once

#include <array>
#include <csignal>

namespace longreach::train {

// Call first in a process that will train. From then on a stop signal ends the process at once with
// ExitCode::stopped, since there is nothing to save yet; a StopSignals defers that. Stop signals that
// the parent process had blocked are delivered now.
void end_at_stop_signals();

// Unblocks the stop signals that the parent process had blocked.
void unblock_stop_signals();

// While an object exists, no stop signal is delivered to this thread. A process that the thread
// starts meanwhile receives none either, until it unblocks them.
class BlockedStopSignals {
  public:
    BlockedStopSignals();
    ~BlockedStopSignals();
    BlockedStopSignals(const BlockedStopSignals&) = delete;
    BlockedStopSignals& operator=(const BlockedStopSignals&) = delete;

  private:
    sigset_t before_;
};

// While an object exists, stop signals are recorded and do not end the process.
class StopSignals {
  public:
    static constexpr std::array numbers{SIGTERM, SIGUSR1, SIGUSR2, SIGHUP, SIGINT};

    StopSignals();
    // Restores the earlier handlers. After end_at_stop_signals(), signals stay without effect instead: the
    // work is done, and the process is about to end with its own exit code.
    ~StopSignals();
    StopSignals(const StopSignals&) = delete;
    StopSignals& operator=(const StopSignals&) = delete;

    static int received();  // the signal's number, or 0

  private:
    std::array<struct sigaction, numbers.size()> before_{};
};

}  // namespace longreach::train
