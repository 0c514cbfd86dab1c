// Decides from the heartbeats whether the run makes progress, and which rank is to blame if it does not.
//
// A state machine without sockets, threads or clocks: the server (rendezvous_server.h) passes it every
// event with its time.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "ranks/collective_log.h"

namespace longreach::ranks {

struct WatchdogOptions {
    double first_timeout = 300;  // seconds without progress before any rank has completed a step: start-up,
                                 // the first allocation and the first kernels take long
    double timeout = 60;         // later
    double silence = 5;  // seconds without a heartbeat after which a rank counts as silent in messages
    double gather = 2;   // seconds to wait for the other ranks' records of a mismatch, to name the odd one
};

class Watchdog {
  public:
    Watchdog(int ranks, const WatchdogOptions& options);

    // `now` is in seconds and must not advance while the server itself is stopped.
    void arrived(int rank, const std::string& who, double now);
    void beat(int rank, const CollectiveState& state, double now);  // `recent`: those new since the last beat
    void left(int rank, int exit_code, const std::string& reason);  // said goodbye
    void lost(int rank);                                            // the connection closed without one

    // The reason why all ranks must end, in one line; it does not change afterwards.
    std::optional<std::string> verdict(double now);

  private:
    struct Rank {
        bool present = false, left = false, lost = false;
        std::string who, reason;
        int exit_code = 0;
        double last_beat = 0;  // time of the last heartbeat
        double changed = 0;    // when its step or sequence numbers last changed
        CollectiveState state;
        std::map<uint64_t, CollectiveRecord> recent;
    };
    std::string failures() const;
    std::string mismatch(double now);
    std::string stuck(double now) const;
    std::string silent(double now) const;
    std::string condition(const Rank& rank, double now) const;  // "alive, heard 0.3 s ago"
    std::string last_word(const Rank& rank) const;
    bool silent(const Rank& rank, double now) const { return now - rank.last_beat > options_.silence; }
    double limit() const;

    WatchdogOptions options_;
    std::vector<Rank> ranks_;
    std::optional<uint64_t> differs_;  // the first sequence on which two ranks differ
    double differs_since_ = 0;
    std::string verdict_;
};

bool ended_in_order(int exit_code);  // finished, or stopped by a signal

// "rank 2", "ranks 0, 1 and 5".
std::string rank_list(const std::vector<int>& ranks);

}  // namespace longreach::ranks
